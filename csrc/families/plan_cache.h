// The plans of the problems met so far. A plan is arithmetic on the problem and the device alone, so it may be kept:
// the same layers come again at every step, and some planners take hundreds of µs.
#pragma once

#include <unordered_map>

#include "core/problem_key.h"
#include "planner/plan.h"

namespace deconv {

// Not for several threads at once: each has its own.
class PlanMemory {
 public:
  // The plan of make_plan with these options. `device_index` stands for `device`, whose facts never change. Valid until
  // the next call.
  const Plan& find(const Problem& problem, int device_index, const Device& device, const PlannerOptions& options);

  int64_t planned() const { return planned_; }  // calls that were not remembered
  int64_t remembered() const { return static_cast<int64_t>(plans_.size()); }

 private:
  static constexpr size_t kMostPlans = 1024;  // then all are forgotten

  std::unordered_map<ProblemKey, Plan, ProblemKeyHash> plans_;
  int64_t planned_ = 0;
};

}  // namespace deconv
