// Launcher of the gather family's forward and grad_input; one .cu file an element type instantiates it.
#pragma once

#include "../kernels/gather_conv.cuh"
#include "../launch.h"
#include "kernel_launch.cuh"

namespace deconv {

template <class T>
GatherConvParams<T> gather_conv_params(const Problem& problem, const GatherConvPlan& plan, const Operands& operands) {
  const bool forward = problem.direction == Direction::kForward;
  const Tensor4& source = forward ? problem.x : problem.y;
  const Tensor4& result = problem.result();
  GatherConvParams<T> p;
  p.source = static_cast<const T*>(forward ? operands.x : operands.y);
  p.weight = static_cast<const T*>(operands.w);
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.source_n = source.stride[0];
  p.source_c = source.stride[1];
  p.source_h = source.stride[2];
  p.source_w = source.stride[3];
  p.weight_m = problem.w.stride[forward ? 1 : 0];
  p.weight_c = problem.w.stride[forward ? 0 : 1];
  p.weight_h = problem.w.stride[2];
  p.weight_w = problem.w.stride[3];
  p.weight_group = problem.in_channels_per_group() * problem.w.stride[0];
  p.result_n = result.stride[0];
  p.result_m = result.stride[1];
  p.result_h = result.stride[2];
  p.result_w = result.stride[3];
  p.batch = static_cast<int>(problem.batch);
  p.source_channels = static_cast<int>(forward ? problem.in_channels_per_group() : problem.out_channels_per_group());
  p.result_channels = static_cast<int>(forward ? problem.out_channels_per_group() : problem.in_channels_per_group());
  p.axis[0] = geometry(problem, 0);
  p.axis[1] = geometry(problem, 1);
  p.plan = plan;
  p.plan.vector_source = plan.vector_source && is_aligned(p.source, 16);
  p.plan.vector_result = plan.vector_result && is_aligned(p.result, 16);
  return p;
}

template <class T>
cudaError_t launch_gather_conv(const Problem& problem, const GatherConvPlan& plan, const Operands& operands,
                               cudaStream_t stream) {
  const GatherConvParams<T> params = gather_conv_params<T>(problem, plan, operands);
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, kGatherThreads, plan.shared_bytes, stream, params);
  };
  switch (plan.lane_columns) {
    case 32: return launch_with(gather_conv_kernel<GatherConvConfig<T, 32>>);
    case 16: return launch_with(gather_conv_kernel<GatherConvConfig<T, 16>>);
    case 8: return launch_with(gather_conv_kernel<GatherConvConfig<T, 8>>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace deconv
