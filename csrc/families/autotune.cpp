#include "families/autotune.h"

#include <algorithm>

namespace deconv {
namespace {

// Candidates run in turn, so that clock drift and the first runs' rising clock affect all alike.
constexpr int kFirstRuns = 2;    // runs of each candidate, after one warm-up
constexpr int kFurtherRuns = 5;  // more runs of those within kContends of the fastest
constexpr double kContends = 1.15;
constexpr double kNoise = 0.98;  // replace make_plan's plan only below this fraction of its time

struct Contender {
  const Candidate* candidate;
  std::vector<double> samples;  // ms

  double least() const { return *std::min_element(samples.begin(), samples.end()); }

  double median() {
    std::sort(samples.begin(), samples.end());
    return samples[(samples.size() - 1) / 2];
  }
};

// The candidates with the lowest estimates, that of `chosen` first.
std::vector<const Candidate*> shortlist(const std::vector<Candidate>& considered, const std::string& chosen,
                                        int64_t most) {
  std::vector<const Candidate*> list;
  for (const Candidate& candidate : considered) {
    if (candidate.plan) list.push_back(&candidate);
  }
  std::stable_sort(list.begin(), list.end(), [&](const Candidate* a, const Candidate* b) {
    const bool first = a->tile == chosen, second = b->tile == chosen;
    return first != second ? first : a->estimate_ms < b->estimate_ms;
  });
  if (static_cast<int64_t>(list.size()) > most) list.resize(most);
  return list;
}

}  // namespace

TunedPlan autotune(const Problem& problem, const Device& device, const PlannerOptions& options, int64_t most,
                   const TimePlan& time) {
  std::vector<Candidate> considered;
  const Plan estimated = make_plan(problem, device, options, &considered);
  const std::string chosen = describe(estimated, problem.dtype);
  std::vector<Contender> contenders;
  for (const Candidate* candidate : shortlist(considered, chosen, most)) {
    if (time(*candidate->plan)) contenders.push_back({candidate, {}});
  }
  for (int run = 0; run < kFirstRuns; ++run) {
    for (Contender& one : contenders) {
      if (const std::optional<double> ms = time(*one.candidate->plan)) one.samples.push_back(*ms);
    }
  }
  contenders.erase(
      std::remove_if(contenders.begin(), contenders.end(), [](const Contender& one) { return one.samples.empty(); }),
      contenders.end());
  if (contenders.empty()) return {estimated, {}};
  double quickest = contenders.front().least();
  for (const Contender& one : contenders) quickest = std::min(quickest, one.least());
  for (int run = 0; run < kFurtherRuns; ++run) {
    for (Contender& one : contenders) {
      if (one.least() > kContends * quickest) continue;
      if (const std::optional<double> ms = time(*one.candidate->plan)) one.samples.push_back(*ms);
    }
  }
  TunedPlan tuned{estimated, {}};
  for (Contender& one : contenders) {
    tuned.timings.push_back({one.candidate->tile, one.candidate->estimate_ms, one.median()});
  }
  const double estimated_ms = tuned.timings.front().ms;
  const bool was_timed = tuned.timings.front().tile == chosen;
  const auto best = std::min_element(tuned.timings.begin(), tuned.timings.end(),
                                     [](const Timing& a, const Timing& b) { return a.ms < b.ms; });
  if (!was_timed || best->ms < kNoise * estimated_ms) {
    tuned.plan = *contenders[best - tuned.timings.begin()].candidate->plan;
  }
  std::stable_sort(tuned.timings.begin(), tuned.timings.end(),
                   [](const Timing& a, const Timing& b) { return a.ms < b.ms; });
  return tuned;
}

int64_t Autotuner::set_candidates(int64_t candidates) {
  if (candidates < 0 || candidates > kMostCandidates) {
    throw InvalidArgument("autotune: candidates must be from 0 (off) to " + std::to_string(kMostCandidates) +
                          ", but got " + std::to_string(candidates));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (candidates > 0) {
    if (candidates != last_above_zero_) plans_.clear();
    last_above_zero_ = candidates;
  }
  return candidates_.exchange(candidates);
}

std::shared_ptr<const TunedPlan> Autotuner::find(const Problem& problem, int device_index) const {
  const ProblemKey key = key_of(problem, device_index);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = plans_.find(key);
  return known == plans_.end() ? nullptr : known->second;
}

std::shared_ptr<const TunedPlan> Autotuner::keep(const Problem& problem, int device_index, TunedPlan plan) {
  auto kept = std::make_shared<const TunedPlan>(std::move(plan));
  const std::lock_guard<std::mutex> lock(mutex_);
  return plans_.emplace(key_of(problem, device_index), std::move(kept)).first->second;
}

}  // namespace deconv
