#include "torch/fallback.h"

#include <atomic>

namespace deconv {
namespace {

Sizes both(const Sizes& values) { return {values.front(), values.back()}; }

// aten::convolution_backward for one gradient; the operand that it does not read is uninitialised.
Tensor convolution_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const ConvArgs& args,
                            int wanted) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  const bool mask[3] = {wanted == 0, wanted == 1, false};
  std::array<StableIValue, 11> stack{from(grad_output),
                                     from(input),
                                     from(weight),
                                     from(std::nullopt),
                                     from(both(args.stride)),
                                     from(both(args.padding)),
                                     from(both(args.dilation)),
                                     from(true),
                                     from(both(args.output_padding)),
                                     from(args.groups),
                                     from(torch::headeronly::HeaderOnlyArrayRef<bool>(mask, 3))};
  check(torch_call_dispatcher("aten::convolution_backward", "", stack.data(), TORCH_ABI_VERSION),
        "aten::convolution_backward");
  const std::array<Tensor, 3> gradients{to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2])};
  return gradients[wanted];
}

Tensor with_batch(const Problem& problem, const Tensor& tensor) {
  return problem.unbatched ? torch::stable::unsqueeze(tensor, 0) : tensor;
}

Sizes vector_of(const std::array<int64_t, 4>& values) { return {values.begin(), values.end()}; }

}  // namespace

Tensor aten_forward(const Problem&, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                    const ConvArgs& args) {
  return call_aten("aten::conv_transpose2d", "input", input, weight, bias, args.stride, args.padding,
                   args.output_padding, args.groups, args.dilation);
}

Tensor aten_grad_input(const Problem& problem, const Tensor& grad_output, const Tensor& weight, const ConvArgs& args) {
  const Tensor input = empty_strided(vector_of(problem.x.size), vector_of(problem.x.stride), grad_output);
  const Tensor result = convolution_backward(with_batch(problem, grad_output), input, weight, args, 0);
  return problem.unbatched ? torch::stable::squeeze(result, 0) : result;
}

Tensor aten_grad_weight(const Problem& problem, const Tensor& input, const Tensor& grad_output, const ConvArgs& args) {
  const Tensor weight = empty_strided(vector_of(problem.w.size), vector_of(problem.w.stride), input);
  return convolution_backward(with_batch(problem, grad_output), with_batch(problem, input), weight, args, 1);
}

// Calls an operator with a Python kernel on BackendSelect, in deconv_ext/_ops.py: Python's filters see the warning, and
// eager calls, which do not come here, give the same one.
void warn_unserved(const std::string& what) {
  std::array<StableIValue, 1> stack{torch::stable::detail::from(what)};
  check(torch_call_dispatcher("deconv::_warn_unserved", "", stack.data(), TORCH_ABI_VERSION), "deconv::_warn_unserved");
}

namespace {

// The operator's kernel if only the shared object is loaded.
void warn_without_python(std::string what) {
  static std::atomic_flag done = ATOMIC_FLAG_INIT;
  if (done.test_and_set()) return;
  aoti_torch_warn(__func__, __FILE__, __LINE__, ("deconv_ext has no kernels for " + what + "; ATen serves").c_str());
}

}  // namespace
}  // namespace deconv

STABLE_TORCH_LIBRARY_FRAGMENT(deconv, library) { library.def("_warn_unserved(str what) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(deconv, CompositeExplicitAutograd, library) {
  library.impl("_warn_unserved", TORCH_BOX(&deconv::warn_without_python));
}
