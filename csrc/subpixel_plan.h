// What the subpixel family's planner gives to its launcher.
#pragma once

#include <cstdint>
#include <memory>

namespace deconv {

struct Plan;

// The workspace: output, weight and bias in blocks (subpixel.h), those that the direction has and that do not lie so
// already, then the inner plan's.
struct SubpixelPlan {
  std::shared_ptr<const Plan> inner;  // of subpixel_problem
  bool columns = false;  // images of one pixel as columns of one image
  bool output_in_place = false, weight_in_place = false;
  bool rewrites_bias = false;
  int64_t output_at = 0, weight_at = 0, bias_at = 0, inner_at = 0;  // bytes
};

}  // namespace deconv
