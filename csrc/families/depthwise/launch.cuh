// Launchers of strips.cuh, and of the sum of splits.
#pragma once

#include <algorithm>
#include <utility>

#include "core/correlation.h"
#include "core/operands.h"
#include "families/depthwise/strips.cuh"
#include "launch/kernel_launch.cuh"

// instances: launch_depthwise<T>(DepthwiseStripsPlan): float16, bfloat16, float32, float64
namespace deconv {

inline DepthwiseStrides strides(const Tensor4& tensor) {
  return {tensor.stride[0], tensor.stride[1], tensor.stride[2], tensor.stride[3]};
}

template <class T, class PlanOf>
DepthwiseParams<T, PlanOf> depthwise_params(const Problem& problem, const PlanOf& plan, const Operands& operands) {
  const bool forward = problem.direction == Direction::kForward;
  DepthwiseParams<T, PlanOf> p;
  p.source = static_cast<const T*>(forward ? operands.x : operands.y);
  p.other = static_cast<const T*>(plan.weight_gradient ? operands.x : operands.w);
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.partial = plan.splits > 1 ? static_cast<AccumulatorOf<T>*>(operands.workspace) : nullptr;
  p.source_stride = strides(forward ? problem.x : problem.y);
  p.other_stride = strides(plan.weight_gradient ? problem.x : problem.w);
  p.result_stride = strides(problem.result());
  p.batch = static_cast<int>(problem.batch);
  p.in_group = static_cast<int>(problem.in_channels_per_group());
  p.out_group = static_cast<int>(problem.out_channels_per_group());
  p.channels = static_cast<int>(plan.weight_gradient ? problem.in_channels * p.out_group : problem.result().size[1]);
  p.is_forward = forward;
  p.by_in_group = divide_by(p.in_group);
  p.by_out_group = divide_by(p.out_group);
  p.by_channels = divide_by(p.channels);
  p.by_taps = divide_by(problem.axis[0].kernel * problem.axis[1].kernel);
  p.by_kernel_w = divide_by(problem.axis[1].kernel);
  for (int a = 0; a < 2; ++a) {
    p.axis[a] = geometry(problem, a);  // of grad_input for both gradients
    const int count = p.axis[a].is_forward ? p.axis[a].phases() : p.axis[a].stride;
    for (int i = 0; i < kDepthwiseStrides; ++i) {
      p.taps[a][i] = i < count ? axis_taps(p.axis[a], forward ? i : 0, forward ? 0 : i) : AxisTaps{};
    }
  }
  p.plan = plan;
  return p;
}

// Exchanges height and width.
template <class Params>
void swap_axes(Params& p) {
  std::swap(p.axis[0], p.axis[1]);
  std::swap(p.taps[0], p.taps[1]);
  for (DepthwiseStrides* stride : {&p.source_stride, &p.other_stride, &p.result_stride})
    std::swap(stride->h, stride->w);
  p.by_kernel_w = divide_by(p.axis[1].kernel);
}

template <class Params>
cudaError_t add_splits(const Params& params, cudaStream_t stream) {
  if (params.plan.splits == 1) return cudaSuccess;
  const int64_t elements = static_cast<int64_t>(params.channels) * params.by_taps.divisor;
  return launch_kernel(depthwise_add_splits<Params>, (elements + 31) / 32, kDepthwiseThreads, 0, stream, params,
                       Start::kEarly);
}

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseStripsPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  constexpr int kChannels = kPackSize<T>, kPhases = depthwise_phases(sizeof(T));
  auto params = depthwise_params<T>(problem, plan, operands);
  if (!plan.channels_inner) swap_axes(params);
  const auto launch = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, kDepthwiseThreads, plan.shared_bytes, stream, params);
  };
  if (plan.weight_gradient) {
    const cudaError_t error = launch(plan.vector == 1 ? depthwise_strips_grad_weight<T, 1>
                                                      : depthwise_strips_grad_weight<T, kPhases>);
    return error == cudaSuccess ? add_splits(params, stream) : error;
  }
  if (plan.vector == 1) return launch(depthwise_strips<T, 1, 1>);
  if (plan.channels_inner) return launch(depthwise_strips<T, kChannels, kChannels>);
  return launch(params.is_forward ? depthwise_strips<T, 1, kPhases> : depthwise_strips<T, kPhases, 1>);
}

}  // namespace deconv
