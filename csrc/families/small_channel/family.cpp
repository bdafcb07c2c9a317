// The record of small_channel.
#include <sstream>

#include "families/small_channel/planner.h"

namespace deconv {
namespace {

void plan(Search& search) { search.consider(plan_narrow_conv(search.problem, search.device, search.considered)); }

}  // namespace

std::string describe_launch(const SmallChannelPlan& plan) {
  std::ostringstream text;
  text << plan.blocks << " blocks of " << kSmallChannelThreads << " threads, " << plan.shared_bytes
       << " bytes of shared memory, " << plan.tile_blocks << " for each of the result's parts, " << plan.chunks
       << " stages of " << plan.units * kSmallChannelUnitBytes << " bytes of channels, " << plan.rows_h << 'x'
       << plan.rows_w << " source pixels of " << plan.planes_h * plan.planes_w << " planes";
  return text.str();
}

Family small_channel_family() { return {"small_channel", {}, plan}; }

}  // namespace deconv
