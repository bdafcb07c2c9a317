// Planner of the narrow family, and what its launcher asks it. Family: few channels a group, many phases, tiny images.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/taps.h"
#include "families/small_channel/plan.h"
#include "planner/plan.h"

namespace deconv {

// Forward and grad_input in float16, bfloat16 and float32 on compute capability 8.0 and later; nothing where it
// refuses.
std::optional<Plan> plan_narrow_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

std::string describe(const NarrowConvPlan& plan, DType dtype);
std::string describe_launch(const NarrowConvPlan& plan);

// One axis as the kernel walks it.
struct NarrowAxis {
  AxisGeometry geometry;
  int origin = 0;                          // smallest shift
  int shifts = 1;                          // from the smallest to the largest
  uint64_t planes = 0;                     // those with taps
  int plane_count = 0;
  uint64_t positions[kNarrowMaxPhases]{};  // of a phase: bit slot of the plane * shifts + shift - origin
  uint8_t active[kNarrowMaxPhases]{};      // phases with taps
  int actives = 0;
};
// Nothing if it has more phases, planes or positions than the kernel's tables hold.
std::optional<NarrowAxis> narrow_axis(const Problem& problem, int axis);

NarrowTables narrow_tables(const NarrowConvPlan& plan, const NarrowAxis& h, const NarrowAxis& w);

// Elements that one store may take along the runs of the result.
int narrow_vector_result(const Problem& problem, const NarrowConvPlan& plan);

}  // namespace deconv
