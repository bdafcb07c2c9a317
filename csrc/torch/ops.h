// The three directions as functions of tensors: below autograd, on this project's kernels or ATen's.
#pragma once

#include <tuple>

#include "torch/torch_glue.h"

namespace deconv {

Tensor forward(Tensor input, Tensor weight, std::optional<Tensor> bias, Sizes stride, Sizes padding,
               Sizes output_padding, int64_t groups, Sizes dilation);
Tensor grad_input(Tensor grad_output, Tensor weight, Sizes input_size, Sizes stride, Sizes padding,
                  Sizes output_padding, int64_t groups, Sizes dilation);
Tensor grad_weight(Tensor input, Tensor grad_output, Sizes kernel_size, Sizes stride, Sizes padding,
                   Sizes output_padding, int64_t groups, Sizes dilation);

// grad_input and grad_weight.
std::tuple<Tensor, Tensor> backward(Tensor grad_output, Tensor input, Tensor weight, Sizes stride, Sizes padding,
                                    Sizes output_padding, int64_t groups, Sizes dilation);

}  // namespace deconv
