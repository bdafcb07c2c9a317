// Launcher of simt's grad_weight: the kernel, then the sum of splits.
#pragma once

#include "families/simt/wgrad.cuh"
#include "launch/kernel_launch.cuh"
#include "launch/weight_gradient.cuh"
#include "lowerings/split_k_reduce.cuh"

// instances: launch_simt_wgrad<T>(SimtWgradPlan): float16, bfloat16, float32, float64
namespace deconv {

template <class T>
SimtWgradParams<T> simt_wgrad_params(const Problem& problem, const SimtWgradPlan& plan, const Operands& operands) {
  SimtWgradParams<T> p;
  set_weight_gradient<T>(p, problem, operands);
  p.partial = plan.splits > 1 ? static_cast<AccumulatorOf<T>*>(operands.workspace) : nullptr;
  p.plan = plan;
  return p;
}

template <class T>
cudaError_t launch_simt_wgrad(const Problem& problem, const SimtWgradPlan& plan, const Operands& operands,
                              cudaStream_t stream) {
  const SimtWgradParams<T> params = simt_wgrad_params<T>(problem, plan, operands);
  const int threads = 32 * plan.warps_m * plan.warps_n * plan.warps_tap;
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, threads, plan.shared_bytes, stream, params);
  };
  cudaError_t error = cudaErrorInvalidValue;
  switch (plan.tile) {
    case 0: error = launch_with(simt_wgrad_kernel<SimtWgradConfig<T, 0>>); break;
    case 1: error = launch_with(simt_wgrad_kernel<SimtWgradConfig<T, 1>>); break;
    case 2: error = launch_with(simt_wgrad_kernel<SimtWgradConfig<T, 2>>); break;
    case 3: error = launch_with(simt_wgrad_kernel<SimtWgradConfig<T, 3>>); break;
    case 4: error = launch_with(simt_wgrad_kernel<SimtWgradConfig<T, 4>>); break;
  }
  if (error != cudaSuccess || plan.splits == 1) return error;
  return launch_add_splits<T>(problem, params, plan.splits, params.channels_m, params.channels_n, stream,
                              Start::kAfter);
}

}  // namespace deconv
