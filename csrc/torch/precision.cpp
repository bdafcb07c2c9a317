// The switch lives in at::Context, out of the stable ABI's reach, but Python can read it. So this asks an operator:
// its kernel is deconv_ext/_ops.py's on BackendSelect, the key of operators without tensors, and where only the shared
// object was loaded, `no` below it. The answer is never kept, for the user may turn the switch at any time.
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
