// A plan: the kernels that serve a call, and their settings. A family's planner makes it, its launcher follows it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/problem.h"
#include "planner/device.h"
#include "planner/options.h"

namespace deconv {

// A family's own plan. Other families know only this interface.
class TilePlan {
 public:
  explicit TilePlan(const std::type_info& type) : type_(type) {}
  virtual ~TilePlan() = default;

  const std::type_info& type() const { return type_; }
  virtual const char* family() const = 0;
  virtual std::string description(DType dtype) const = 0;  // of the tile
  virtual std::string launch_description() const = 0;  // blocks, threads, shared memory

 private:
  const std::type_info& type_;
};

// T has kFamily, and functions describe(T, DType) and describe_launch(T).
template <class T>
class TilePlanOf final : public TilePlan {
 public:
  explicit TilePlanOf(const T& plan) : TilePlan(typeid(T)), plan(plan) {}

  const char* family() const override { return T::kFamily; }
  std::string description(DType dtype) const override { return describe(plan, dtype); }
  std::string launch_description() const override { return describe_launch(plan); }

  const T plan;
};

template <class T>
std::shared_ptr<const TilePlan> tile_plan(const T& plan) {
  return std::make_shared<const TilePlanOf<T>>(plan);
}

struct Plan {
  std::shared_ptr<const TilePlan> tile;
  int64_t workspace_bytes = 0;
  double estimate_ms = 0;

  // The family's own plan, or null if it is of another type.
  template <class T>
  const T* get_if() const {
    return tile->type() == typeid(T) ? &static_cast<const TilePlanOf<T>&>(*tile).plan : nullptr;
  }
};

// The family and its tile.
inline std::string describe(const Plan& plan, DType dtype) {
  return std::string(plan.tile->family()) + " family, " + plan.tile->description(dtype);
}

// A considered plan, for explain and the tests: its cost, or the reason for refusing it.
struct Candidate {
  std::string tile;
  double estimate_ms = 0;
  std::string refusal;
  std::shared_ptr<const Plan> plan = nullptr;  // null if refused
};

// A timed candidate.
struct Timing {
  std::string tile;
  double estimate_ms = 0;
  double ms = 0;
};

// A plan chosen by time (families/autotune.h), and its alternatives, fastest first.
struct TunedPlan {
  Plan plan;
  std::vector<Timing> timings;
};

inline constexpr int64_t kWorkspaceLimit = 64 << 20;

// Adds a plan to the candidates, if these are wanted, and keeps it if it is the best so far.
template <class T>
void consider_plan(std::optional<Plan>& best, const char* family, const T& plan, int64_t workspace_bytes, double ms,
                   DType dtype, std::vector<Candidate>* considered) {
  const bool is_best = !best || ms < best->estimate_ms;
  if (!is_best && !considered) return;
  Plan made{tile_plan(plan), workspace_bytes, ms};
  if (considered) {
    considered->push_back(
        {std::string(family) + ", " + describe(plan, dtype), ms, "", std::make_shared<const Plan>(made)});
  }
  if (is_best) best = std::move(made);
}

// Adds a family's refusal to the candidates.
inline std::nullopt_t refuse(std::vector<Candidate>* considered, const std::string& family, const std::string& reason) {
  if (considered) considered->push_back({family, 0, reason});
  return std::nullopt;
}

// The search for one call. Each family adds what it considers.
struct Search {
  const Problem& problem;
  const Device& device;
  const PlannerOptions& options;
  std::vector<Candidate>* considered;  // null if not wanted
  std::optional<Plan> best = {};
  bool outdoes_mma = false;  // a wgmma plan is certainly faster than any mma.sync plan

  // Ties go to the later family, which is more general.
  void consider(std::optional<Plan> plan) {
    if (plan && (!best || plan->estimate_ms <= best->estimate_ms)) best = std::move(plan);
  }
};

// What a folder of csrc/families or csrc/lowerings exports (its family.cpp).
struct Family {
  const char* name;
  std::vector<std::string> options;  // that DECONV_KERNELS can switch off
  void (*plan)(Search& search);
};

// In search order (families/registry.cpp, the only file that knows all families).
const std::vector<Family>& families();

// Never fails: simt serves every valid problem, even if it is switched off and all others refuse. considered: collects
// the candidates, if given.
Plan make_plan(const Problem& problem, const Device& device, const PlannerOptions& options = {},
               std::vector<Candidate>* considered = nullptr);

}  // namespace deconv
