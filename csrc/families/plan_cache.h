// Plans of the problems met so far. A plan depends on the problem and the device alone, and some planners take hundreds
// of µs, so each layer is planned once.
#pragma once

#include <unordered_map>

#include "core/problem_key.h"
#include "planner/plan.h"

namespace deconv {

// Not thread-safe: each thread has its own.
class PlanMemory {
 public:
  // Returns make_plan's plan with these options, valid until the next call. `device_index` stands for `device`, which
  // never changes.
  const Plan& find(const Problem& problem, int device_index, const Device& device, const PlannerOptions& options);

  int64_t planned() const { return planned_; }  // calls that found no plan here
  int64_t remembered() const { return static_cast<int64_t>(plans_.size()); }

 private:
  static constexpr size_t kMostPlans = 1024;  // then all are dropped

  std::unordered_map<ProblemKey, Plan, ProblemKeyHash> plans_;
  int64_t planned_ = 0;
};

}  // namespace deconv
