// The switch is in at::Context, which Python can read and the stable ABI cannot. So this asks an operator. Its kernel
// is Python, in deconv_ext/_ops.py on BackendSelect, the key of operators without tensors; if only the shared object is
// loaded, it is `no` below. The answer is not cached, because the user may turn the switch at any time.
#include "torch/precision.h"

#include "torch/torch_glue.h"

namespace deconv {
namespace {

bool no() { return false; }

}  // namespace

bool tf32_allowed() {
  std::array<StableIValue, 1> stack{};
  check(torch_call_dispatcher("deconv::_tf32_allowed", "", stack.data(), TORCH_ABI_VERSION), "deconv::_tf32_allowed");
  return torch::stable::detail::to<bool>(stack[0]);
}

}  // namespace deconv

STABLE_TORCH_LIBRARY_FRAGMENT(deconv, library) { library.def("_tf32_allowed() -> bool"); }
STABLE_TORCH_LIBRARY_IMPL(deconv, CompositeExplicitAutograd, library) {
  library.impl("_tf32_allowed", TORCH_BOX(&deconv::no));
}
