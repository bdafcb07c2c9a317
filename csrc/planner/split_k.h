// How a sum over many steps is divided among blocks, whose partial sums a kernel after adds up
// (lowerings/split_k_reduce.cuh).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

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

// At most `splits` splits, none of them empty.
SplitK split_evenly(int64_t steps, int64_t splits);

// One split, or as many as fill 1 to `waves` waves of `at_once` blocks: what costs least. Nothing if sums as
// short as most_steps need more than most_splits, or more than 2^27 blocks.
std::optional<SplitK> choose_splits(const SplitLimits& limits, int64_t at_once, int waves,
                                    const std::function<double(const SplitK&)>& cost);

}  // namespace deconv
