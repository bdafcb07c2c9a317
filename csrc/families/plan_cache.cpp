#include "families/plan_cache.h"

#include <utility>

namespace deconv {

const Plan& PlanMemory::find(const Problem& problem, int device_index, const Device& device,
                             const PlannerOptions& options) {
  const ProblemKey key = key_of(problem, device_index);
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  ++planned_;
  Plan plan = make_plan(problem, device, options);
  if (plans_.size() == kMostPlans) plans_.clear();
  return plans_.emplace(key, std::move(plan)).first->second;
}

}  // namespace deconv
