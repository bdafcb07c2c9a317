// From a warpgroup's accumulators to the result: bias, one rounding, then the store that fits the layout.
//
//   channels adjacent                             store_channels.cuh; by TMA: store_tma.cuh
//   columns adjacent, groups of columns           store_runs.cuh; whole sectors: store_rows.cuh; by TMA: store_tma.cuh
//   columns adjacent, groups of rows or images    store_columns.cuh
//   blocks of a sub_pixel result                  store_blocks.cuh
//
// A sector (32 bytes) that two warps write in part is read from memory first, unless both writes come within some
// hundred cycles. With plan.whole_sectors, tiles side by side overlap, and each row is divided between them where a
// sector begins: only the ends of the result's rows are partial sectors.
#pragma once

#include "families/igemm_sm90/row_order.cuh"
#include "families/igemm_sm90/store_blocks.cuh"
#include "families/igemm_sm90/store_channels.cuh"
#include "families/igemm_sm90/store_columns.cuh"
#include "families/igemm_sm90/store_rows.cuh"
#include "families/igemm_sm90/store_runs.cuh"
#include "families/igemm_sm90/store_tma.cuh"

namespace deconv::sm90 {

// kToBlocks: plan.to_blocks, in instances of their own because it takes registers.
template <class T, int kGroups, int kPhases, int kFold, bool kMajorM, bool kToBlocks>
class Result : public ResultTile<T, kGroups, kPhases, kFold, kMajorM> {
 public:
  using Tile = ResultTile<T, kGroups, kPhases, kFold, kMajorM>;
  using Tile::Tile;
  using typename Tile::Accumulators;

  __device__ __forceinline__ void add_bias(const Item& item, Accumulators& acc) const {
    if (p.bias == nullptr) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = item.m_tile * p.plan.tile_m + first_channel_ +
                          channel_of_row<T, kMajorM>(p.plan, lane_ / 4 + 8 * half);
      const float bias = channel < p.result_channels ? widen(p.bias[bias_of(item, channel)]) : 0.0f;
#pragma unroll
      for (int k = 0; k < kPhases; ++k) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          acc[k][4 * j + 2 * half] += bias;
          acc[k][4 * j + 2 * half + 1] += bias;
        }
      }
    }
  }

  __device__ __forceinline__ void store(const Item& item, const Phases& phases, Accumulators& acc) const {
    if constexpr (kToBlocks) {
      BlockStore<Tile>(*this).store(item, acc);
      return;
    }
    const Window window = window_of(item, phases);
    // A warpgroup within one line of the tile (large images) skips the walk over lines.
    const bool one_line = first_group().group + kGroups <= p.plan.line_groups;
    if (p.plan.channels_adjacent) {
      const ChannelStore<Tile> channels(*this);
      one_line ? channels.template store<true>(window, acc) : channels.template store<false>(window, acc);
    } else if (p.plan.inner == Sm90Inner::kWidth) {
      const RowStore<Tile> rows(*this);
      const RunStore<Tile> runs(*this);
      const bool in_line = p.plan.pixels.h - p.plan.second.h == 1;
      if constexpr (sm90_joins_phases(Sm90Tile{kGroups, kPhases, kFold})) {
        if (p.plan.row_phases > kPhases) {
          in_line ? rows.template store_all_phases<true>(item, window, phases.w, acc)
                  : rows.template store_all_phases<false>(item, window, phases.w, acc);
          return;
        }
      }
      if constexpr (sm90_writes_whole_sectors(Sm90Tile{kGroups, kPhases, kFold})) {
        if (p.plan.whole_sectors) {
          in_line ? rows.template store<true>(item, window, acc) : rows.template store<false>(item, window, acc);
          return;
        }
      }
      if constexpr (sm90_stores_flat(Sm90Tile{kGroups, kPhases, kFold})) {
        if (p.plan.flat) {
          p.vector_result == 2 ? runs.template store_flat<2>(window, acc) : runs.template store_flat<1>(window, acc);
          return;
        }
      }
      one_line ? runs.template store<true>(window, acc) : runs.template store<false>(window, acc);
    } else {
      ColumnStore<Tile>(*this).store(window, acc);
    }
  }

  // True if all sums of the tile's pixels are finite. Groups beyond the tile are skipped: they may hold anything.
  __device__ __forceinline__ bool all_finite(const Accumulators& acc) const {
    float nothing[4] = {};  // NaN once a sum is not finite: 0 * Inf and 0 * NaN are NaN
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if ((used_groups_ >> j & 1) == 0) continue;
#pragma unroll
      for (int k = 0; k < kPhases; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) nothing[i] += 0 * acc[k][4 * j + i];
      }
    }
    return nothing[0] + nothing[1] + (nothing[2] + nothing[3]) == 0;
  }

 private:
  using Tile::first_channel_;
  using Tile::first_group;
  using Tile::lane_;
  using Tile::p;
  using Tile::used_groups_;
  using Tile::window_of;
  using typename Tile::Window;

  // Index of a channel's bias.
  __device__ __forceinline__ int bias_of(const Item& item, int channel) const {
    const int of_all = item.group * p.result_channels + channel;
    if constexpr (!kToBlocks) return of_all;
    const InBlock in = in_block(p.apart.blocks, of_all);
    return in.m + p.apart.blocks.line.remainder(in.k);
  }
};

}  // namespace deconv::sm90
