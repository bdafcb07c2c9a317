// A plan as JSON, for deconv_ext.plan: names and numbers where explain() has sentences, and every candidate.
#include <cstdio>
#include <sstream>

#include "families/registry.h"

namespace deconv {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// Lists the candidates that were accepted, each with its estimate in ms, or those that were refused, with the reason.
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
