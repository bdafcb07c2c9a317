// Launcher of wgrad_sm90's ss: grad_weight of 16-bit types in channels_last.
#pragma once

#include "families/wgrad_sm90/launch_tma_nhwc.cuh"
#include "families/wgrad_sm90/wgrad_ss.cuh"

// instances: launch_hopper_weight_tensor<T>(HopperWeightTensorPlan): float16, bfloat16
namespace deconv {

template <class T>
cudaError_t launch_hopper_weight_tensor(const Problem& problem, const HopperWeightTensorPlan& plan,
                                        const Operands& operands, cudaStream_t stream) {
  using Params = hopper::WeightTensorParams<T>;
  const auto launch_tile = [&](const Params& params, Start start) {
    cudaError_t error = cudaErrorInvalidValue;
#define DECONV_HOPPER_TILE(WARPGROUPS, FIRST, SECOND)                                                             \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.first == FIRST && plan.tile.second == SECOND) {             \
    using Config = hopper::WeightTensorConfig<T, WARPGROUPS, FIRST, SECOND>;                                      \
    error = launch_kernel(hopper::weight_tensor_kernel<Config>, plan.blocks, Config::kThreads, plan.shared_bytes, \
                          stream, params, start);                                                                 \
  }
    DECONV_HOPPER_TILE(3, 3, 0)
    DECONV_HOPPER_TILE(3, 2, 1)
    DECONV_HOPPER_TILE(3, 2, 2)
    DECONV_HOPPER_TILE(2, 4, 0)
    DECONV_HOPPER_TILE(2, 2, 2)
    DECONV_HOPPER_TILE(2, 3, 2)
    DECONV_HOPPER_TILE(2, 2, 0)
#undef DECONV_HOPPER_TILE
    return error;
  };
  return launch_hopper_weight_copies<T, Params>(problem, plan, operands, stream, launch_tile);
}

}  // namespace deconv
