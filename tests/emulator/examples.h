// A kernel of the kind that csrc/ has, and what may be wrong with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace deconv {

enum class Mistake {
  kNone,
  kNoFence,
  kNoSync,
  kNoWait,
  kReadsBulkEarly,
  kOverwritesEarly,
  kReleasesEarly,
  kReadsEarly,
  kDeadlock,
  kExpectsTooMuch,
  kMisaligned,
  kOutside,
  kUnwritten,
  kBehindArray,
  kTooManyRegisters,
};

// source: 96 rows of 32 words of float32; copy: as many, which a kernel before fills; result: 64 x 32, the first 64
// rows times the others.
cudaError_t launch_example(Mistake mistake, const uint32_t* source, uint32_t* copy, float* result);

}  // namespace deconv
