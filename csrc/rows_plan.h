// What the rows family's planner gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kRowsUnitBytes = 16;    // channels of one pixel that a product takes as half of its depth
inline constexpr int kRowsPieceBytes = 16;   // of a result row that a lane stores at once
inline constexpr int kRowsMostWarps = 16;    // of a block, and of a multiprocessor: by their registers
inline constexpr int kRowsMostPhases = 32;   // along one axis: bits of a word

// Forward and grad_input (kernels/rows/conv.cuh has the meaning).
struct RowsConvPlan {
  int pixel_tiles = 1;    // of 16 pixels of one warp: 1, 2 or 4
  int channel_tiles = 1;  // of 8 result channels: 1 or 2; as many are a band
  int warps_w = 1;        // warps that share a row of each channel of a band
  int row_lanes = 32, rows_at_once = 1;  // lanes that store a row together, and rows that a warp so stores at once
  int groups = 1, bands = 1;  // of a block: whole groups, or bands of one group
  int group_blocks = 1;       // blocks of bands that a group has
  int channel_blocks = 1;     // of all groups
  int units = 1;              // of a source pixel
  int entries = 0;            // of the phases' lists: two units, each at its tap
  int origin_h = 0, origin_w = 0;  // smallest shift
  int shifts_h = 1, shifts_w = 1;  // from the smallest to the largest
  int lead = 0;    // columns staged before the first that a tap reads, so that four of them are one load
  int pitch = 1;   // pixels from one staged row of a unit to the next
  int slots = 2;   // source rows in shared memory: those of a step, and the next one
  int stage_pitch = 16;  // bytes from one channel's staged row to the next
  int heights = 1, tiles_w = 1;  // steps along the height, tiles along the width
  int64_t steps = 0;
  int64_t blocks = 0;
  int blocks_per_multiprocessor = 1;
  int source_at = 0, stage_at = 0, tables_at = 0, shared_bytes = 0;  // bytes; weights lie at 0

  constexpr int warps() const { return groups * bands * warps_w; }
  constexpr int columns() const { return 16 * pixel_tiles * warps_w; }  // pixels of a tile
};

// Bytes of the tables: of each half of an entry two places, 8 bytes and 4, and its unit; then where each list begins.
constexpr int64_t rows_table_bytes(int64_t entries, int phases) { return 2 * entries * (8 + 4 + 4) + 4 * (phases + 1); }

}  // namespace deconv
