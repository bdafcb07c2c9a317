// torch's switch for TF32, which the stable ABI cannot read.
#pragma once

namespace deconv {

// True if torch lets float32 convolutions use TF32 at this moment; false if deconv_ext's Python part is not loaded.
bool tf32_allowed();

}  // namespace deconv
