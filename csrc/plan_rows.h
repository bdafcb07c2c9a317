// Planner of the rows family, and what its launcher asks it. Family: results that are large beside their products.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan.h"
#include "taps.h"

namespace deconv {

// Forward and grad_input in float16, bfloat16 and TF32 on compute capability 8.0 and later; nothing where it refuses.
std::optional<Plan> plan_rows_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered);

std::string describe(const RowsConvPlan& plan, DType dtype);

// Bits of the phases without taps.
uint32_t rows_idle_phases(const AxisGeometry& axis);

}  // namespace deconv
