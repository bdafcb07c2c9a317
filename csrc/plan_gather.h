// The gather family's planners (plan.h calls them) and the arithmetic they share.
#pragma once

#include <algorithm>

#include "plan.h"

namespace deconv {

Plan plan_gather_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
Plan plan_gather_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered);
std::string describe(const GatherConvPlan& plan, DType dtype);
std::string describe(const GatherWeightPlan& plan, DType dtype);

// Hz under load, assumed for every GPU; ncu saw an H200 at up to 1.98e9.
inline constexpr double kClock = 1.75e9;
// Shared memory that lets two blocks share a multiprocessor; each also takes 1 KiB for itself.
inline int gather_shared_bytes(const Device& device) { return device.shared_bytes_per_block / 2 - (1 << 10); }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }
inline int power_of_two_at_least(int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}
inline size_t accumulator_size(DType dtype) { return dtype == DType::kFloat64 ? 8 : 4; }

}  // namespace deconv
