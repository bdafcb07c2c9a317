// Divides a long sum among blocks. A kernel after them adds their partial sums (lowerings/split_k_reduce.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "planner/plan.h"

namespace deconv {

struct SplitK {
  int64_t steps_per_split;  // the last split may have fewer
  int splits;
};

struct SplitLimits {
  int64_t tiles;                   // blocks of one split
  int64_t steps;                   // of the whole sum
  int64_t most_splits;  // whose partial sums fit into the workspace
  int64_t most_steps = INT64_MAX;  // of a split
  int64_t least_steps = 1;  // of a split, if the sum has that many
};

// The most splits whose partial sums fit into the workspace.
inline int64_t most_splits(int64_t partial_bytes) {
  return std::max<int64_t>(1, kWorkspaceLimit / std::max<int64_t>(1, partial_bytes));
}

// At most `splits` splits. None is empty, except the one of an empty sum.
SplitK split_evenly(int64_t steps, int64_t splits);

// Chooses one split, or as many as fill 1 to `waves` waves of `at_once` blocks, whichever costs least. Returns nothing
// if most_steps requires more than most_splits, or if there are more than 2^27 blocks.
std::optional<SplitK> choose_splits(const SplitLimits& limits, int64_t at_once, int waves,
                                    const std::function<double(const SplitK&)>& cost);

// Tensor cores truncate their running sum. These limits keep that error below the rounding error of the operands. In
// tf32x3, sums leave the tensor cores after every stage.
inline int64_t most_split_pixels(const Problem& problem) {
  if (element_size(problem.dtype) == 2) return 1 << 16;
  return problem.allow_tf32 ? 1 << 15 : 1 << 30;
}

// ms to add the partial sums of all splits; fitted to timings on an H200.
constexpr double add_splits_ms(int64_t bytes) {
  constexpr double kLaunchMs = 1.3e-3, kMsPerByte = 0.6e-9;
  return bytes > 0 ? kLaunchMs + kMsPerByte * bytes : 0;
}

}  // namespace deconv
