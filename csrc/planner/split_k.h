// How a sum over many steps is divided among blocks, whose partial sums a kernel after adds up
// (lowerings/split_k_reduce.cuh).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "planner/plan.h"

namespace deconv {

struct SplitK {
  int64_t steps_per_split;  // the last one may have fewer
  int splits;
};

struct SplitLimits {
  int64_t tiles;                   // blocks of one split
  int64_t steps;                   // of the whole sum
  int64_t most_splits;             // whose sums the workspace holds
  int64_t most_steps = INT64_MAX;  // of a split
  int64_t least_steps = 1;         // of a split, where there are so many
};

// So that their partial sums fit into the workspace.
inline int64_t most_splits(int64_t partial_bytes) {
  return std::max<int64_t>(1, kWorkspaceLimit / std::max<int64_t>(1, partial_bytes));
}

// At most `splits` splits, none of them empty; one of an empty sum.
SplitK split_evenly(int64_t steps, int64_t splits);

// One split, or as many as fill 1 to `waves` waves of `at_once` blocks: what costs least. Nothing if sums as
// short as most_steps need more than most_splits, or more than 2^27 blocks.
std::optional<SplitK> choose_splits(const SplitLimits& limits, int64_t at_once, int waves,
                                    const std::function<double(const SplitK&)>& cost);

// Tensor cores truncate their running sum instead of rounding it; a split's sum stays so short that this does not show
// beside the rounding of the operands. Three TF32 products carry their sums out of the tensor cores at every stage.
inline int64_t most_split_pixels(const Problem& problem) {
  if (element_size(problem.dtype) == 2) return 1 << 16;
  return problem.allow_tf32 ? 1 << 15 : 1 << 30;
}

// Of adding up the sums of several splits, so many bytes of the workspace; fitted to timings on an H200.
constexpr double add_splits_ms(int64_t bytes) {
  constexpr double kLaunchMs = 1.3e-3, kMsPerByte = 0.6e-9;
  return bytes > 0 ? kLaunchMs + kMsPerByte * bytes : 0;
}

}  // namespace deconv
