// Launcher of the gather family's grad_weight; one .cu file an element type instantiates it.
#pragma once

#include "../kernels/gather/weight.cuh"
#include "../operands.h"
#include "../problem.h"
#include "kernel_launch.cuh"

namespace deconv {

template <class T>
GatherWeightParams<T> gather_weight_params(const Problem& problem, const GatherWeightPlan& plan,
                                           const Operands& operands) {
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  GatherWeightParams<T> p;
  p.x = static_cast<const T*>(operands.x);
  p.y = static_cast<const T*>(operands.y);
  p.result = static_cast<T*>(operands.result);
  p.partial = plan.splits > 1 ? static_cast<AccumulatorOf<T>*>(operands.workspace) : nullptr;
  p.x_n = problem.x.stride[0];
  p.x_c = problem.x.stride[1];
  p.x_h = problem.x.stride[2];
  p.x_w = problem.x.stride[3];
  p.y_n = problem.y.stride[0];
  p.y_c = problem.y.stride[1];
  p.y_h = problem.y.stride[2];
  p.y_w = problem.y.stride[3];
  p.result_m = problem.w.stride[0];
  p.result_n = problem.w.stride[1];
  p.result_h = problem.w.stride[2];
  p.result_w = problem.w.stride[3];
  p.batch = static_cast<int>(problem.batch);
  p.height = static_cast<int>(h.input);
  p.width = static_cast<int>(w.input);
  p.out_height = static_cast<int>(h.output);
  p.out_width = static_cast<int>(w.output);
  p.channels_m = static_cast<int>(problem.in_channels_per_group());
  p.channels_n = static_cast<int>(problem.out_channels_per_group());
  p.groups = static_cast<int>(problem.groups);
  p.kernel_h = static_cast<int>(h.kernel);
  p.kernel_w = static_cast<int>(w.kernel);
  p.stride_h = static_cast<int>(h.stride);
  p.stride_w = static_cast<int>(w.stride);
  p.padding_h = static_cast<int>(h.padding);
  p.padding_w = static_cast<int>(w.padding);
  p.dilation_h = static_cast<int>(h.dilation);
  p.dilation_w = static_cast<int>(w.dilation);
  p.plan = plan;
  return p;
}

template <class T>
cudaError_t launch_reduce_splits(const Problem& problem, const GatherWeightParams<T>& params, cudaStream_t stream) {
  const int64_t blocks = (problem.w.numel() + kGatherThreads - 1) / kGatherThreads;
  return launch_kernel(reduce_splits<T>, blocks, kGatherThreads, 0, stream, params);
}

template <class T>
cudaError_t launch_gather_weight(const Problem& problem, const GatherWeightPlan& plan, const Operands& operands,
                                 cudaStream_t stream) {
  const GatherWeightParams<T> params = gather_weight_params<T>(problem, plan, operands);
  const int threads = 32 * plan.warps_m * plan.warps_n * plan.warps_tap;
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, threads, plan.shared_bytes, stream, params);
  };
  cudaError_t error = cudaErrorInvalidValue;
  switch (plan.tile) {
    case 0: error = launch_with(gather_weight_kernel<GatherWeightConfig<T, 0>>); break;
    case 1: error = launch_with(gather_weight_kernel<GatherWeightConfig<T, 1>>); break;
    case 2: error = launch_with(gather_weight_kernel<GatherWeightConfig<T, 2>>); break;
    case 3: error = launch_with(gather_weight_kernel<GatherWeightConfig<T, 3>>); break;
    case 4: error = launch_with(gather_weight_kernel<GatherWeightConfig<T, 4>>); break;
  }
  if (error != cudaSuccess || plan.splits == 1) return error;
  return launch_reduce_splits<T>(problem, params, stream);
}

}  // namespace deconv
