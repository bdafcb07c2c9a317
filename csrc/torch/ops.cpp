// The operators: schemas, and for each direction  describe -> plan -> allocate -> launch -> check.
//
// CUDA tensors of the four floating types run on this project's kernels; everything else goes to ATen, through the
// dispatcher, after the same checks. Autograd is in autograd.cpp and deconv_ext/_autograd.py; vmap, autocast and fake
// kernels are in deconv_ext/*.py.
#include "torch/ops.h"

#include "torch/device_call.h"
#include "torch/fallback.h"

namespace deconv {
namespace {

ConvArgs conv_args(const Sizes& stride, const Sizes& padding, const Sizes& output_padding, int64_t groups,
                   const Sizes& dilation) {
  return {stride, padding, output_padding, groups, dilation};
}

Problem describe_forward_call(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                              const ConvArgs& args) {
  check_alike("input", input, "weight", weight);
  if (bias) check_alike("input", input, "bias", *bias);
  return describe_forward(dtype_of(input), describe(input), describe(weight),
                          bias ? std::optional(describe(*bias).size) : std::nullopt, args);
}

Problem describe_grad_input_call(const Tensor& grad_output, const Tensor& weight, const Sizes& input_size,
                                 const ConvArgs& args) {
  check_alike("grad_output", grad_output, "weight", weight);
  return describe_grad_input(dtype_of(grad_output), describe(grad_output), describe(weight), input_size, args);
}

Problem describe_grad_weight_call(const Tensor& input, const Tensor& grad_output, const Sizes& kernel_size,
                                  const ConvArgs& args) {
  check_alike("input", input, "grad_output", grad_output);
  return describe_grad_weight(dtype_of(input), describe(input), describe(grad_output), kernel_size, args);
}

// The result if the weight has no output channels: empty, or a gradient of zeros.
Tensor zeros(const Problem& problem, const Tensor& like) {
  Tensor result = empty_strided(problem.result_sizes(), problem.result_strides(), like);
  return torch::stable::zero_(result);
}

}  // namespace

Tensor forward(Tensor input, Tensor weight, std::optional<Tensor> bias, Sizes stride, Sizes padding,
               Sizes output_padding, int64_t groups, Sizes dilation) {
  const ConvArgs args = conv_args(stride, padding, output_padding, groups, dilation);
  const Problem problem = describe_forward_call(input, weight, bias, args);
  if (!kernels_serve(problem.dtype, input)) return aten_forward(problem, input, weight, bias, args);
  if (problem.out_channels == 0) return zeros(problem, input);
  const Tensor contiguous_bias = bias ? torch::stable::contiguous(*bias) : Tensor();
  return run(problem, input,
             {input.data_ptr(), weight.data_ptr(), nullptr, bias ? contiguous_bias.data_ptr() : nullptr});
}

namespace {

// forward for eager calls that nothing watches or records. args: stride, padding, output_padding, dilation, groups. The
// dispatcher takes one list of integers from Python in half the time of four of SymInt.
Tensor plain_forward(Tensor input, Tensor weight, std::optional<Tensor> bias, Sizes args) {
  if (args.size() != 9) throw InvalidArgument("deconv::_forward: args must be 9 integers");
  const auto both = [&](int at) { return Sizes{args[at], args[at + 1]}; };
  return forward(input, weight, bias, both(0), both(2), both(4), args[8], both(6));
}

Tensor run_grad_input(const Problem& problem, const Tensor& grad_output, const Tensor& weight, const ConvArgs& args) {
  if (!kernels_serve(problem.dtype, grad_output)) return aten_grad_input(problem, grad_output, weight, args);
  if (problem.out_channels == 0) return zeros(problem, grad_output);
  return run(problem, grad_output, {nullptr, weight.data_ptr(), grad_output.data_ptr(), nullptr});
}

Tensor run_grad_weight(const Problem& problem, const Tensor& input, const Tensor& grad_output, const ConvArgs& args) {
  if (!kernels_serve(problem.dtype, input)) return aten_grad_weight(problem, input, grad_output, args);
  if (problem.out_channels == 0) return zeros(problem, input);
  return run(problem, input, {input.data_ptr(), nullptr, grad_output.data_ptr(), nullptr});
}

}  // namespace

Tensor grad_input(Tensor grad_output, Tensor weight, Sizes input_size, Sizes stride, Sizes padding,
                  Sizes output_padding, int64_t groups, Sizes dilation) {
  const ConvArgs args = conv_args(stride, padding, output_padding, groups, dilation);
  return run_grad_input(describe_grad_input_call(grad_output, weight, input_size, args), grad_output, weight, args);
}

Tensor grad_weight(Tensor input, Tensor grad_output, Sizes kernel_size, Sizes stride, Sizes padding,
                   Sizes output_padding, int64_t groups, Sizes dilation) {
  const ConvArgs args = conv_args(stride, padding, output_padding, groups, dilation);
  return run_grad_weight(describe_grad_weight_call(input, grad_output, kernel_size, args), input, grad_output, args);
}

std::tuple<Tensor, Tensor> backward(Tensor grad_output, Tensor input, Tensor weight, Sizes stride, Sizes padding,
                                    Sizes output_padding, int64_t groups, Sizes dilation) {
  const ConvArgs args = conv_args(stride, padding, output_padding, groups, dilation);
  describe_forward_call(input, weight, std::nullopt, args);  // refuses what neither gradient sees
  const Problem by_input = describe_grad_input_call(grad_output, weight, extent_of(input), args);
  const Problem by_weight = describe_grad_weight_call(input, grad_output, extent_of(weight), args);
  return {run_grad_input(by_input, grad_output, weight, args), run_grad_weight(by_weight, input, grad_output, args)};
}

namespace {

// Operands of each direction: (input, weight), (grad_output, weight) or (input, grad_output). size: input_size or
// kernel_size for the gradients, empty for forward.
std::string explain_call(Tensor first, Tensor second, std::optional<Tensor> bias, Sizes stride, Sizes padding,
                         Sizes output_padding, int64_t groups, Sizes dilation, std::string direction, Sizes size,
                         bool json) {
  const ConvArgs args = conv_args(stride, padding, output_padding, groups, dilation);
  Problem problem;
  if (direction == "forward") {
    problem = describe_forward_call(first, second, bias, args);
  } else if (direction == "grad_input") {
    problem = describe_grad_input_call(first, second, size, args);
  } else if (direction == "grad_weight") {
    problem = describe_grad_weight_call(first, second, size, args);
  } else {
    throw InvalidArgument("explain: direction must be 'forward', 'grad_input' or 'grad_weight', but got '" + direction +
                          "'");
  }
  return explain_on(problem, first, second, json);
}

// Raises what forward raises; launches, allocates and plans nothing.
bool serves_call(Tensor input, Tensor weight, std::optional<Tensor> bias, Sizes stride, Sizes padding,
                 Sizes output_padding, int64_t groups, Sizes dilation) {
  const ConvArgs args = conv_args(stride, padding, output_padding, groups, dilation);
  return plans_for(describe_forward_call(input, weight, bias, args).dtype, input);
}

}  // namespace
}  // namespace deconv

