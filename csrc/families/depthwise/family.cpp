// The record of depthwise.
#include <sstream>

#include "families/depthwise/planner.h"

namespace deconv {
namespace {

template <class DepthwisePlan>
std::string describe_blocks(const DepthwisePlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << plan.threads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.splits
       << (plan.splits > 1 ? " splits of the pixels, added in order" : " split");
  return text.str();
}

void plan(Search& search) {
  search.consider(plan_depthwise(search.problem, search.device, search.options, search.considered));
}

}  // namespace

std::string describe_launch(const DepthwiseStripsPlan& plan) { return describe_blocks(plan); }
std::string describe_launch(const DepthwiseRowsPlan& plan) { return describe_blocks(plan); }

Family depthwise_family() { return {"depthwise", {"row_stream"}, plan}; }

}  // namespace deconv
