// What the kernels of this build were compiled for.
#pragma once

namespace deconv {

// The compute capability, 10 * major + minor, that the kernels which the current device runs were compiled for; 0 where
// this build has none for it.
int kernels_capability();

}  // namespace deconv
