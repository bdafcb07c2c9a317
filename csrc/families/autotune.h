// Plans chosen by time instead of by arithmetic, where the user asks for that.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/problem_key.h"
#include "planner/plan.h"

namespace deconv {

// Runs a plan once and says how long that took, ms; none if it cannot run now (no memory for its workspace).
using TimePlan = std::function<std::optional<double>(const Plan&)>;

// Times the `most` candidates with the least estimates and takes the quickest. The plan of make_plan is always among
// them, and stays unless another is quicker by more than the noise.
TunedPlan autotune(const Problem& problem, const Device& device, const PlannerOptions& options, int64_t most,
                   const TimePlan& time);

// The process's switch for it, and the plans chosen so far; for several threads at once.
class Autotuner {
 public:
  static constexpr int64_t kMostCandidates = 100000;  // more than any problem has

  // How many candidates are timed; 0, as at first: none, plans are chosen by arithmetic.
  int64_t candidates() const { return candidates_; }
  // Returns the number before. Another number than the last one above 0 forgets all choices. Raises InvalidArgument.
  int64_t set_candidates(int64_t candidates);

  std::shared_ptr<const TunedPlan> find(const Problem& problem, int device_index) const;
  // Unless another thread was first; returns what is kept.
  std::shared_ptr<const TunedPlan> keep(const Problem& problem, int device_index, TunedPlan plan);

 private:
  std::atomic<int64_t> candidates_{0};
  mutable std::mutex mutex_;  // of what follows
  int64_t last_above_zero_ = 0;
  std::unordered_map<ProblemKey, std::shared_ptr<const TunedPlan>, ProblemKeyHash> plans_;
};

}  // namespace deconv
