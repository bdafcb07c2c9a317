// Eager training on CUDA, recorded in C++.
//
// The stable ABI has no autograd, and a Python autograd.Function costs some 30 µs a step. So deconv_ext/_autograd.py
// borrows ATen's node for plain tensors: it calls aten::convolution_overrideable, ATen's hook for convolutions outside
// it, and this file serves that hook. A backward that is itself differentiated, traced or transformed goes through the
// operators, whose autograd.Functions record it.
#include "torch/device_call.h"
#include "torch/ops.h"

namespace deconv {
namespace {

// Asks whoever would see a call next. The backend says yes. The keys of Python and functorch say no, and so do those
// that resolve an operand before the backend reads it (negated and conjugated views, zeros without memory).
bool is_plain(const Tensor& first, const Tensor& second, const Tensor& third) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(first), from(second), from(third)};
  check(torch_call_dispatcher("deconv::_is_plain", "", stack.data(), TORCH_ABI_VERSION), "deconv::_is_plain");
  return torch::stable::detail::to<bool>(stack[0]);
}

bool yes(Tensor, Tensor, Tensor) { return true; }
bool no(Tensor, Tensor, Tensor) { return false; }

bool carries_tangent(const Tensor& tensor) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 2> stack{from(tensor), from(static_cast<int64_t>(0))};
  check(torch_call_dispatcher("aten::_unpack_dual", "", stack.data(), TORCH_ABI_VERSION), "aten::_unpack_dual");
  const Tensor primal = to<Tensor>(stack[0]), tangent = to<Tensor>(stack[1]);
  return tangent.defined();
}

// The kernel behind aten::convolution_overrideable on CUDA, which only deconv_ext calls there.
Tensor overrideable(Tensor input, Tensor weight, std::optional<Tensor> bias, Sizes stride, Sizes padding,
                    Sizes dilation, bool transposed, Sizes output_padding, int64_t groups) {
  if (!transposed)
    throw InvalidArgument("aten::convolution_overrideable: deconv_ext serves transposed convolutions only");
  return forward(input, weight, bias, stride, padding, output_padding, groups, dilation);
}

// The backward of the borrowed node. If it is itself differentiated or watched, it calls the operators, which record.
std::tuple<Tensor, Tensor, Tensor> overrideable_backward(Tensor grad_output, Tensor input, Tensor weight, Sizes stride,
                                                         Sizes padding, Sizes dilation, bool transposed,
                                                         Sizes output_padding, int64_t groups,
                                                         std::vector<bool> wanted) {
  if (!transposed) throw InvalidArgument("aten::convolution_backward_overrideable: transposed convolutions only");
  const bool recorded = aoti_torch_grad_mode_is_enabled() || !is_plain(grad_output, input, weight) ||
                        carries_tangent(grad_output);
  Tensor by_input, by_weight, by_bias;
  if (wanted[0]) {
    by_input = recorded ? call_aten("deconv::conv_transpose2d_grad_input", "", grad_output, weight, extent_of(input),
                                    stride, padding, output_padding, groups, dilation)
                        : grad_input(grad_output, weight, extent_of(input), stride, padding, output_padding, groups,
                                     dilation);
  }
  if (wanted[1]) {
    by_weight = recorded ? call_aten("deconv::conv_transpose2d_grad_weight", "", input, grad_output, extent_of(weight),
                                     stride, padding, output_padding, groups, dilation)
                         : grad_weight(input, grad_output, extent_of(weight), stride, padding, output_padding, groups,
                                       dilation);
  }
  if (wanted[2]) {
    by_bias = call_aten("aten::sum", "dim_IntList", grad_output, std::optional(Sizes{0, 2, 3}), false,
                        std::optional<torch::headeronly::ScalarType>());
  }
  return {by_input, by_weight, by_bias};
}

}  // namespace
}  // namespace deconv

STABLE_TORCH_LIBRARY_FRAGMENT(deconv, library) {
  library.def("_is_plain(Tensor first, Tensor second, Tensor third) -> bool");
}
STABLE_TORCH_LIBRARY_IMPL(deconv, CompositeExplicitAutograd, library) {
  library.impl("_is_plain", TORCH_BOX(&deconv::yes));
}
#define DECONV_NOT_PLAIN(KEY) \
  STABLE_TORCH_LIBRARY_IMPL(deconv, KEY, library) { library.impl("_is_plain", TORCH_BOX(&deconv::no)); }
DECONV_NOT_PLAIN(Python)
DECONV_NOT_PLAIN(FuncTorchDynamicLayerBackMode)
DECONV_NOT_PLAIN(Negative)
DECONV_NOT_PLAIN(Conjugate)
DECONV_NOT_PLAIN(ZeroTensor)
#undef DECONV_NOT_PLAIN
STABLE_TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("convolution_overrideable", TORCH_BOX(&deconv::overrideable));
}
STABLE_TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) {
  library.impl("convolution_backward_overrideable", TORCH_BOX(&deconv::overrideable_backward));
}
