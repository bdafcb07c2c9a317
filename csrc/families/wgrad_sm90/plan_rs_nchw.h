// Plan of wgrad_rs_nchw.cuh: plain data, host and device.
#pragma once

#include <array>
#include <cstdint>

#include "families/igemm_sm90/plan.h"
#include "families/wgrad_sm90/tile.h"

namespace deconv {

inline constexpr int kRsNchwRows = 64;  // kernel rows in all groups, idle ones included

// Instances of the kernel: warpgroups that multiply, taps of each, columns of each (wgmma's N).
struct RsNchwTile {
  int warpgroups, taps, n;
};
inline constexpr RsNchwTile kRsNchwTiles[] = {{3, 1, 192}, {2, 1, 192}, {3, 1, 128}, {2, 2, 128}, {3, 1, 96},
                                              {2, 2, 96},  {3, 3, 64},  {2, 4, 64},  {2, 1, 256}};
inline constexpr RsNchwTile kRsNchwTilesSplit[] = {{3, 1, 64}, {2, 2, 64}, {2, 1, 96}};  // tf32x3: two accumulators

// Kernel rows that read the same source phase of grad_output. Its row u meets input row u - first by the first of them,
// and a constant step earlier by each next one.
struct RsNchwGroup {
  int16_t plane = 0;  // source phase of the height, by its first row
  int16_t first = 0;
};

// grad_weight from NCHW (wgrad_rs_nchw.cuh). A step is a tile of `rows` x `columns` pixels: one or two rows, 128 bytes
// of each channel.
struct WgradRsNchwPlan {
  static constexpr const char* kFamily = "wgrad_sm90";

  RsNchwTile tile{3, 1, 192};
  int parts = 1;  // 2: tf32x3
  int fold = 1;  // taps that share the 64 rows of operand A, with few output channels
  int spread = 1;  // tiles of 64 output channels among a block's warpgroups; the others take taps of a row
  int block_taps = 3;  // of a kernel row
  int block_rows = 3;  // kernel rows
  int block_m = 64;  // input channels
  int rows = 1, columns = 32;  // of a tile
  int tiles_h = 1, tiles_w = 1;  // of an image
  int row_groups = 1, tap_groups = 1;
  std::array<RsNchwGroup, kRsNchwRows> groups{};
  std::array<int16_t, kRsNchwRows> kernel_rows{};  // block_rows of each group; -1: idle
  int row_step = 1;  // of the input, from one kernel row of a group to the next
  int channel_kinds = 1;  // every channel_kinds-th channel of grad_output has the same offset from 16 bytes
  int y_channels = 64;  // staged
  int y_pitch = 176;  // bytes from one channel to the next
  int y_box_bytes = 0;  // from one kind's channels to the next's
  int y_row_bytes = 0;  // of all channels
  int y_at = 0;  // in a stage, behind the input and its low parts
  int stage_bytes = 0, stages = 2, barriers_at = 0, shared_bytes = 0;
  int blocks_m = 1, blocks_n = 1;
  int padded_m = 64, padded_n = 64;  // channels of a group in the partial sums
  // A run is a column of at most `run` tiles. Splits take runs in turns.
  int run = 1, runs = 1;  // runs: of a column of tiles
  int all_runs = 1, splits = 1;
  int64_t blocks = 0;
};

}  // namespace deconv
