// Launcher of gemm_sm90_whole_images.cuh.
#pragma once

#include "core/operands.h"
#include "families/col2im/gemm_sm90_whole_images.cuh"
#include "families/tensor_map.h"
#include "launch/kernel_launch.cuh"

// instances: launch_whole_images<T>(WholeImagesPlan): float16, bfloat16
namespace deconv {

template <class T>
cudaError_t launch_whole_images(const Problem& problem, const WholeImagesPlan& plan, const Operands& operands,
                                cudaStream_t stream) {
  sm90::WholeImagesParams<T> p{};
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.result_n = problem.y.stride[0];
  p.result_m = problem.y.stride[1];
  p.batch = static_cast<int>(problem.batch);
  p.result_channels = static_cast<int>(problem.out_channels_per_group());
  p.height = divide_by(problem.x.size[2]);
  p.columns = divide_by(plan.columns);
  p.m_tiles = divide_by(plan.m_tiles);
  p.plan = plan;
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  if (!is_aligned(p.result, 16) ||
      !encode_whole_images_maps(problem, plan, operands.x, operands.w, &p.source_map, &p.weight_map)) {
    return cudaErrorInvalidValue;  // a result that torch did not allocate, or a driver without tensor maps
  }
  auto* const kernel = plan.pixels == 64    ? sm90::whole_images_kernel<T, 64>
                       : plan.pixels == 128 ? sm90::whole_images_kernel<T, 128>
                       : plan.pixels == 192 ? sm90::whole_images_kernel<T, 192>
                                            : sm90::whole_images_kernel<T, 256>;
  return launch_kernel(kernel, plan.blocks, kWholeImagesThreads, plan.shared_bytes, stream, p, Start::kAfter,
                       kWholeImagesCluster);
}

}  // namespace deconv
