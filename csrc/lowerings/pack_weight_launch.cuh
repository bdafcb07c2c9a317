// Shared by igemm_sm90's launchers: the workspace, results stored in blocks, packed weights.
#pragma once

#include <algorithm>

#include "families/igemm_sm90/planner.h"
#include "families/igemm_sm90/tap_order.h"
#include "launch/correlation.cuh"
#include "launch/kernel_launch.cuh"
#include "lowerings/pack_weight.cuh"
#include "lowerings/repack.cuh"

namespace deconv {

// The workspace: packed weights, the repacked source and the flag for sums that are not finite.
inline unsigned char* repacked_at(const IgemmSm90Plan& plan, const Operands& operands) {
  return static_cast<unsigned char*>(operands.workspace) + plan.packed_bytes;
}
inline int* not_finite_at(const IgemmSm90Plan& plan, const Operands& operands) {
  return reinterpret_cast<int*>(repacked_at(plan, operands) + plan.repacked_bytes);
}

// Parameters and blocks of a launch that packs weights.
template <class T>
struct Packing {
  sm90::PackParams<T> params;
  int64_t blocks;
};

// problem: with the taps that the plan sees, groups not merged; original: the caller's; classes: of source channels, in
// the order of a k_block (families/igemm_sm90/plan_1tap.h).
template <class T>
Packing<T> describe_packing(const Problem& problem, const Problem& original, const IgemmSm90Plan& plan,
                            const Operands& operands, int classes = 1) {
  sm90::PackParams<T> p{};
  const Correlation c = correlation(problem);
  set_weight<T>(p, original, operands);
  if (plan.source == Sm90Source::kIm2col) {
    p.channel_taps = divide_by(static_cast<int>(original.axis[0].kernel * original.axis[1].kernel));
    p.channel_tap_step = im2col_tap_step(original);
  }
  p.block_width = divide_by(problem.blocks ? problem.blocks->width : INT32_MAX);
  p.block_height = divide_by(problem.blocks ? problem.blocks->height : INT32_MAX);
  p.weight_block_h = problem.blocks ? problem.blocks->weight_h : 0;
  p.weight_block = problem.blocks ? problem.blocks->weight_c : 0;
  p.packed = static_cast<unsigned char*>(operands.workspace);
  p.source_channels = static_cast<int>(c.source_channels);
  p.result_channels = static_cast<int>(c.result_channels);
  p.not_finite = not_finite_at(plan, operands);
  p.groups = static_cast<int>(problem.groups) / plan.merge;
  p.plan = plan;
  // Stages from one index to the next, in the order of pack_weight.cuh.
  const int phases = plan.tile.phases, across = (plan.phases_w + phases - 1) / phases;
  const int of_phase = plan.slots_h * plan.slots_w, of_plane = plan.chunks * phases * of_phase;
  for (const Sm90Tap& tap : sm90_taps(geometry(problem, 0), plan, false)) {
    const int plane = (tap.phase * across * plan.planes_h + tap.plane) * plan.planes_w;
    p.slots[0][tap.k] = {plane * of_plane + tap.slot * plan.slots_w, static_cast<int16_t>(tap.slot),
                         static_cast<int16_t>(tap.slots)};
  }
  for (const Sm90Tap& tap : sm90_taps(geometry(problem, 1), plan, true)) {
    const int plane = tap.phase / phases * plan.planes_h * plan.planes_w + tap.plane;
    p.slots[1][tap.k] = {plane * of_plane + tap.phase % phases * of_phase, static_cast<int16_t>(tap.slot),
                         static_cast<int16_t>(tap.slots)};
  }
  p.chunk_stages = phases * of_phase;
  p.pieces_shift = plan.row_bytes == kSm90RowBytes ? 3 : 2;
  p.classes = classes;
  p.class_pieces = divide_by((1 << p.pieces_shift) / classes);
  const int kernel_w = static_cast<int>(problem.axis[1].kernel);
  p.taps = static_cast<int>(problem.axis[0].kernel) * kernel_w;
  const int64_t next_tap = p.taps > 1 ? std::min(p.weight_h, p.weight_w) : INT64_MAX;
  p.taps_fastest = next_tap < p.weight_m;
  p.channels_fastest = (p.channel_taps.divisor > 1 ? std::min(p.weight_c, p.channel_tap_step) : p.weight_c) <
                       std::min(next_tap, p.weight_m);
  const auto shared_out = [&](int fastest, int slower, int& block_fastest, int& block_slower) {
    block_fastest = std::min(fastest, sm90::kPackRows);
    block_slower = std::min(slower, sm90::kPackRows / block_fastest);
  };
  p.taps_fastest ? shared_out(p.taps, plan.tile_m, p.block_taps, p.block_m)
                 : shared_out(plan.tile_m, p.taps, p.block_m, p.block_taps);
  p.block_rows = p.block_taps * p.block_m;
  p.row_fastest = divide_by(p.taps_fastest ? p.block_taps : p.block_m);
  p.kernel_w = divide_by(kernel_w);
  p.of_group = divide_by(p.result_channels);
  p.tap_blocks = divide_by((p.taps + p.block_taps - 1) / p.block_taps);
  p.m_blocks = divide_by((plan.tile_m + p.block_m - 1) / p.block_m);
  p.chunks = divide_by(plan.chunks);
  p.m_tiles = divide_by(plan.m_tiles);
  const int64_t blocks = static_cast<int64_t>(p.groups) * p.m_tiles.divisor * p.chunks.divisor * p.m_blocks.divisor *
                         p.tap_blocks.divisor;
  return {p, blocks};
}

// Instantiated in pack_weight.cu.
template <class T, int kParts>
cudaError_t launch_packing(const Packing<T>& packing, cudaStream_t stream);
// The same, and repacks the source in the same launch.
template <class T, int kParts>
cudaError_t launch_packing(const Packing<T>& packing, const Repack<T>& source, cudaStream_t stream);

}  // namespace deconv
