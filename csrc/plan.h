// Problem + device -> plan: which family serves a call, with which tile. Arithmetic only: no torch, no CUDA, no search.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "depthwise_plan.h"
#include "gather_plan.h"
#include "problem.h"
#include "taps.h"

namespace deconv {

// What the planner needs to know about a GPU.
struct Device {
  std::string name = "H200-like GPU (assumed)";
  int capability = 90;  // 10 * major + minor
  int multiprocessors = 132;
  int shared_bytes_per_block = 232448;  // opt-in maximum
  double bandwidth = 4.27e12;  // bytes/s, reads and writes together: device copy measured on an H200
};

struct Plan {
  std::variant<GatherConvPlan, GatherWeightPlan, DepthwisePlanesPlan, DepthwiseChannelsPlan> tile;
  int64_t workspace_bytes = 0;
  double estimate_ms = 0;
};

// One considered plan, for explain: either a cost or the reason why it was refused.
struct Candidate {
  std::string tile;
  double estimate_ms = 0;
  std::string refusal;
};

inline constexpr int64_t kWorkspaceLimit = 64 << 20;

AxisGeometry geometry(const Problem& problem, int axis);

// Never fails: the gather family serves every valid problem. `considered` collects the candidates when given.
Plan make_plan(const Problem& problem, const Device& device, std::vector<Candidate>* considered = nullptr);

// Every piece of the answer to "which plan would this call use, and why".
std::string explain(const Problem& problem, const Device& device);

}  // namespace deconv
