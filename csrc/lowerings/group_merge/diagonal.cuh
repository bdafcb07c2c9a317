// grad_weight of groups out of that of merged ones (merged.h). Nothing is computed: elements are bits.
#pragma once

#include <cstdint>

#include "core/divisor.h"
#include "device/primitives.cuh"

namespace deconv::merged {

inline constexpr int kDiagonalThreads = 256;

// A *run* is what lies together of an input channel: the weights of all output channels of its group, for one tap
// where channels are innermost, for all taps else. The merged groups' runs lie behind each other in the source; the
// result has of each input channel those of its own group.
template <class Bits>
struct DiagonalParams {
  const Bits* source;
  Bits* result;
  Divisor run;  // elements
  Divisor group_runs;  // of a group in the result
  Divisor merge;  // groups that are one
  int elements;  // of the result
};

// One thread an element of the result. It may be started early.
template <class Bits>
__global__ void __launch_bounds__(kDiagonalThreads) diagonal_kernel(const __grid_constant__ DiagonalParams<Bits> p) {
  const int element = static_cast<int>(blockIdx.x * kDiagonalThreads + threadIdx.x);
  const int run = p.run.quotient(element), group = p.merge.remainder(p.group_runs.quotient(run));
  const int64_t merged_run = static_cast<int64_t>(run) * p.merge.divisor + group;
  const int64_t at = merged_run * p.run.divisor + p.run.remainder(element);
  await_predecessors();
  if (element < p.elements) p.result[element] = p.source[at];
}

}  // namespace deconv::merged
