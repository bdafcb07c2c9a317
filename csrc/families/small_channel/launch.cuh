// Launcher of conv.cuh.
#pragma once

#include <algorithm>
#include <climits>
#include <type_traits>

#include "families/small_channel/conv.cuh"
#include "families/small_channel/planner.h"
#include "launch/correlation.cuh"
#include "launch/kernel_launch.cuh"

// instances: launch_small_channel<T, kParts>(SmallChannelPlan): float16 1, bfloat16 1, tf32 1, float32 2
namespace deconv {

// Divides the results of a tile: a warp a run, or fewer lanes if they suffice. Runs of a line, then of adjacent lines,
// are stored at once: as many of a line as leave the fewest rounds.
template <class T>
small_channel::SmallChannelStore small_channel_store(const small_channel::ConvParams<T>& p) {
  const SmallChannelPlan& plan = p.plan;
  constexpr int kLogThreads = 8;
  static_assert(1 << kLogThreads == kSmallChannelThreads, "eight warps");
  const auto shift_up = [](int value, int log) { return (value + (1 << log) - 1) >> log; };
  const int columns = std::min(plan.tile.w * p.axis[1].phases(), p.axis[1].result_size);
  const bool by_pixel = !plan.columns_adjacent && !plan.whole_lines;
  const int length = by_pixel ? plan.channels : plan.whole_lines ? columns * plan.channels : columns;
  const int lines = std::min(plan.tile.n, p.batch) * plan.tile.h * (plan.all_heights ? p.axis[0].phases() : 1);
  const int runs = plan.columns_adjacent ? plan.channels : by_pixel ? columns : 1;
  small_channel::SmallChannelStore store{kLogThreads - 3, 0, runs == 1};
  while (store.log_lanes > 0 && 1 << store.log_lanes >> 1 >= length / p.vector_result) --store.log_lanes;
  for (int log = 0, fewest = INT_MAX; log <= kLogThreads - store.log_lanes; ++log) {
    const int rounds = shift_up(runs, log) * shift_up(lines, kLogThreads - store.log_lanes - log);
    if (rounds < fewest) fewest = rounds, store.log_runs = log;
  }
  return store;
}

template <class T, int kParts>
cudaError_t launch_small_channel(const Problem& problem, const SmallChannelPlan& plan, const Operands& operands,
                                 cudaStream_t stream) {
  small_channel::ConvParams<T> p{};
  set_images<T>(p, problem, operands);
  set_weight<T>(p, problem, operands);
  p.groups = static_cast<int>(problem.groups);
  const std::optional<SmallChannelAxis> axes[2] = {small_channel_axis(problem, 0), small_channel_axis(problem, 1)};
  if (!axes[0] || !axes[1]) return cudaErrorInvalidValue;
  for (int a = 0; a < 2; ++a) p.walk[a] = *axes[a], p.axis[a] = axes[a]->geometry;
  p.plan = plan;
  p.at = small_channel_tables(plan, *axes[0], *axes[1]);
  const int heights = plan.all_heights ? p.axis[0].phases() : 1;
  p.by_units = divide_by(plan.units);
  p.by_line = divide_by(plan.planes_w * plan.rows_w);
  p.by_lines = divide_by(plan.planes_h * plan.rows_h);
  p.by_row_w = divide_by(plan.rows_w);
  p.by_channels = divide_by(plan.channels);
  p.by_tiles_w = divide_by(plan.tiles.w);
  p.by_tiles_h = divide_by(plan.tiles.h);
  p.by_staged_lines = divide_by(plan.tile.h * heights);
  p.by_heights = divide_by(heights);
  constexpr int kUnit = kSmallChannelUnitBytes / static_cast<int>(sizeof(T));
  p.vector_source = packs_along_channels(correlation(problem).source, p.source_channels, kUnit) &&
                    is_aligned(p.source, kSmallChannelUnitBytes);
  p.quad_lead = (plan.origin_w % 4 + 4) % 4;
  const int row_quads = (p.quad_lead + plan.rows_w + 3) / 4;
  p.by_row_quads = divide_by(row_quads);
  p.quads = plan.units * plan.tile.n * plan.planes_h * plan.rows_h * row_quads;
  p.vector_result = is_aligned(p.result, 16) ? small_channel_vector_result(problem, plan) : 1;
  p.store = small_channel_store(p);
  const auto launch_with = [&](auto by_quads) {
    using namespace small_channel;
    constexpr bool kQuads = decltype(by_quads)::value;
    auto* const kernel = plan.row_tiles == 1   ? conv_kernel<ConvConfig<T, 1, kParts, kQuads>>
                         : plan.row_tiles == 2 ? conv_kernel<ConvConfig<T, 2, kParts, kQuads>>
                                               : conv_kernel<ConvConfig<T, 4, kParts, kQuads>>;
    return launch_kernel(kernel, plan.blocks, kSmallChannelThreads, plan.shared_bytes, stream, p);
  };
  const bool quads = plan.quads && is_aligned(p.source, 4 * sizeof(T));
  return quads ? launch_with(std::true_type{}) : launch_with(std::false_type{});
}

}  // namespace deconv
