// Extracts the groups' grad_weight, the diagonal blocks, from that of merged groups (group_merge.h). Copies bits.
#pragma once

#include <cstdint>

#include "core/divisor.h"
#include "device/primitives.cuh"

namespace deconv::group_merge {

inline constexpr int kDiagonalThreads = 256;

// A *run* is what is adjacent of an input channel: the weights of all output channels of its group, for one tap if
// channels are innermost, otherwise for all taps. In the source the runs of the merged groups follow each other; the
// result has, for each input channel, the run of its own group.
template <class Bits>
struct DiagonalParams {
  const Bits* source;
  Bits* result;
  Divisor run;  // elements
  Divisor group_runs;  // of a group in the result
  Divisor merge;  // groups merged into one
  int elements;  // of the result
};

// One thread an element of the result. May start early: it awaits the kernel before.
template <class Bits>
__global__ void __launch_bounds__(kDiagonalThreads) diagonal_kernel(const __grid_constant__ DiagonalParams<Bits> p) {
  const int element = static_cast<int>(blockIdx.x * kDiagonalThreads + threadIdx.x);
  const int run = p.run.quotient(element), group = p.merge.remainder(p.group_runs.quotient(run));
  const int64_t merged_run = static_cast<int64_t>(run) * p.merge.divisor + group;
  const int64_t at = merged_run * p.run.divisor + p.run.remainder(element);
  await_predecessors();
  if (element < p.elements) p.result[element] = p.source[at];
}

}  // namespace deconv::group_merge
