// What the subpixel family's planner gives to its launcher.
#pragma once

#include <cstdint>
#include <memory>

namespace deconv {

struct Plan;

// The workspace: output, weight and bias in blocks (subpixel.h), those that the direction has and that do not lie so
// already, nor are stored elsewhere, then the inner plan's.
struct SubPixelPlan {
  static constexpr const char* kFamily = "sub_pixel";

  std::shared_ptr<const Plan> inner;  // of sub_pixel_problem
  bool columns = false;  // images of one pixel as columns of one image
  bool output_in_place = false, weight_in_place = false;
  // Forward: the inner plan stores the output's blocks where they belong, and reads weight and bias where they lie.
  bool stores_plain = false;
  bool rewrites_bias = false;
  int64_t output_at = 0, weight_at = 0, bias_at = 0, inner_at = 0;  // bytes
};

}  // namespace deconv
