// Plan of sub_pixel.
#pragma once

#include <cstdint>
#include <memory>

namespace deconv {

struct Plan;

// Workspace: output, weight and bias in blocks (sub_pixel.h), without those that the direction lacks, that are in
// blocks already or that are stored in place; then the inner plan's.
struct SubPixelPlan {
  static constexpr const char* kFamily = "sub_pixel";

  std::shared_ptr<const Plan> inner;  // of sub_pixel_problem, or of sub_pixel_stored_problem
  bool columns = false;  // images of one pixel count as columns of one image
  bool output_in_place = false, weight_in_place = false;
  // Forward: the inner plan stores the output's blocks in place, and reads weight and bias in place.
  bool stores_plain = false;
  bool rewrites_bias = false;
  int64_t output_at = 0, weight_at = 0, bias_at = 0, inner_at = 0;  // byte offsets
};

}  // namespace deconv
