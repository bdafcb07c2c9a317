// Launcher of wgrad_sm90's ss: grad_weight of 16-bit types in channels_last.
#pragma once

#include "families/wgrad_sm90/launch_tma_nhwc.cuh"
#include "families/wgrad_sm90/wgrad_ss.cuh"

// instances: launch_wgrad_ss<T>(WgradSsPlan): float16, bfloat16
namespace deconv {

template <class T>
cudaError_t launch_wgrad_ss(const Problem& problem, const WgradSsPlan& plan, const Operands& operands,
                            cudaStream_t stream) {
  using Params = sm90::WeightTensorParams<T>;
  const auto launch_tile = [&](const Params& params, Start start) {
    cudaError_t error = cudaErrorInvalidValue;
#define DECONV_SM90_TILE(WARPGROUPS, FIRST, SECOND)                                                                \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.first == FIRST && plan.tile.second == SECOND) {              \
    using Config = sm90::WeightTensorConfig<T, WARPGROUPS, FIRST, SECOND>;                                         \
    error = launch_kernel(sm90::wgrad_ss_kernel<Config>, plan.blocks, Config::kThreads, plan.shared_bytes, stream, \
                          params, start);                                                                          \
  }
    DECONV_SM90_TILE(3, 3, 0)
    DECONV_SM90_TILE(3, 2, 1)
    DECONV_SM90_TILE(3, 2, 2)
    DECONV_SM90_TILE(2, 4, 0)
    DECONV_SM90_TILE(2, 2, 2)
    DECONV_SM90_TILE(2, 3, 2)
    DECONV_SM90_TILE(2, 2, 0)
#undef DECONV_SM90_TILE
    return error;
  };
  return launch_wgrad_tma<T, Params>(problem, plan, operands, stream, launch_tile);
}

}  // namespace deconv
