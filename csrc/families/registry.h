// Problem + device -> plan: which family serves a call, with which tile. Arithmetic only: no torch, no CUDA, no search.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/problem.h"
#include "families/col2im/plan.h"
#include "families/col2im/plan_sm90.h"
#include "families/col2im/plan_whole_images.h"
#include "families/depthwise/plan.h"
#include "families/igemm_sm80/plan.h"
#include "families/igemm_sm90/plan.h"
#include "families/igemm_sm90/plan_1tap.h"
#include "families/igemm_sm90/plan_all_phases.h"
#include "families/igemm_sm90/plan_stride2.h"
#include "families/simt/plan.h"
#include "families/small_channel/plan.h"
#include "families/wgrad_sm90/plan_rs_nchw.h"
#include "families/wgrad_sm90/plan_rs_nhwc.h"
#include "families/wgrad_sm90/plan_ss.h"
#include "lowerings/group_merge/plan.h"
#include "lowerings/sub_pixel/plan.h"
#include "planner/options.h"

namespace deconv {

// What the planner needs to know about a GPU.
struct Device {
  std::string name = "H200-like GPU (assumed)";
  int capability = 90;  // 10 * major + minor
  bool has_wgmma = true;  // Hopper, and a build that holds code for sm_90a
  bool has_mma = true;  // capability 8.0 or later, and a build whose code for this GPU is for 8.0 or later
  int multiprocessors = 132;
  int shared_bytes_per_block = 232448;  // opt-in maximum
  double bandwidth = 4.27e12;  // bytes/s, reads and writes together: device copy measured on an H200
  // Of memory traffic for a run of bytes that begins or ends within a sector (partial_run_bytes).
  double partial_run_bytes = 62;
};

// A sector that is written in part is read from memory first, unless the rest comes soon; the less bandwidth, the more
// of them wait so long. Bytes by the memory's peak bandwidth (bytes/s), between an H100's (3.35e12) and an H200's
// (4.92e12), at which they are fitted; beyond those the same as there.
double partial_run_bytes(double peak_bandwidth);

struct Plan {
  std::variant<GatherConvPlan, GatherWeightPlan, DepthwiseStripsPlan, DepthwiseBlocksPlan,
               DepthwisePacksPlan, DepthwiseRowsPlan, HopperConvPlan, HopperWeightLinesPlan, HopperWeightTensorPlan,
               HopperWeightTurnedPlan, HopperPlanesPlan, HopperStridedPlan, HopperFoldedPlan, HopperPicturesPlan,
               MmaConvPlan, MmaWeightPlan, NarrowConvPlan, Col2imConvPlan, Col2imHopperPlan, SubpixelPlan, MergedPlan>
      tile;
  int64_t workspace_bytes = 0;
  double estimate_ms = 0;
};

// One considered plan, for explain and the tests: either a cost or the reason why it was refused.
struct Candidate {
  std::string tile;
  double estimate_ms = 0;
  std::string refusal;
  std::shared_ptr<const Plan> plan = nullptr;  // unless refused
};

// A candidate that ran.
struct Timing {
  std::string tile;
  double estimate_ms = 0;
  double ms = 0;
};

// A plan chosen by its time (autotune.h), and what it was chosen from, quickest first.
struct TunedPlan {
  Plan plan;
  std::vector<Timing> timings;
};

// Lists a plan of a family, if the candidates are wanted, and takes it if it is the best so far.
template <class TilePlan>
void consider_plan(std::optional<Plan>& best, const char* family, const TilePlan& tile, int64_t workspace_bytes,
                   double ms, DType dtype, std::vector<Candidate>* considered) {
  if (considered) {
    considered->push_back({std::string(family) + ", " + describe(tile, dtype), ms, "",
                           std::make_shared<const Plan>(Plan{tile, workspace_bytes, ms})});
  }
  if (!best || ms < best->estimate_ms) best = Plan{tile, workspace_bytes, ms};
}

inline constexpr int64_t kWorkspaceLimit = 64 << 20;
// Smaller float32 problems do not ask for TF32: the float32 units of an H200 do this much in some 2 µs, so there is
// nothing to gain, and the question is a call into Python that may wait for its lock.
inline constexpr double kTf32MinFlops = 1e8;
// Nor do those with fewer channels a group on both sides: there a tensor core has nothing to add up, unless groups are
// merged, and then in three TF32 products.
inline constexpr int64_t kTensorCoreMinChannels = 2;

// Whether the caller should find out if TF32 is allowed: a family on tensor cores could serve, and it is worth asking.
bool wants_tf32_answer(const Problem& problem, const Device& device);

// Never fails: the gather family serves every valid problem, also one that all families in `options` refuse.
// `considered` collects the candidates when given.
Plan make_plan(const Problem& problem, const Device& device, const PlannerOptions& options = {},
               std::vector<Candidate>* considered = nullptr);

// The family and its tile.
std::string describe(const Plan& plan, DType dtype);

// Every piece of the answer to "which plan would this call use, and why"; `tuned` where it was chosen by its time.
std::string explain(const Problem& problem, const Device& device, const PlannerOptions& options = {},
                    const TunedPlan* tuned = nullptr);

// The same for programs (plan_json.cpp): an object with device, kernel, estimate_ms, workspace_bytes, measured_ms where
// the plan was chosen by its time, candidates ([kernel, estimate_ms] each) and refusals ([kernel, reason] each).
std::string plan_json(const Problem& problem, const Device& device, const PlannerOptions& options,
                      const TunedPlan* tuned);
std::string json_string(const std::string& text);  // quoted and escaped

}  // namespace deconv
