// The record of igemm_sm80.
#include <sstream>

#include "families/igemm_sm80/planner.h"
#include "planner/plan.h"

namespace deconv {
namespace {

void plan(Search& search) {
  if (search.outdoes_mma) return;
  const bool is_weight = search.problem.direction == Direction::kGradWeight;
  search.consider((is_weight ? plan_mma_weight : plan_mma_conv)(search.problem, search.device, search.considered));
}

}  // namespace

std::string describe_launch(const IgemmSm80Plan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kSm80Threads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.halo_slots
       << (plan.keep_halos ? " halos kept for all phases, of " : " halos of ") << plan.halo.n << 'x' << plan.halo.h
       << 'x' << plan.halo.w << " pixels of " << plan.row_bytes << " bytes, weights of " << kSm80Stages << " turns";
  return text.str();
}

std::string describe_launch(const WgradSm80Plan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << 32 * plan.warps() << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.y_rows << " pixels of grad_output a step, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

Family igemm_sm80_family() { return {"igemm_sm80", {}, plan}; }

}  // namespace deconv
