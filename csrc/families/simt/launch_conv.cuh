// Launcher of simt's forward and grad_input.
#pragma once

#include "families/simt/conv.cuh"
#include "launch/correlation.cuh"
#include "launch/kernel_launch.cuh"

// instances: launch_simt_conv<T>(SimtConvPlan): float16, bfloat16, float32, float64
namespace deconv {

template <class T>
SimtConvParams<T> simt_conv_params(const Problem& problem, const SimtConvPlan& plan, const Operands& operands) {
  SimtConvParams<T> p;
  set_images<T>(p, problem, operands);
  set_weight<T>(p, problem, operands);
  p.plan = plan;
  p.plan.vector_source = plan.vector_source && is_aligned(p.source, 16);
  p.plan.vector_result = plan.vector_result && is_aligned(p.result, 16);
  return p;
}

template <class T>
cudaError_t launch_simt_conv(const Problem& problem, const SimtConvPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  const SimtConvParams<T> params = simt_conv_params<T>(problem, plan, operands);
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, kSimtThreads, plan.shared_bytes, stream, params);
  };
  switch (plan.lane_columns) {
    case 32: return launch_with(simt_conv_kernel<SimtConvConfig<T, 32>>);
    case 16: return launch_with(simt_conv_kernel<SimtConvConfig<T, 16>>);
    case 8: return launch_with(simt_conv_kernel<SimtConvConfig<T, 8>>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace deconv
