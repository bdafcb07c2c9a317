// What the narrow family's planner gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

#include "core/taps.h"

namespace deconv {

inline constexpr int kSmallChannelThreads = 256;
inline constexpr int kSmallChannelWarps = kSmallChannelThreads / 32;
inline constexpr int kSmallChannelUnitBytes = 16;  // channels of one pixel that a product takes as half of its depth
inline constexpr int kSmallChannelMaxPhases = 64;  // along one axis; the same bound for planes
inline constexpr int kSmallChannelMaxPositions = 64;  // (plane, shift) pairs along one axis: bits of a word

// Groups of 8 pixels of one warp, so that accumulators fit into registers and operands are used often enough.
constexpr int small_channel_pixel_tiles(int row_tiles) { return row_tiles == 1 ? 8 : 4; }

// Blocks of a multiprocessor, by their registers. quads: four columns of the source at a time.
constexpr int small_channel_blocks(int row_tiles, int parts, bool quads) {
  return row_tiles == 4 || parts == 2 || quads ? 2 : 3;
}

struct SmallChannelExtent {
  int n = 1, h = 1, w = 1;
};

// One axis as the kernel walks it.
struct SmallChannelAxis {
  AxisGeometry geometry;
  int origin = 0;  // smallest shift
  int shifts = 1;  // from the smallest to the largest
  uint64_t planes = 0;  // those with taps
  int plane_count = 0;
  uint64_t positions[kSmallChannelMaxPhases]{};  // of a phase: bit slot of the plane * shifts + shift - origin
  uint8_t active[kSmallChannelMaxPhases]{};  // phases with taps
  int actives = 0;
};

// Forward and grad_input (conv.cuh has the meaning).
struct SmallChannelPlan {
  static constexpr const char* kFamily = "small_channel";

  int row_tiles = 1;  // tiles of 16 rows of one warp: 1, 2 or 4; a row is a result channel of a phase
  int warps_m = 1;  // warps along the rows, the others along the pixels
  int parts = 1;  // 2: float32 as two TF32 parts
  int channels = 1;  // result channels of a block
  bool all_heights = false;  // a block has all phases of the height, else one
  SmallChannelExtent tile;  // pixels of a phase, powers of two
  SmallChannelExtent tiles;
  int origin_h = 0, origin_w = 0;  // smallest shift
  int shifts_h = 1, shifts_w = 1;  // from the smallest to the largest
  int planes_h = 1, planes_w = 1;  // with taps
  int rows_h = 1, rows_w = 1;  // staged source pixels of a plane: tile and halo
  int source_pixels = 1;  // of all planes and images
  int source_pitch = 1;  // from one unit to the next, in units
  int units = 1;  // of a pixel, staged at once
  int chunks = 1;  // such stages
  bool quads = false;  // brought four columns at a time, given a base pointer of as many
  int buffers = 1;  // stages in shared memory; of two the next one is on its way while one is in use
  int row_groups = 1;  // of row_tiles tiles
  int positions = 1;  // most (height, width) positions of a row group
  int steps = 1;  // most steps of two units of a row group and chunk
  int stage_channel =
      1;  // elements of the staged results from one channel (pixel, if channels are adjacent) to the next
  int passes_h = 1, passes_m = 1;
  int tile_blocks = 1;  // blocks that share the tiles of one pass
  int64_t blocks = 0;
  int blocks_per_multiprocessor = 1;
  int source_at = 0, stage_at = 0, tables_at = 0, shared_bytes = 0;  // bytes; weights lie at 0
  bool columns_adjacent = true;  // of the result in memory; else its channels are
  bool whole_lines = false;  // channels_last without gaps, and a block has all channels: a line is one run
};

// Integers of the tables behind the staged results, in this order.
struct SmallChannelTables {
  int offsets = 0, units = 0, rows = 0, bias = 0, info = 0, pixels = 0, steps = 0, positions = 0, taps = 0, total = 0;
};

}  // namespace deconv
