// The launchers: plan, problem and pointers in, kernels on the caller's stream; no torch.
#pragma once

#include <cuda_runtime_api.h>

#include "plan.h"

namespace deconv {

// Device pointers of one call; `result` is output, grad_input or grad_weight by direction, the operands the others.
struct Operands {
  const void* x = nullptr;     // input (forward, grad_weight)
  const void* w = nullptr;     // weight (forward, grad_input)
  const void* y = nullptr;     // grad_output (grad_input, grad_weight)
  const void* bias = nullptr;  // forward, optional
  void* result = nullptr;
  void* workspace = nullptr;   // Plan::workspace_bytes
};

cudaError_t launch(const Problem& problem, const Plan& plan, const Operands& operands, cudaStream_t stream);

// Whether the current device can run the kernels of this build.
bool kernels_load();

// One per family and direction; instantiated per element type in launch/*.cu.
template <class T>
cudaError_t launch_gather_conv(const Problem& problem, const GatherConvPlan& plan, const Operands& operands,
                               cudaStream_t stream);
template <class T>
cudaError_t launch_gather_weight(const Problem& problem, const GatherWeightPlan& plan, const Operands& operands,
                                 cudaStream_t stream);

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwisePlanesPlan& plan, const Operands& operands,
                             cudaStream_t stream);
template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseChannelsPlan& plan, const Operands& operands,
                             cudaStream_t stream);

template <class T, int kParts>  // 2: float32 split into two TF32 parts
cudaError_t launch_hopper_conv(const Problem& problem, const HopperConvPlan& plan, const Operands& operands,
                               cudaStream_t stream);

}  // namespace deconv
