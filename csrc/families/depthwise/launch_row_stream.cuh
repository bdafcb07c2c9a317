// Launcher of row_stream.cuh.
#pragma once

#include "families/depthwise/launch.cuh"
#include "families/depthwise/row_stream.cuh"

// instances: launch_depthwise<T>(DepthwiseRowsPlan): float16, bfloat16, float32
namespace deconv {

template <class T, int kStride, int kKernel, bool kChannelsInner, int kMoved>
cudaError_t launch_row_stream(const DepthwiseRowsParams<T>& params, cudaStream_t stream) {
  using Read = DepthwiseRowsRead;
  const DepthwiseRowsPlan& plan = params.plan;
  const auto launch = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, plan.threads, plan.shared_bytes, stream, params);
  };
  if (plan.read == Read::kInput) {
    return launch(row_stream_forward<DepthwiseRowsShape<T, kStride, kKernel, kChannelsInner, kMoved, Read::kInput>>);
  }
  if (plan.read == Read::kOutput) {
    return launch(
        row_stream_grad_input<DepthwiseRowsShape<T, kStride, kKernel, kChannelsInner, kMoved, Read::kOutput>>);
  }
  const cudaError_t error = launch(
      row_stream_grad_weight<DepthwiseRowsShape<T, kStride, kKernel, kChannelsInner, kMoved, Read::kBoth>>);
  return error == cudaSuccess ? add_splits(params, stream) : error;
}

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseRowsPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  const auto params = depthwise_params<T>(problem, plan, operands);
  cudaError_t error = cudaErrorInvalidValue;
  any_depthwise_rows([&](auto stride, auto kernel) {
    if (plan.stride != stride || plan.kernel != kernel) return false;
    error = !plan.channels_inner ? launch_row_stream<T, stride, kernel, false, 16>(params, stream)
            : plan.moved == 16   ? launch_row_stream<T, stride, kernel, true, 16>(params, stream)
                                 : launch_row_stream<T, stride, kernel, true, 4>(params, stream);
    return true;
  });
  return error;
}

}  // namespace deconv
