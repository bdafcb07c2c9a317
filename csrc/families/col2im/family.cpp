// The record of col2im.
#include <sstream>

#include "families/col2im/planner.h"

namespace deconv {
namespace {

void plan(Search& search) {
  const auto consider = [&](const char* kernel, const auto& planner) {
    if (!search.options.allows("col2im", kernel)) return;
    search.consider(planner(search.problem, search.device, search.considered));
  };
  consider("sm80", plan_col2im_conv);
  consider("sm90", plan_col2im_hopper);
}

}  // namespace

std::string describe_launch(const Col2imConvPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << col2im_threads(plan.parts) << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.segments << 'x' << plan.strips << " segments of an image in "
       << plan.steps << " steps, " << plan.chunks << " stages of a step";
  return text.str();
}

std::string describe_launch(const Col2imHopperPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " persistent blocks of " << kCol2imHopperThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.segments << 'x' << plan.strips << " segments of an image in "
       << plan.steps << " steps, " << plan.chunks << " stages of a step";
  return text.str();
}

Family col2im_family() { return {"col2im", {"sm80", "sm90"}, plan}; }

}  // namespace deconv
