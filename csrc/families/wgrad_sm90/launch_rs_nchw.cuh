// Launcher of wgrad_sm90's rs_nchw: grad_weight of NCHW operands.
#pragma once

#include "families/wgrad_sm90/tensor_map_nchw.h"
#include "families/wgrad_sm90/wgrad_rs_nchw.cuh"
#include "launch/kernel_launch.cuh"
#include "launch/weight_gradient.cuh"
#include "lowerings/split_k_reduce.cuh"

// instances: launch_wgrad_rs_nchw<T, kParts>(WgradRsNchwPlan): float16 1, bfloat16 1, tf32 1, float32 2
namespace deconv {

template <class T, int kParts>
cudaError_t launch_wgrad_rs_nchw(const Problem& problem, const WgradRsNchwPlan& plan, const Operands& operands,
                                 cudaStream_t stream) {
  sm90::WgradRsNchwParams<T> params;
  static_assert(sizeof(params) <= 4096, "a kernel's parameters");
  if (!encode_lines_maps(problem, plan, operands.x, operands.y, &params.x_map, &params.y_map)) {
    return cudaErrorInvalidValue;
  }
  set_weight_result<T>(params, problem, operands);
  params.partial = static_cast<float*>(operands.workspace);
  params.y_c = static_cast<int>(problem.y.stride[1]);
  params.y_h = static_cast<int>(problem.y.stride[2]);
  params.width = static_cast<int>(problem.axis[1].input);
  params.out_width = static_cast<int>(problem.axis[1].output);
  params.out_height = static_cast<int>(problem.axis[0].output);
  params.stride_h = static_cast<int>(problem.axis[0].stride);
  params.stride_w = static_cast<int>(problem.axis[1].stride);
  params.padding_w = static_cast<int>(problem.axis[1].padding);
  params.dilation_w = static_cast<int>(problem.axis[1].dilation);
  params.tiles_w = divide_by(plan.tiles_w);
  params.runs = divide_by(plan.runs);
  params.plan = plan;
  cudaError_t error = cudaErrorInvalidValue;
#define DECONV_SM90_TILE(WARPGROUPS, TAPS, N)                                                                   \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.taps == TAPS && plan.tile.n == N) {                       \
    using Config = sm90::WgradRsNchwConfig<T, WARPGROUPS, TAPS, N, kParts>;                                     \
    error = launch_kernel(sm90::wgrad_rs_nchw_kernel<Config>, plan.blocks, Config::kThreads, plan.shared_bytes, \
                          stream, params);                                                                      \
  }
  if constexpr (kParts == 1) {
    DECONV_SM90_TILE(3, 1, 192)
    DECONV_SM90_TILE(2, 1, 192)
    DECONV_SM90_TILE(3, 1, 128)
    DECONV_SM90_TILE(2, 2, 128)
    DECONV_SM90_TILE(3, 1, 96)
    DECONV_SM90_TILE(2, 2, 96)
    DECONV_SM90_TILE(3, 3, 64)
    DECONV_SM90_TILE(2, 4, 64)
    DECONV_SM90_TILE(2, 1, 256)
  } else {
    DECONV_SM90_TILE(3, 1, 64)
    DECONV_SM90_TILE(2, 2, 64)
    DECONV_SM90_TILE(2, 1, 96)
  }
#undef DECONV_SM90_TILE
  if (error != cudaSuccess) return error;
  return launch_add_splits<T>(problem, params, plan.splits, plan.padded_m, plan.padded_n, stream, Start::kEarly);
}

}  // namespace deconv
