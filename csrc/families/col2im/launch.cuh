// Launcher of gemm_sm80.cuh.
#pragma once

#include <algorithm>

#include "families/col2im/gemm_sm80.cuh"
#include "families/col2im/planner.h"
#include "launch/correlation.cuh"
#include "launch/kernel_launch.cuh"
#include "planner/cost_model.h"

// instances: launch_col2im_conv<T, kParts>(Col2imConvPlan): float16 1, bfloat16 1, tf32 1, float32 2
namespace deconv {

// A phase that has taps: in all of them the steps between taps are the same.
inline int phase_with_taps(const AxisGeometry& axis) {
  int phase = 0;
  while (phase + 1 < axis.phases() && axis_taps(axis, phase, 0).count == 0) ++phase;
  return phase;
}

// Parameters of both GEMMs.
template <class T, class Plan>
void col2im_conv_params(col2im::ConvParams<T, Plan>& p, const Problem& problem, const Plan& plan,
                        const Operands& operands) {
  set_images<T>(p, problem, operands);
  set_weight<T>(p, problem, operands);
  p.groups = static_cast<int>(problem.groups);
  for (int a = 0; a < 2; ++a) {
    p.axis[a] = without_idle_taps(p.axis[a]);
    const AxisTaps taps = axis_taps(p.axis[a], phase_with_taps(p.axis[a]), 0);
    p.tap_step[a] = taps.tap_step;
    p.shift_step[a] = taps.shift_step;
  }
  for (int phase = 0; phase < p.axis[1].phases(); ++phase) {
    p.most_taps_w = std::max(p.most_taps_w, axis_taps(p.axis[1], phase, 0).count);
  }
  p.plan = plan;
  p.by_pitch = divide_by(plan.pitch);
  p.by_strips = divide_by(plan.strips);
  p.by_segments = divide_by(plan.segments);
  p.by_channels = divide_by(plan.channels);
  p.by_taps = divide_by(p.axis[0].kernel * p.axis[1].kernel);
  p.by_kernel_w = divide_by(p.axis[1].kernel);
  p.vector_result = is_aligned(p.result, 4 * sizeof(T)) ? col2im_vector_result(problem, plan) : 1;
  const int64_t run = int64_t{p.axis[1].phases()} * (plan.columns_adjacent ? 1 : plan.channels) / p.vector_result;
  p.by_blocks = divide_by(ceil_div(plan.columns, 32));
  p.by_run = divide_by(run);
  p.kinds = static_cast<int>(p.axis[0].phases() * (plan.columns_adjacent ? plan.channels : 1) * run);
}

template <class T, int kParts>
cudaError_t launch_col2im_conv(const Problem& problem, const Col2imConvPlan& plan, const Operands& operands,
                               cudaStream_t stream) {
  col2im::ConvParams<T> params{};
  col2im_conv_params(params, problem, plan, operands);
  params.by_row_tiles = divide_by(plan.all_row_tiles());
  constexpr int kUnit = kCol2imUnitBytes / static_cast<int>(sizeof(T));
  // An address that wide copies refuse is left to narrower ones, or to loads.
  params.column_bytes = plan.column_bytes == 16 && is_aligned(params.source, 16) ? 16
                        : plan.column_bytes > 0 && is_aligned(params.source, 4)  ? 4
                                                                                 : 0;
  params.vector_source = packs_along_channels(correlation(problem).source, params.source_channels, kUnit) &&
                         is_aligned(params.source, kCol2imUnitBytes);
  return launch_kernel(col2im::gemm_kernel<col2im::ConvBlock<T, kParts>>, plan.blocks, col2im_threads(kParts),
                       plan.shared_bytes, stream, params);
}

}  // namespace deconv
