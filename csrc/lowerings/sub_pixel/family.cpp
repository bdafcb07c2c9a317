// The record of sub_pixel.
#include "lowerings/sub_pixel/planner.h"

namespace deconv {
namespace {

void plan(Search& search) {
  search.consider(plan_sub_pixel(search.problem, search.device, search.options, search.considered));
}

}  // namespace

std::string describe_launch(const SubPixelPlan& plan) {
  const bool rewrites = !plan.stores_plain && (!plan.output_in_place || !plan.weight_in_place);
  const char* const own = rewrites ? "operands to blocks and results back by kernels of their own, and between them "
                          : plan.rewrites_bias ? "the bias to blocks by a kernel of its own, then "
                                               : "";
  return own + plan.inner->tile->launch_description();
}

Family sub_pixel_family() { return {"sub_pixel", {}, plan}; }

}  // namespace deconv
