// Launcher of wgrad_sm90's rs_nhwc: grad_weight of float32 in channels_last.
#pragma once

#include "families/wgrad_sm90/launch_tma_nhwc.cuh"
#include "families/wgrad_sm90/wgrad_rs_nhwc.cuh"

// instances: launch_hopper_weight_turned<T, kParts>(HopperWeightTurnedPlan): tf32 1, float32 2

namespace deconv {
namespace {

using hopper::WeightTurnedParams;

template <int kParts>
cudaError_t launch_tile(const WeightTurnedParams& params, cudaStream_t stream, Start start) {
  const HopperWeightTurnedPlan& plan = params.plan;
  cudaError_t error = cudaErrorInvalidValue;
#define DECONV_HOPPER_TILE(WARPGROUPS, TAPS, N)                                                                   \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.taps == TAPS && plan.tile.n == N) {                         \
    using Config = hopper::WeightTurnedConfig<WARPGROUPS, TAPS, N, kParts>;                                       \
    error = launch_kernel(hopper::weight_turned_kernel<Config>, plan.blocks, Config::kThreads, plan.shared_bytes, \
                          stream, params, start);                                                                 \
  }
  if constexpr (kParts == 1) {
    DECONV_HOPPER_TILE(3, 3, 64)
    DECONV_HOPPER_TILE(2, 4, 64)
    DECONV_HOPPER_TILE(2, 1, 64)
    DECONV_HOPPER_TILE(2, 2, 128)
    DECONV_HOPPER_TILE(3, 1, 192)
    DECONV_HOPPER_TILE(2, 1, 256)
  } else {
    DECONV_HOPPER_TILE(3, 1, 64)
    DECONV_HOPPER_TILE(2, 2, 64)
  }
#undef DECONV_HOPPER_TILE
  return error;
}

}  // namespace

template <class T, int kParts>
cudaError_t launch_hopper_weight_turned(const Problem& problem, const HopperWeightTurnedPlan& plan,
                                        const Operands& operands, cudaStream_t stream) {
  return launch_hopper_weight_copies<T, WeightTurnedParams>(
      problem, plan, operands, stream,
      [&](const WeightTurnedParams& params, Start start) { return launch_tile<kParts>(params, stream, start); });
}

}  // namespace deconv
