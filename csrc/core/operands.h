// Device pointers of one call.
#pragma once

namespace deconv {

// `result`: output, grad_input or grad_weight, by direction. The operands are the other tensors.
struct Operands {
  const void* x = nullptr;     // input (forward, grad_weight)
  const void* w = nullptr;     // weight (forward, grad_input)
  const void* y = nullptr;     // grad_output (grad_input, grad_weight)
  const void* bias = nullptr;  // forward, optional
  void* result = nullptr;
  void* workspace = nullptr;   // Plan::workspace_bytes
};

}  // namespace deconv
