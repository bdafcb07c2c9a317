// Plan of conv.cuh: plain data, host and device.
#pragma once

#include <cstdint>

#include "core/taps.h"

namespace deconv {

inline constexpr int kSmallChannelThreads = 256;
inline constexpr int kSmallChannelWarps = kSmallChannelThreads / 32;
inline constexpr int kSmallChannelUnitBytes = 16;  // channels of one pixel: half of an instruction's K
inline constexpr int kSmallChannelMaxPhases = 64;  // along one axis; also of source phases
inline constexpr int kSmallChannelMaxPositions = 64;  // (source phase, shift) pairs along one axis: bits of a word

// Groups of 8 pixels of a warp: registers hold their accumulators, and operands are used often enough.
constexpr int small_channel_pixel_tiles(int row_tiles) { return row_tiles == 1 ? 8 : 4; }

// Blocks a multiprocessor, by their registers. quads: loads four columns of the source at a time.
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
  uint64_t planes = 0;  // source phases with taps, a bit each
  int plane_count = 0;
  uint64_t positions[kSmallChannelMaxPhases]{};  // of a phase: bit (source phase's slot * shifts + shift - origin)
  uint8_t active[kSmallChannelMaxPhases]{};  // phases with taps
  int actives = 0;
};

// Forward and grad_input (conv.cuh).
struct SmallChannelPlan {
  static constexpr const char* kFamily = "small_channel";

  int row_tiles = 1;  // tiles of 16 rows of one warp: 1, 2 or 4; a row is a result channel of a phase
  int warps_m = 1;  // warps along the rows, the others along the pixels
  int parts = 1;  // 2: tf32x3
  int channels = 1;  // result channels of a block
  bool all_heights = false;  // a block has all phases of the height; else one
  SmallChannelExtent tile;  // pixels of a phase, powers of two
  SmallChannelExtent tiles;
  int origin_h = 0, origin_w = 0;  // smallest shift
  int shifts_h = 1, shifts_w = 1;  // from the smallest to the largest
  int planes_h = 1, planes_w = 1;  // source phases with taps
  int rows_h = 1, rows_w = 1;  // staged source pixels of a source phase: tile and halo
  int source_pixels = 1;  // of all source phases and images
  int source_pitch = 1;  // from one unit to the next, in units
  int units = 1;  // of a k_block: 16 bytes of channels each
  int chunks = 1;  // k_blocks
  bool quads = false;  // loads four columns at a time, if the source is aligned to them
  int buffers = 1;  // k_blocks in shared memory; of two, the next is in flight while one is in use
  int row_groups = 1;  // of row_tiles tiles
  int positions = 1;  // most (height, width) positions of a row group
  int steps = 1;  // most steps of two units of a row group and k_block
  int stage_channel = 1;  // staged elements from one channel (channels adjacent: pixel) to the next
  int passes_h = 1, passes_m = 1;
  int tile_blocks = 1;  // blocks that share the tiles of a pass
  int64_t blocks = 0;
  int blocks_per_multiprocessor = 1;
  int source_at = 0, stage_at = 0, tables_at = 0, shared_bytes = 0;  // byte offsets; weights begin at 0
  bool columns_adjacent = true;  // in the result; else channels are
  bool whole_lines = false;  // channels_last without gaps, and a block has all channels: a line is one run
};

// Tables behind the staged results: where each begins, in integers, in this order.
struct SmallChannelTables {
  int offsets = 0, units = 0, rows = 0, bias = 0, info = 0, pixels = 0, steps = 0, positions = 0, taps = 0, total = 0;
};

}  // namespace deconv
