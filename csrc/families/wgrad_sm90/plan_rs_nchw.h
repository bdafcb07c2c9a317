// What the Hopper family's planner of grad_weight of contiguous images by lines gives to its kernel: plain data, host
// and device.
#pragma once

#include <array>
#include <cstdint>

#include "families/igemm_sm90/plan.h"
#include "families/wgrad_sm90/tile.h"

namespace deconv {

inline constexpr int kRsNchwRows = 64;  // of the kernel, idle ones included, in all groups

// Instances of the kernel: warpgroups that multiply, taps that each accumulates, and columns of each (wgmma's N).
struct RsNchwTile {
  int warpgroups, taps, n;
};
inline constexpr RsNchwTile kRsNchwTiles[] = {{3, 1, 192}, {2, 1, 192}, {3, 1, 128}, {2, 2, 128}, {3, 1, 96},
                                              {2, 2, 96},  {3, 3, 64},  {2, 4, 64},  {2, 1, 256}};
inline constexpr RsNchwTile kRsNchwTilesSplit[] = {{3, 1, 64}, {2, 2, 64}, {2, 1, 96}};  // accumulates twice

// Rows of the kernel that read the same rows of grad_output. Row u of a plane meets row `u - first` of the input with
// the first of them, a constant step before with each next one.
struct RsNchwGroup {
  int16_t plane = 0;  // first row
  int16_t first = 0;
};

// grad_weight of contiguous images (kernels/hopper/weight_lines.cuh has the meaning). A step is a tile of `rows` x
// `columns` pixels, one or two rows, 128 bytes of a channel.
struct WgradRsNchwPlan {
  static constexpr const char* kFamily = "wgrad_sm90";

  RsNchwTile tile{3, 1, 192};
  int parts = 1;  // 2: float32 as two TF32 parts, three products
  int fold = 1;  // taps that share the 64 rows of operand A, where there are few output channels
  int spread = 1;  // tiles of 64 output channels that the warpgroups of a block take; the rest are taps of a row
  int block_taps = 3;  // of a row of the kernel
  int block_rows = 3;  // of the kernel
  int block_m = 64;  // input channels
  int rows = 1, columns = 32;  // of a tile
  int tiles_h = 1, tiles_w = 1;  // of an image
  int row_groups = 1, tap_groups = 1;
  std::array<RsNchwGroup, kRsNchwRows> groups{};
  std::array<int16_t, kRsNchwRows> kernel_rows{};  // block_rows of each group; -1: idle
  int row_step = 1;  // of the input
  int channel_kinds = 1;  // every so many channels of grad_output begin alike, counted in 16 bytes
  int y_channels = 64;  // staged
  int y_pitch = 176;  // bytes from one channel to the next
  int y_box_bytes = 0;  // from one kind's channels to the next's
  int y_row_bytes = 0;  // of all channels
  int y_at = 0;  // in a stage, behind the input and its low parts
  int stage_bytes = 0, stages = 2, barriers_at = 0, shared_bytes = 0;
  int blocks_m = 1, blocks_n = 1;
  int padded_m = 64, padded_n = 64;  // channels of a group in the partial sums
  // A run is up to so many tiles below each other; splits take runs in turns.
  int run = 1, runs = 1;  // runs: of a column of tiles
  int all_runs = 1, splits = 1;
  int64_t blocks = 0;
};

}  // namespace deconv
