// The arithmetic and the assumptions that all planners share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"

namespace deconv {

// Hz under load, assumed for every GPU; ncu saw an H200 at up to 1.98e9.
inline constexpr double kClock = 1.75e9;

inline constexpr int kSectorBytes = 32;  // of memory, that moves at once
inline constexpr int kReservedShared = 1 << 10;  // bytes of shared memory that each block takes for itself
inline constexpr int64_t kWorkspaceRoom = 256;  // bytes: parts of a workspace begin at multiples

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
// Of an extent cut evenly into as few parts of at most `most` as do.
inline int even_part(int64_t extent, int64_t most) { return ceil_div(extent, ceil_div(extent, most)); }
inline int power_of_two_at_least(int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}
// An estimate fitted to timings of small layers, for which those of older families are low. By hand.
inline double beside_others(double ms) { return ms - std::min(0.22 * ms, 0.006); }

inline int accumulator_size(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

}  // namespace deconv
