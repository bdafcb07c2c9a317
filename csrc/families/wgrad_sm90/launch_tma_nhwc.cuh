// Shared by the launchers of ss and rs_nhwc: for each slice of images repack or im2col as the plan says, tensor maps
// and the kernel; then the sum of splits.
#pragma once

#include <algorithm>

#include "families/wgrad_sm90/load_tma_nhwc.cuh"
#include "families/wgrad_sm90/tensor_map_nhwc.h"
#include "launch/kernel_launch.cuh"
#include "launch/weight_gradient.cuh"
#include "lowerings/repack.cuh"
#include "lowerings/repack.h"
#include "lowerings/split_k_reduce.cuh"
#include "lowerings/wgrad_im2col.cuh"

namespace deconv {

// Describes `count` images from `first` on, or those that are left.
inline Tensor4 images_of(Tensor4 tensor, int64_t first, int64_t count) {
  tensor.size[0] = std::min(count, tensor.size[0] - first);
  return tensor;
}

// launch_tile(params, start) launches the kernel of the plan's tile.
template <class T, class Params, class Plan, class LaunchTile>
cudaError_t launch_wgrad_tma(const Problem& problem, const Plan& plan, const Operands& operands, cudaStream_t stream,
                             LaunchTile launch_tile) {
  Params params;
  static_assert(sizeof(params) <= 4096, "a kernel's parameters");
  const Problem whole = plan.im2col ? weight_im2col_problem(problem) : problem;  // as the plan sees it
  set_weight_result<T>(params, whole, operands);
  params.partial = plan.sums ? static_cast<float*>(operands.workspace) : nullptr;
  const auto fits = [](int64_t stride) { return stride % 8 == 0; };
  params.store_packs = params.result_n == 1 && fits(params.channels_n) && fits(params.result_m) &&
                       fits(params.result_h) && fits(params.result_w) && is_aligned(params.result, 16);
  params.plan = plan;
  auto* const workspace = static_cast<unsigned char*>(operands.workspace);
  const auto from_image = [](const Tensor4& tensor, const void* at, int64_t image) {
    return static_cast<const T*>(at) + image * tensor.stride[0];
  };
  cudaError_t error = cudaSuccess;
  for (int64_t first = 0; first < problem.batch; first += plan.slice) {
    const Tensor4 x = images_of(problem.x, first, plan.slice), y = images_of(problem.y, first, plan.slice);
    const T *const x_at = from_image(x, operands.x, first), *const y_at = from_image(y, operands.y, first);
    // The operands as TMA sees them.
    Problem seen = whole;
    seen.x = plan.repack_x ? repacked(x, problem.groups, problem.dtype) : x;
    seen.y = plan.im2col     ? images_of(whole.y, first, plan.slice)
             : plan.repack_y ? repacked(y, problem.groups, problem.dtype)
                             : y;
    T* const x_repacked = reinterpret_cast<T*>(workspace + plan.x_at);
    T* const y_repacked = reinterpret_cast<T*>(workspace + plan.y_at);
    const T *const x_seen = plan.repack_x ? x_repacked : x_at, *const y_seen = plan.repack_y || plan.im2col ? y_repacked
                                                                                                            : y_at;
    if (!encode_weight_maps(seen, plan, x_seen, y_seen, &params.x_map, params.y_map)) return cudaErrorInvalidValue;
    std::optional<Repack<T>> x_rewritten, y_rewritten;
    if (plan.repack_x) x_rewritten = describe_repack<T>(x, problem.groups, seen.x, x_at, x_repacked);
    if (plan.repack_y) y_rewritten = describe_repack<T>(y, problem.groups, seen.y, y_at, y_repacked);
    error = launch_repack(x_rewritten, y_rewritten, stream);
    if (plan.im2col && error == cudaSuccess) {
      error = launch_weight_im2col<T>(problem, y, seen.y, y_at, y_repacked, stream);
    }
    if (error != cudaSuccess) return error;
    params.adds = first > 0;
    const bool after_own = plan.repack_x || plan.repack_y || plan.im2col;
    error = launch_tile(params, after_own ? Start::kEarly : Start::kAfter);
    if (error != cudaSuccess) return error;
  }
  if (!plan.sums) return error;
  return launch_add_splits<T>(whole, params, plan.splits, plan.padded_m, plan.padded_n, stream, Start::kEarly);
}

}  // namespace deconv
