// Launcher of the rows family's forward and grad_input; one .cu file an element type instantiates it.
#pragma once

#include "../kernels/rows/conv.cuh"
#include "../plan_rows.h"
#include "correlation.cuh"
#include "kernel_launch.cuh"

namespace deconv {

template <class T>
cudaError_t launch_rows_conv(const Problem& problem, const RowsConvPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  rows_family::ConvParams<T> p{};
  set_images<T>(p, problem, operands);
  set_weight<T>(p, problem, operands);
  p.groups = static_cast<int>(problem.groups);
  for (int a = 0; a < 2; ++a) {
    p.axis[a] = without_idle_taps(p.axis[a]);
    p.idle[a] = rows_idle_phases(p.axis[a]);
  }
  p.plan = plan;
  p.quads = plan.pitch / 4;
  p.by_tiles_w = divide_by(plan.tiles_w);
  p.by_batch = divide_by(p.batch);
  p.by_group_blocks = divide_by(plan.group_blocks);
  p.by_quads = divide_by(p.quads);
  p.by_units = divide_by(plan.units);
  p.by_tiles = divide_by(plan.groups * plan.bands * plan.channel_tiles);
  p.by_group_tiles = divide_by(plan.bands * plan.channel_tiles);
  p.vector_source = packs_four_columns(correlation(problem).source) && is_aligned(p.source, 4 * sizeof(T));
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, 32 * plan.warps(), plan.shared_bytes, stream, p);
  };
  using rows_family::conv_kernel;
  using rows_family::ConvConfig;
  const bool wide = plan.channel_tiles == 2;
  switch (plan.pixel_tiles) {
    case 1: return wide ? launch_with(conv_kernel<ConvConfig<T, 1, 2>>) : launch_with(conv_kernel<ConvConfig<T, 1, 1>>);
    case 2: return wide ? launch_with(conv_kernel<ConvConfig<T, 2, 2>>) : launch_with(conv_kernel<ConvConfig<T, 2, 1>>);
    case 4: return wide ? launch_with(conv_kernel<ConvConfig<T, 4, 2>>) : launch_with(conv_kernel<ConvConfig<T, 4, 1>>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace deconv
