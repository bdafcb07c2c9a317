// What the merged family's planner gives to its launcher.
#pragma once

#include <cstdint>
#include <memory>

namespace deconv {

struct Plan;

// The workspace: grad_weight of the merged groups (merged.h), then the inner plan's.
struct GroupMergePlan {
  static constexpr const char* kFamily = "group_merge";

  std::shared_ptr<const Plan> inner;  // of merged_problem
  int64_t merge = 1;  // groups that are one
  int64_t inner_at = 0;  // bytes
};

}  // namespace deconv
