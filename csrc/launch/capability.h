// What the kernels of this build were compiled for.
#pragma once

namespace deconv {

// Compute capability, 10 * major + minor, of the code that the current device runs; 0 if this build has none for it.
int kernels_capability();

}  // namespace deconv
