// Plan of group_merge.
#pragma once

#include <cstdint>
#include <memory>

namespace deconv {

struct Plan;

// Workspace: the merged grad_weight (group_merge.h), then the inner plan's.
struct GroupMergePlan {
  static constexpr const char* kFamily = "group_merge";

  std::shared_ptr<const Plan> inner;  // of merged_problem
  int64_t merge = 1;  // groups computed as one
  int64_t inner_at = 0;  // byte offset
};

}  // namespace deconv
