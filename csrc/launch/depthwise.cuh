// Launcher of the depthwise family, all directions; one .cu file an element type instantiates it.
#pragma once

#include "../kernels/depthwise.cuh"
#include "../launch.h"
#include "gather_weight.cuh"
#include "kernel_launch.cuh"

namespace deconv {

template <class T>
DepthwiseParams<T> depthwise_params(const Problem& problem, const DepthwisePlan& plan, const Operands& operands) {
  const bool forward = problem.direction == Direction::kForward;
  const Tensor4& source = problem.direction == Direction::kGradInput ? problem.y : problem.x;
  const Tensor4& weight = plan.weight_gradient ? problem.y : problem.w;
  const Tensor4& result = problem.result();
  DepthwiseParams<T> p;
  p.source = static_cast<const T*>(problem.direction == Direction::kGradInput ? operands.y : operands.x);
  p.weight = static_cast<const T*>(plan.weight_gradient ? operands.y : operands.w);
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.partial = plan.splits > 1 ? static_cast<AccumulatorOf<T>*>(operands.workspace) : nullptr;
  p.source_n = source.stride[0];
  p.source_c = source.stride[1];
  p.source_h = source.stride[2];
  p.source_w = source.stride[3];
  p.weight_n = weight.stride[0];
  p.weight_c = plan.weight_gradient ? weight.stride[1] : weight.stride[0];
  p.weight_h = weight.stride[2];
  p.weight_w = weight.stride[3];
  p.result_n = result.stride[0];
  p.result_c = plan.weight_gradient ? result.stride[0] : result.stride[1];
  p.result_h = result.stride[2];
  p.result_w = result.stride[3];
  p.batch = static_cast<int>(problem.batch);
  p.channels = static_cast<int>(problem.in_channels);
  for (int a = 0; a < 2; ++a) {
    p.axis[a] = geometry(problem, a);  // of grad_input for both gradients
    p.axis[a].is_forward = forward;
  }
  p.plan = plan;
  return p;
}

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwisePlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  const DepthwiseParams<T> params = depthwise_params<T>(problem, plan, operands);
  if (!plan.weight_gradient) {
    auto* kernel = plan.channels_innermost ? depthwise_conv_kernel<T, true> : depthwise_conv_kernel<T, false>;
    return launch_kernel(kernel, plan.blocks, kDepthwiseThreads, plan.shared_bytes, stream, params);
  }
  const cudaError_t error = launch_kernel(depthwise_weight_kernel<T>, plan.blocks, kDepthwiseThreads, 0, stream,
                                          params);
  if (error != cudaSuccess || plan.splits == 1) return error;
  GatherWeightPlan reduced;
  reduced.splits = plan.splits;
  return launch_reduce_splits<T>(problem, gather_weight_params<T>(problem, reduced, operands), stream);
}

}  // namespace deconv
