// Arithmetic and assumptions that all planners share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"

namespace deconv {

// Clock under load in Hz, assumed for every GPU; an H200 reaches 1.98e9.
inline constexpr double kClock = 1.75e9;

inline constexpr int kSectorBytes = 32;  // memory moves whole sectors
inline constexpr int kReservedShared = 1 << 10;  // bytes of shared memory that CUDA reserves in each block
inline constexpr int64_t kWorkspaceRoom = 256;  // bytes; parts of a workspace begin at multiples

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
// Cuts an extent evenly into the fewest parts of at most `most`; returns the largest part.
inline int even_part(int64_t extent, int64_t most) { return ceil_div(extent, ceil_div(extent, most)); }
inline int power_of_two_at_least(int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}
// Lowers an estimate in ms that was fitted on small layers: other families estimate these too low. Chosen by hand.
inline double beside_others(double ms) { return ms - std::min(0.22 * ms, 0.006); }

inline int accumulator_size(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

}  // namespace deconv
