// Launcher of the Hopper family's grad_weight by tensor copies; one .cu file an element type instantiates it.
#pragma once

#include "../kernels/hopper/weight_tensor.cuh"
#include "../repack_plan.h"
#include "add_splits.cuh"
#include "kernel_launch.cuh"
#include "launchers.h"
#include "repack.cuh"
#include "weight_gradient.cuh"
#include "weight_tensor_map.h"

namespace deconv {

template <class T>
cudaError_t launch_hopper_weight_tensor(const Problem& problem, const HopperWeightTensorPlan& plan,
                                        const Operands& operands, cudaStream_t stream) {
  hopper::WeightTensorParams<T> params;
  static_assert(sizeof(params) <= 4096, "a kernel's parameters");
  // The operands as the tensor copies see them.
  Problem seen = problem;
  Operands at = operands;
  auto* const workspace = static_cast<unsigned char*>(operands.workspace);
  if (plan.repack_x) {
    seen.x = repacked(problem.x, problem.groups, problem.dtype);
    at.x = workspace + plan.x_at;
  }
  if (plan.repack_y) {
    seen.y = repacked(problem.y, problem.groups, problem.dtype);
    at.y = workspace + plan.y_at;
  }
  // A pointer or a driver that refuses a tensor map leaves the kernel that loads by threads.
  if (!is_aligned(at.x, 16) || !is_aligned(at.y, 16) ||
      !encode_weight_maps(seen, plan, at.x, at.y, &params.x_map, params.y_map)) {
    return launch_hopper_weight<T, 1>(problem, plan.gathered, operands, stream);
  }
  cudaError_t error = cudaSuccess;
  const auto repack = [&](const Tensor4& tensor, const Tensor4& layout, const void* from, const void* to) {
    error = launch_repack<T>(tensor, problem.groups, layout, static_cast<const T*>(from),
                             static_cast<T*>(const_cast<void*>(to)), stream, Start::kAfter);
  };
  if (plan.repack_x) repack(problem.x, seen.x, operands.x, at.x);
  if (plan.repack_y && error == cudaSuccess) repack(problem.y, seen.y, operands.y, at.y);
  if (error != cudaSuccess) return error;
  set_weight_result<T>(params, problem, operands);
  params.partial = plan.splits > 1 ? static_cast<float*>(operands.workspace) : nullptr;
  const auto fits = [](int64_t stride) { return stride % 8 == 0; };
  params.store_packs = params.result_n == 1 && fits(params.channels_n) && fits(params.result_m) &&
                       fits(params.result_h) && fits(params.result_w) && is_aligned(params.result, 16);
  params.plan = plan;
  error = cudaErrorInvalidValue;
#define DECONV_HOPPER_TILE(WARPGROUPS, FIRST, SECOND)                                                             \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.first == FIRST && plan.tile.second == SECOND) {             \
    using Config = hopper::WeightTensorConfig<T, WARPGROUPS, FIRST, SECOND>;                                      \
    error = launch_kernel(hopper::weight_tensor_kernel<Config>, plan.blocks, Config::kThreads, plan.shared_bytes, \
                          stream, params);                                                                        \
  }
  DECONV_HOPPER_TILE(3, 3, 0)
  DECONV_HOPPER_TILE(3, 2, 1)
  DECONV_HOPPER_TILE(3, 2, 2)
  DECONV_HOPPER_TILE(2, 4, 0)
  DECONV_HOPPER_TILE(2, 2, 2)
  DECONV_HOPPER_TILE(2, 3, 2)
  DECONV_HOPPER_TILE(2, 2, 0)
#undef DECONV_HOPPER_TILE
  if (error != cudaSuccess || plan.splits == 1) return error;
  return launch_add_splits<T>(problem, params, plan.splits, true, plan.padded_m, plan.padded_n, stream);
}

}  // namespace deconv
