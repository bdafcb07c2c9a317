// Launcher of the depthwise family's kernels that walk down rows; one .cu file an element type instantiates it.
#pragma once

#include "../kernels/depthwise/rows.cuh"
#include "depthwise.cuh"

namespace deconv {

// Layers that the compiler knows: Shape<kWhole, kWeightGradient>.
template <class T, int kStride, int kKernel, bool kChannelsInner>
struct DepthwiseRowsLayer {
  template <bool kWhole, bool kWeightGradient>
  using Shape = DepthwiseRowsShape<T, kStride, kKernel, kChannelsInner, kWhole, kWeightGradient>;
};

template <class Layer, bool kWhole, class T>
cudaError_t launch_depthwise_rows(const DepthwiseRowsParams<T>& params, cudaStream_t stream) {
  const DepthwiseRowsPlan& plan = params.plan;
  const auto launch = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, plan.threads, plan.shared_bytes, stream, params);
  };
  if (plan.weight_gradient) {
    const cudaError_t error = launch(depthwise_rows_grad_weight<typename Layer::template Shape<kWhole, true>>);
    return error == cudaSuccess ? add_splits(params, stream) : error;
  }
  using Shape = typename Layer::template Shape<kWhole, false>;
  return launch(params.is_forward ? depthwise_rows_forward<Shape> : depthwise_rows_grad_input<Shape>);
}

template <class Layer, class T>
cudaError_t launch_depthwise_rows(const DepthwiseRowsParams<T>& params, cudaStream_t stream) {
  using Shape = typename Layer::template Shape<true, false>;  // packs of width innermost are those of grad_weight, too
  constexpr int kInner = Shape::kChannelsInner ? 1 : 3;
  constexpr int kInput = Shape::kChannelsInner ? Shape::kChannels : Shape::kColumns;
  constexpr int kOutput = Shape::kChannelsInner ? Shape::kChannels : Shape::kOutputColumns;
  if constexpr (kInput > 1) {
    bool whole = takes_packs(params.source, params.source_stride, kInner, params.is_forward ? kInput : kOutput);
    if (params.plan.weight_gradient) {
      whole = whole && takes_packs(params.other, params.other_stride, kInner, kInput);
    } else {
      whole = whole && takes_packs(params.result, params.result_stride, kInner, params.is_forward ? kOutput : kInput);
    }
    if (!whole) return launch_depthwise_rows<Layer, false>(params, stream);
  }
  return launch_depthwise_rows<Layer, true>(params, stream);
}

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseRowsPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  const auto params = depthwise_params<T>(problem, plan, operands);
  cudaError_t error = cudaErrorInvalidValue;
  any_depthwise_rows([&](auto stride, auto kernel) {
    if (plan.stride != stride || plan.kernel != kernel) return false;
    error = plan.channels_inner ? launch_depthwise_rows<DepthwiseRowsLayer<T, stride, kernel, true>>(params, stream)
                                : launch_depthwise_rows<DepthwiseRowsLayer<T, stride, kernel, false>>(params, stream);
    return true;
  });
  return error;
}

}  // namespace deconv
