// Planner of small_channel, and what its launcher asks it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/taps.h"
#include "families/small_channel/plan.h"
#include "planner/plan.h"

namespace deconv {

// Forward and grad_input in float16, bfloat16 and float32 on compute capability 8.0 and later; nothing if refused.
std::optional<Plan> plan_narrow_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

std::string describe(const SmallChannelPlan& plan, DType dtype);
std::string describe_launch(const SmallChannelPlan& plan);

// Nothing if the axis has more phases, source phases or positions than the kernel's tables hold.
std::optional<SmallChannelAxis> small_channel_axis(const Problem& problem, int axis);

SmallChannelTables small_channel_tables(const SmallChannelPlan& plan, const SmallChannelAxis& h,
                                        const SmallChannelAxis& w);

// Elements of one store along the runs of the result.
int small_channel_vector_result(const Problem& problem, const SmallChannelPlan& plan);

}  // namespace deconv
