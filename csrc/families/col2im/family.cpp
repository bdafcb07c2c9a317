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
  consider("sm90", plan_col2im_sm90);
}

std::string describe(const Col2imWalk& walk, int threads, int chunks, int shared_bytes) {
  std::ostringstream text;
  text << walk.blocks << " persistent blocks of " << threads << " threads, " << shared_bytes
       << " bytes of shared memory, " << walk.segments << 'x' << walk.strips << " segments of an image in "
       << walk.steps << " steps, " << chunks << " stages of a step";
  return text.str();
}

}  // namespace

std::string describe_launch(const Col2imConvPlan& plan) {
  return describe(plan, col2im_threads(plan.parts), plan.chunks, plan.shared_bytes);
}
std::string describe_launch(const Col2imSm90Plan& plan) {
  return describe(plan, kCol2imSm90Threads, plan.chunks, plan.shared_bytes);
}

Family col2im_family() { return {"col2im", {"sm80", "sm90"}, plan}; }

}  // namespace deconv
