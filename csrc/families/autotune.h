// Plans chosen by timing instead of by estimate, on request.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/problem_key.h"
#include "planner/plan.h"

namespace deconv {

// Runs a plan once and returns its time in ms; none if it cannot run now (no memory for its workspace).
using TimePlan = std::function<std::optional<double>(const Plan&)>;

// Times the `most` candidates with the lowest estimates and returns the fastest. Includes make_plan's plan, and keeps
// it unless another is faster by more than the noise.
TunedPlan autotune(const Problem& problem, const Device& device, const PlannerOptions& options, int64_t most,
                   const TimePlan& time);

// The switch of the process, and the plans chosen so far; thread-safe.
class Autotuner {
 public:
  static constexpr int64_t kMostCandidates = 100000;  // more than any problem has

  // Candidates to time; 0 (the initial value): none, plans are chosen by estimate.
  int64_t candidates() const { return candidates_; }
  // Returns the previous number. A change of the last number above 0 clears all choices. Raises InvalidArgument.
  int64_t set_candidates(int64_t candidates);

  std::shared_ptr<const TunedPlan> find(const Problem& problem, int device_index) const;
  // Keeps a plan unless another thread was first; returns the one kept.
  std::shared_ptr<const TunedPlan> keep(const Problem& problem, int device_index, TunedPlan plan);

 private:
  std::atomic<int64_t> candidates_{0};
  mutable std::mutex mutex_;  // guards the members below
  int64_t last_above_zero_ = 0;
  std::unordered_map<ProblemKey, std::shared_ptr<const TunedPlan>, ProblemKeyHash> plans_;
};

}  // namespace deconv
