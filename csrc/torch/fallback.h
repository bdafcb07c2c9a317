// Calls ATen for what the kernels do not serve: CPU, other devices, complex and other element types.
#pragma once

#include "torch/torch_glue.h"

namespace deconv {

Tensor aten_forward(const Problem& problem, const Tensor& input, const Tensor& weight,
                    const std::optional<Tensor>& bias, const ConvArgs& args);
Tensor aten_grad_input(const Problem& problem, const Tensor& grad_output, const Tensor& weight, const ConvArgs& args);
Tensor aten_grad_weight(const Problem& problem, const Tensor& input, const Tensor& grad_output, const ConvArgs& args);

// Warns once a process, at the first CUDA call that goes to ATen; `what` names its device and element type.
void warn_unserved(const std::string& what);

}  // namespace deconv
