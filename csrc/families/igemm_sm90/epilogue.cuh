// From a warpgroup's accumulators to the result: bias, one rounding, whole sectors where the layout allows.
//
// A sector (32 bytes) that two warps write a part of each is read from memory first, unless they do so within some
// hundred cycles; so a tile may be planned to write whole sectors, but at the ends of the result's rows
// (plan.whole_sectors): tiles side by side overlap, and each row is divided between them where a sector begins.
//
#pragma once

#include "families/igemm_sm90/row_order.cuh"
#include "families/igemm_sm90/store_blocks.cuh"
#include "families/igemm_sm90/store_channels.cuh"
#include "families/igemm_sm90/store_columns.cuh"
#include "families/igemm_sm90/store_rows.cuh"
#include "families/igemm_sm90/store_runs.cuh"
#include "families/igemm_sm90/store_tma.cuh"

namespace deconv::hopper {

// kToBlocks: plan.to_blocks, in instances of their own, for it takes registers.
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
    // A warpgroup within one line of the tile, which large images give, has a shorter way.
    const bool one_line = first_group().group + kGroups <= p.plan.line_groups;
    if (p.plan.channels_adjacent) {
      const ChannelStore<Tile> channels(*this);
      one_line ? channels.template store<true>(window, acc) : channels.template store<false>(window, acc);
    } else if (p.plan.inner == HopperInner::kWidth) {
      const RowStore<Tile> rows(*this);
      const RunStore<Tile> runs(*this);
      const bool in_line = p.plan.pixels.h - p.plan.second.h == 1;
      if constexpr (hopper_joins_phases(HopperTile{kGroups, kPhases, kFold})) {
        if (p.plan.row_phases > kPhases) {
          in_line ? rows.template store_all_phases<true>(item, window, phases.w, acc)
                  : rows.template store_all_phases<false>(item, window, phases.w, acc);
          return;
        }
      }
      if constexpr (hopper_writes_whole_sectors(HopperTile{kGroups, kPhases, kFold})) {
        if (p.plan.whole_sectors) {
          in_line ? rows.template store<true>(item, window, acc) : rows.template store<false>(item, window, acc);
          return;
        }
      }
      if constexpr (hopper_stores_flat(HopperTile{kGroups, kPhases, kFold})) {
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

  // Whether the sums of the tile's pixels are; groups beyond it may hold anything.
  __device__ __forceinline__ bool all_finite(const Accumulators& acc) const {
    float nothing[4] = {};  // NaN from the first sum on that is not finite
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

  // Which of the biases a channel has.
  __device__ __forceinline__ int bias_of(const Item& item, int channel) const {
    const int of_all = item.group * p.result_channels + channel;
    if constexpr (!kToBlocks) return of_all;
    const InBlock in = in_block(p.apart.blocks, of_all);
    return in.m + p.apart.blocks.line.remainder(in.k);
  }
};

}  // namespace deconv::hopper
