// Launcher of the Hopper family's folded products.
#pragma once

#include "core/operands.h"
#include "families/col2im/gemm_sm90_whole_images.cuh"
#include "families/tensor_map.h"
#include "launch/kernel_launch.cuh"

// instances: launch_hopper_folded<T>(HopperFoldedPlan): float16, bfloat16
namespace deconv {

template <class T>
hopper::FoldedParams<T> folded_params(const Problem& problem, const HopperFoldedPlan& plan, const Operands& operands) {
  hopper::FoldedParams<T> p{};
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.result_n = problem.y.stride[0];
  p.result_m = problem.y.stride[1];
  p.batch = static_cast<int>(problem.batch);
  p.result_channels = static_cast<int>(problem.out_channels_per_group());
  p.height = static_cast<int>(problem.x.size[2]);
  p.columns = divide_by(plan.columns);
  p.m_tiles = divide_by(plan.m_tiles);
  p.result_rows = divide_by(2 * p.height);
  p.plan = plan;
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  return p;
}

template <class T, int kPixels>
cudaError_t launch_folded(const hopper::FoldedParams<T>& p, cudaStream_t stream) {
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, p.plan.blocks, kFoldedThreads, p.plan.shared_bytes, stream, p, Start::kAfter,
                         kFoldedCluster);
  };
  static_assert(kFoldedMostQuads == 4);
  switch (p.plan.quads) {
    case 1: return launch_with(hopper::folded_kernel<T, kPixels, 1>);
    case 2: return launch_with(hopper::folded_kernel<T, kPixels, 2>);
    case 3: return launch_with(hopper::folded_kernel<T, kPixels, 3>);
    default: return launch_with(hopper::folded_kernel<T, kPixels, 4>);
  }
}

template <class T>
cudaError_t launch_hopper_folded(const Problem& problem, const HopperFoldedPlan& plan, const Operands& operands,
                                 cudaStream_t stream) {
  hopper::FoldedParams<T> p = folded_params<T>(problem, plan, operands);
  if (!is_aligned(p.result, 16) ||
      !encode_folded_maps(problem, plan, operands.x, operands.w, &p.source_map, &p.weight_map)) {
    return cudaErrorInvalidValue;  // no result of ours; a driver without maps
  }
  switch (plan.pixels) {
    case 64: return launch_folded<T, 64>(p, stream);
    case 128: return launch_folded<T, 128>(p, stream);
    case 192: return launch_folded<T, 192>(p, stream);
    default: return launch_folded<T, 256>(p, stream);
  }
}

}  // namespace deconv
