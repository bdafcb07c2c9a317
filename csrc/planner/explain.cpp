#include "planner/explain.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace deconv {
namespace {

std::string milliseconds(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g ms", ms);
  return text;
}

// Compares the autotuned plan with the one that has the lowest estimate.
void describe_choice(std::ostream& text, const std::vector<Timing>& timings, const std::string& chosen,
                     const std::string& estimated) {
  const auto ms_of = [&](const std::string& tile) {
    const auto one = std::find_if(timings.begin(), timings.end(), [&](const Timing& t) { return t.tile == tile; });
    return one == timings.end() ? "not timed" : milliseconds(one->ms);
  };
  text << "  autotuned: of " << timings.size() << " candidates timed, " << ms_of(chosen) << "; by the estimates "
       << (estimated == chosen ? "the same" : estimated + ", " + ms_of(estimated)) << '\n';
}

// Lists the candidates with the lowest estimates of each family, and some of its refusals.
void list_candidates(std::ostream& text, std::vector<Candidate> candidates) {
  constexpr int kShown = 5;  // of a family: plans, and refusals
  const auto family_of = [](const Candidate& candidate) { return candidate.tile.substr(0, candidate.tile.find(',')); };
  auto begin = candidates.begin();
  while (begin != candidates.end()) {
    const std::string name = family_of(*begin);
    const auto is_same = [&](const Candidate& candidate) { return family_of(candidate) == name; };
    const auto end = std::stable_partition(begin, candidates.end(), is_same);
    const auto refused = std::stable_partition(begin, end, [](const Candidate& one) { return one.refusal.empty(); });
    std::stable_sort(begin, refused, [](const auto& a, const auto& b) { return a.estimate_ms < b.estimate_ms; });
    for (auto one = begin; one != refused && one - begin < kShown; ++one) {
      text << "    " << one->tile << ": about " << milliseconds(one->estimate_ms) << '\n';
    }
    if (refused - begin > kShown) text << "    " << name << ": " << refused - begin - kShown << " more, slower\n";
    for (auto one = refused; one != end && one - refused < kShown; ++one) {
      text << "    " << one->tile << ": refused, " << one->refusal << '\n';
    }
    if (end - refused > kShown) text << "    " << name << ": " << end - refused - kShown << " more refused\n";
    begin = end;
  }
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// Lists the accepted candidates with their estimates in ms, or the refused ones with their reasons.
void list(std::ostream& text, const std::vector<Candidate>& candidates, bool refused) {
  const char* separator = "";
  for (const Candidate& one : candidates) {
    if (one.refusal.empty() == refused) continue;
    text << separator << '[' << json_string(one.tile) << ", "
         << (refused ? json_string(one.refusal) : number(one.estimate_ms)) << ']';
    separator = ", ";
  }
}

}  // namespace

std::string explain(const Problem& problem, const Device& device, const PlannerOptions& options,
                    const TunedPlan* tuned) {
  std::vector<Candidate> considered;
  const Plan estimated = make_plan(problem, device, options, &considered);
  const Plan& plan = tuned ? tuned->plan : estimated;
  std::ostringstream text;
  text << problem.describe() << '\n'
       << "  result: " << name(problem.result_layout) << "; " << problem.flops() * 1e-9 << " GFLOP dense, "
       << static_cast<double>(problem.bytes()) * 1e-9 << " GB read and written once\n"
       << "  device: " << device.name << ", " << device.multiprocessors << " multiprocessors\n";
  text << "  plan: " << describe(plan, problem.dtype) << ", about " << milliseconds(plan.estimate_ms) << '\n';
  if (tuned) {
    describe_choice(text, tuned->timings, describe(plan, problem.dtype), describe(estimated, problem.dtype));
  }
  if (options.restricted()) {
    text << "  kernels: " << kKernelsVariable << " is " << options.describe()
         << (options.allows(plan.tile->family()) ? "" : "; refused, so simt serves") << '\n';
  }
  text << "  launch: " << plan.tile->launch_description() << '\n';
  text << "  workspace: " << plan.workspace_bytes << " bytes\n  considered:\n";
  list_candidates(text, considered);
  if (tuned) {
    text << "  timed:\n";
    for (const Timing& one : tuned->timings) {
      text << "    " << one.tile << ": " << milliseconds(one.ms) << ", about " << milliseconds(one.estimate_ms) << '\n';
    }
  }
  return text.str();
}

std::string json_string(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;  // JSON allows no control characters
  }
  return result + '"';
}

std::string plan_json(const Problem& problem, const Device& device, const PlannerOptions& options,
                      const TunedPlan* tuned) {
  std::vector<Candidate> considered;
  const Plan estimated = make_plan(problem, device, options, &considered);
  const Plan& plan = tuned ? tuned->plan : estimated;
  const std::string kernel = describe(plan, problem.dtype);
  std::ostringstream text;
  text << "{\"device\": " << json_string(device.name) << ", \"kernel\": " << json_string(kernel)
       << ", \"estimate_ms\": " << number(plan.estimate_ms) << ", \"workspace_bytes\": " << plan.workspace_bytes;
  if (tuned) {
    for (const Timing& one : tuned->timings) {
      if (one.tile == kernel) text << ", \"measured_ms\": " << number(one.ms);
    }
  }
  text << ", \"candidates\": [";
  list(text, considered, false);
  text << "], \"refusals\": [";
  list(text, considered, true);
  text << "]}";
  return text.str();
}

}  // namespace deconv
