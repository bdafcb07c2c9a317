// Launcher of the depthwise family's kernels that walk down rows.
#pragma once

#include "families/depthwise/launch.cuh"
#include "families/depthwise/row_stream.cuh"

// instances: launch_depthwise<T>(DepthwiseRowsPlan): float16, bfloat16, float32
namespace deconv {

// Layers that the compiler knows: Shape<kMoved, kRead>.
template <class T, int kStride, int kKernel, bool kChannelsInner>
struct DepthwiseRowsLayer {
  template <int kMoved, DepthwiseRowsRead kRead>
  using Shape = DepthwiseRowsShape<T, kStride, kKernel, kChannelsInner, kMoved, kRead>;
};

template <class Layer, int kMoved, class T>
cudaError_t launch_depthwise_rows(const DepthwiseRowsParams<T>& params, cudaStream_t stream) {
  const DepthwiseRowsPlan& plan = params.plan;
  const auto launch = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, plan.threads, plan.shared_bytes, stream, params);
  };
  switch (plan.read) {
    case DepthwiseRowsRead::kInput:
      return launch(depthwise_rows_forward<typename Layer::template Shape<kMoved, DepthwiseRowsRead::kInput>>);
    case DepthwiseRowsRead::kOutput:
      return launch(depthwise_rows_grad_input<typename Layer::template Shape<kMoved, DepthwiseRowsRead::kOutput>>);
    case DepthwiseRowsRead::kBoth: break;
  }
  const cudaError_t error = launch(
      depthwise_rows_grad_weight<typename Layer::template Shape<kMoved, DepthwiseRowsRead::kBoth>>);
  return error == cudaSuccess ? add_splits(params, stream) : error;
}

// By the bytes that may move at once.
template <class Layer, class T>
cudaError_t launch_depthwise_rows(const DepthwiseRowsParams<T>& params, cudaStream_t stream) {
  // Of width innermost packs are those of all.
  using Shape = typename Layer::template Shape<16, DepthwiseRowsRead::kInput>;
  constexpr bool kInner = Shape::kChannelsInner;
  constexpr int kInput = kInner ? Shape::kChannels : Shape::kColumns;
  constexpr int kOutput = kInner ? Shape::kChannels : Shape::kOutputColumns;
  const bool forward = params.is_forward, weight_gradient = params.plan.weight_gradient;
  const auto takes = [&](int input, int output, int result) {
    constexpr int kAxis = kInner ? 1 : 3;
    return takes_packs(params.source, params.source_stride, kAxis, forward ? input : output) &&
           (weight_gradient ? takes_packs(params.other, params.other_stride, kAxis, input)
                            : takes_packs(params.result, params.result_stride, kAxis, result));
  };
  const int result = forward ? kOutput : kInput;
  if constexpr (kInner) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    if (params.channels % kVector == 0 && takes(kVector, kVector, result)) {
      return launch_depthwise_rows<Layer, 16>(params, stream);
    }
    if constexpr (sizeof(T) < 4) {
      if (!takes(kInput, kOutput, result)) return launch_depthwise_rows<Layer, sizeof(T)>(params, stream);
    }
    return launch_depthwise_rows<Layer, 4>(params, stream);
  } else {
    if (takes(kInput, kOutput, result)) return launch_depthwise_rows<Layer, 16>(params, stream);
    return launch_depthwise_rows<Layer, sizeof(T)>(params, stream);
  }
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