// SymInt where aten::conv_transpose2d has it. torch.ops takes a plain integer for `int[2]` only, so
// deconv_ext/_arguments.py makes pairs of integers for `SymInt[2]`.
#define DECONV_CONV_ARGS \
  "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1"

STABLE_TORCH_LIBRARY(deconv, library) {
  library.def("conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, " DECONV_CONV_ARGS ") -> Tensor");
  library.def("conv_transpose2d_grad_input(Tensor grad_output, Tensor weight, SymInt[2] input_size, " DECONV_CONV_ARGS
              ") -> Tensor");
  library.def("conv_transpose2d_grad_weight(Tensor input, Tensor grad_output, SymInt[2] kernel_size, " DECONV_CONV_ARGS
              ") -> Tensor");
  library.def("conv_transpose2d_backward(Tensor grad_output, Tensor input, Tensor weight, " DECONV_CONV_ARGS
              ") -> (Tensor grad_input, Tensor grad_weight)");
  library.def("explain(Tensor first, Tensor second, Tensor? bias=None, " DECONV_CONV_ARGS
              ", str direction='forward', int[] size=[], bool json=False) -> str");
  library.def("_forward(Tensor input, Tensor weight, Tensor? bias, int[] args) -> Tensor");
  library.def("_serves(Tensor input, Tensor weight, Tensor? bias=None, " DECONV_CONV_ARGS ") -> bool");
  library.def("autotune(int candidates) -> int");
  library.def("has_kernels(int device) -> bool");
  library.def("build_info() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(deconv, CompositeExplicitAutograd, library) {
  library.impl("conv_transpose2d", TORCH_BOX(&deconv::forward));
  library.impl("conv_transpose2d_grad_input", TORCH_BOX(&deconv::grad_input));
  library.impl("conv_transpose2d_grad_weight", TORCH_BOX(&deconv::grad_weight));
  library.impl("conv_transpose2d_backward", TORCH_BOX(&deconv::backward));
  library.impl("_forward", TORCH_BOX(&deconv::plain_forward));
  library.impl("explain", TORCH_BOX(&deconv::explain_call));
  library.impl("_serves", TORCH_BOX(&deconv::serves_call));
  library.impl("autotune", TORCH_BOX(&deconv::set_autotune_candidates));
  library.impl("has_kernels", TORCH_BOX(&deconv::has_kernels));
  library.impl("build_info", TORCH_BOX(&deconv::build_info));
}
