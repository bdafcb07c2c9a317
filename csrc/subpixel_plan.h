// What the subpixel family's planner gives to its launcher.
#pragma once

#include <cstdint>
#include <memory>

namespace deconv {

struct Plan;

// The workspace: output, weight and bias in blocks (subpixel.h), those that the direction has, then the inner plan's.
struct SubpixelPlan {
  std::shared_ptr<const Plan> inner;  // of subpixel_problem
  int64_t output_at = 0, weight_at = 0, bias_at = 0, inner_at = 0;  // bytes
};

}  // namespace deconv
