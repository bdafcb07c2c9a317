// Launcher of wgrad_sm90's rs_nhwc: grad_weight of float32 in channels_last.
#pragma once

#include "families/wgrad_sm90/launch_tma_nhwc.cuh"
#include "families/wgrad_sm90/wgrad_rs_nhwc.cuh"

// instances: launch_wgrad_rs_nhwc<T, kParts>(WgradRsNhwcPlan): tf32 1, float32 2

namespace deconv {
namespace {

using sm90::WgradRsNhwcParams;

template <int kParts>
cudaError_t launch_tile(const WgradRsNhwcParams& params, cudaStream_t stream, Start start) {
  const WgradRsNhwcPlan& plan = params.plan;
  cudaError_t error = cudaErrorInvalidValue;
#define DECONV_SM90_TILE(WARPGROUPS, TAPS, N)                                                                   \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.taps == TAPS && plan.tile.n == N) {                       \
    using Config = sm90::WgradRsNhwcConfig<WARPGROUPS, TAPS, N, kParts>;                                        \
    error = launch_kernel(sm90::wgrad_rs_nhwc_kernel<Config>, plan.blocks, Config::kThreads, plan.shared_bytes, \
                          stream, params, start);                                                               \
  }
  if constexpr (kParts == 1) {
    DECONV_SM90_TILE(3, 3, 64)
    DECONV_SM90_TILE(2, 4, 64)
    DECONV_SM90_TILE(2, 1, 64)
    DECONV_SM90_TILE(2, 2, 128)
    DECONV_SM90_TILE(3, 1, 192)
    DECONV_SM90_TILE(2, 1, 256)
  } else {
    DECONV_SM90_TILE(3, 1, 64)
    DECONV_SM90_TILE(2, 2, 64)
  }
#undef DECONV_SM90_TILE
  return error;
}

}  // namespace

template <class T, int kParts>
cudaError_t launch_wgrad_rs_nhwc(const Problem& problem, const WgradRsNhwcPlan& plan, const Operands& operands,
                                 cudaStream_t stream) {
  return launch_wgrad_tma<T, WgradRsNhwcParams>(
      problem, plan, operands, stream,
      [&](const WgradRsNhwcParams& params, Start start) { return launch_tile<kParts>(params, stream, start); });
}

}  // namespace deconv
