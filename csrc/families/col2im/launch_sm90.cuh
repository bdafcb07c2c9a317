// Launcher of gemm_sm90.cuh.
#pragma once

#include "families/col2im/gemm_sm90.cuh"
#include "families/col2im/launch.cuh"
#include "families/tensor_map.h"

// instances: launch_col2im_sm90<T>(Col2imSm90Plan): float16, bfloat16, tf32
namespace deconv {

template <class T>
cudaError_t launch_col2im_sm90(const Problem& problem, const Col2imSm90Plan& plan, const Operands& operands,
                               cudaStream_t stream) {
  col2im::Sm90Params<T> p{};
  col2im_conv_params(p.conv, problem, plan, operands);
  p.of_channel = divide_by(plan.channels * static_cast<int64_t>(p.conv.by_taps.divisor));
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  if (!encode_col2im_map(problem, plan, p.conv.source, &p.source_map)) return cudaErrorInvalidValue;
  using namespace col2im;
  auto* const kernel = plan.planes ? gemm_kernel<Sm90Block<T, true>> : gemm_kernel<Sm90Block<T, false>>;
  return launch_kernel(kernel, plan.blocks, kCol2imSm90Threads, plan.shared_bytes, stream, p);
}

}  // namespace deconv
