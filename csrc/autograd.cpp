// Eager training on CUDA, recorded in C++.
//
// The stable ABI has no autograd of its own, and a step recorded by a Python autograd.Function costs some 30 µs. So
// deconv_ext/_autograd.py borrows ATen's node for plain tensors: it calls aten::convolution_overrideable, ATen's hook
// for convolutions that live outside it, and this file stands behind that hook. Where a backward is itself
// differentiated, traced or transformed, it goes through the operators, whose autograd.Functions know how.
#include "gpu.h"
#include "ops.h"

namespace deconv {
namespace {

// Answered by whoever would see a call next: the backend says yes, the watchers of Python's and functorch's keys no.
bool is_plain(const Tensor& first, const Tensor& second) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(first), torch::stable::detail::from(second)};
  check(torch_call_dispatcher("deconv::_is_plain", "", stack.data(), TORCH_ABI_VERSION), "deconv::_is_plain");
  return torch::stable::detail::to<bool>(stack[0]);
}

bool yes(Tensor, Tensor) { return true; }
bool no(Tensor, Tensor) { return false; }

bool carries_tangent(const Tensor& tensor) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  std::array<StableIValue, 2> stack{from(tensor), from(static_cast<int64_t>(0))};
  check(torch_call_dispatcher("aten::_unpack_dual", "", stack.data(), TORCH_ABI_VERSION), "aten::_unpack_dual");
  const Tensor primal = to<Tensor>(stack[0]), tangent = to<Tensor>(stack[1]);
  return tangent.defined();
}

// The kernel behind aten::convolution_overrideable on CUDA, where nothing but deconv_ext calls it.
Tensor overrideable(Tensor input, Tensor weight, std::optional<Tensor> bias, Sizes stride, Sizes padding,
                    Sizes dilation, bool transposed, Sizes output_padding, int64_t groups) {
  if (!transposed)
    throw InvalidArgument("aten::convolution_overrideable: deconv_ext serves transposed convolutions only");
  return forward(input, weight, bias, stride, padding, output_padding, groups, dilation);
}

// deconv::conv_transpose2d_backward above the backends, as a compiler's graph calls it. What is differentiated, watched
// or traced goes to Python (deconv_ext/_autograd.py), unread: its sizes may be symbolic.
std::tuple<Tensor, Tensor> backward_of_plain(Tensor grad_output, Tensor input, Tensor weight, Sizes stride,
                                             Sizes padding, Sizes output_padding, int64_t groups, Sizes dilation) {
  using torch::stable::detail::from;
  using torch::stable::detail::to;
  if (!aoti_torch_grad_mode_is_enabled() && is_plain(grad_output, input) && !carries_tangent(grad_output) &&
      !carries_tangent(input) && !carries_tangent(weight)) {
    return backward(grad_output, input, weight, stride, padding, output_padding, groups, dilation);
  }
  std::array<StableIValue, 8> stack{from(grad_output), from(input),          from(weight), from(stride),
                                    from(padding),     from(output_padding), from(groups), from(dilation)};
  check(torch_call_dispatcher("deconv::_recorded_backward", "", stack.data(), TORCH_ABI_VERSION),
        "deconv::_recorded_backward");
  return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
}

// The backward of the borrowed node. Where it is itself differentiated or watched, through the operators, which record.
std::tuple<Tensor, Tensor, Tensor> overrideable_backward(Tensor grad_output, Tensor input, Tensor weight, Sizes stride,
                                                         Sizes padding, Sizes dilation, bool transposed,
                                                         Sizes output_padding, int64_t groups,
                                                         std::vector<bool> wanted) {
  if (!transposed) throw InvalidArgument("aten::convolution_backward_overrideable: transposed convolutions only");
  const bool recorded = aoti_torch_grad_mode_is_enabled() || !is_plain(grad_output, input) ||
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

STABLE_TORCH_LIBRARY_FRAGMENT(deconv, library) { library.def("_is_plain(Tensor first, Tensor second) -> bool"); }
STABLE_TORCH_LIBRARY_IMPL(deconv, CompositeExplicitAutograd, library) {
  library.impl("_is_plain", TORCH_BOX(&deconv::yes));
}
STABLE_TORCH_LIBRARY_IMPL(deconv, Autograd, library) {
  library.impl("conv_transpose2d_backward", TORCH_BOX(&deconv::backward_of_plain));
}
STABLE_TORCH_LIBRARY_IMPL(deconv, Python, library) { library.impl("_is_plain", TORCH_BOX(&deconv::no)); }
STABLE_TORCH_LIBRARY_IMPL(deconv, FuncTorchDynamicLayerBackMode, library) {
  library.impl("_is_plain", TORCH_BOX(&deconv::no));
}
STABLE_TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("convolution_overrideable", TORCH_BOX(&deconv::overrideable));
}
STABLE_TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) {
  library.impl("convolution_backward_overrideable", TORCH_BOX(&deconv::overrideable_backward));
}
