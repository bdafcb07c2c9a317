// Plans of gemm_sm80.cuh and gemm_sm90.cuh: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

// Warps of a block, by role. parts: 2 is tf32x3, which needs more registers.
inline constexpr int kCol2imMultiplyWarps = 8, kCol2imBringWarps = 4;
constexpr int col2im_add_warps(int parts) { return parts == 2 ? 4 : 8; }
constexpr int col2im_threads(int parts) {
  return 32 * (kCol2imMultiplyWarps + col2im_add_warps(parts) + kCol2imBringWarps);
}
inline constexpr int kCol2imPixelTiles = 4;  // groups of 8 source pixels of a warp
inline constexpr int kCol2imUnitBytes = 16;  // of one copy, of channels or of columns
inline constexpr int kCol2imMostSlots = 12;    // stages of the source in shared memory
inline constexpr int kCol2imMostRowTiles = 3;  // of one warp
inline constexpr int kCol2imMostUnits = 4;  // Col2imWalk::units, or half as many
// A full and an empty barrier for each stage, and for each of two steps of products.
inline constexpr int kCol2imBarrierBytes = 16 * (kCol2imMostSlots + 2);

// A *segment* is a block's unit of work: rows of a strip of columns of one image, walked from top to bottom, some
// source rows a step. Products are kept of the rows of two steps, and of earlier rows that results still read.
struct Col2imWalk {
  int channels = 1;              // result channels of a block
  int passes = 1;                // blocks of channels
  bool columns_adjacent = true;  // in the result; else channels are
  int columns = 1;               // of a strip, in pixels of a phase
  int rows = 1;                  // of the source, in a step
  int lead = 0;  // columns of products before the first one needed
  int pitch = 1;                 // columns of products
  int origin_h = 0, origin_w = 0;  // smallest shift
  int shifts_h = 1, shifts_w = 1;  // from the smallest to the largest
  int ring_rows = 1;  // rows of products that are kept
  int product_pitch = 1;  // words from one product (channel, tap) to the next
  int strips = 1, segments = 1, segment_rows = 1;  // of an image; segment_rows: in pixels of a phase
  int steps = 1;                                   // of a segment
  int units = 1;  // rows, or 32 columns of a row, that a warp adds up at once
  int segment_blocks = 1;  // blocks that share the segments of a pass
  int64_t blocks = 0;
};

struct Col2imConvPlan : Col2imWalk {
  static constexpr const char* kFamily = "col2im";

  int row_tiles = 1;  // tiles of 16 rows of a warp; a row is a (result channel, tap)
  int warps_m = 1;  // along the rows; the others along the pixels
  int parts = 1;  // 2: tf32x3
  int column_bytes = 0;  // of one copy of adjacent columns: 16 or 4; 0: copies along the channels
  int depth_steps = 1;  // steps of K (one instruction each) in a stage
  int all_depth_steps = 1, chunks = 1;  // steps of K of all channels; stages of a step of rows
  int slots = 2;
  int slot_bytes = 0;
  int source_at = 0, products_at = 0, tables_at = 0, shared_bytes = 0;  // byte offsets; weights begin at 0

  constexpr int all_row_tiles() const { return row_tiles * warps_m; }
  constexpr int warps_n() const { return kCol2imMultiplyWarps / warps_m; }
  constexpr int pixels() const { return warps_n() * 8 * kCol2imPixelTiles; }  // of a step, a power of two
};

inline constexpr int kCol2imWarpgroups = 2;       // that multiply
inline constexpr int kCol2imSm90AddWarps = 11;  // and the TMA warp: three warpgroups
inline constexpr int kCol2imSm90Threads = 128 * (kCol2imWarpgroups + 3);
inline constexpr int kCol2imSm90MostUnits = 2;  // Col2imWalk::units
inline constexpr int kCol2imChunkBytes = 128;  // bytes of channels of a stage: a k_block
inline constexpr int kCol2imSm90MostSlots = 8;
inline constexpr int kCol2imOperandRows[] = {16, 32, 48, 64, 96, 128};
// Tiles of 64 pixels of each of two warpgroups: as many as registers hold sums for.
constexpr int col2im_sm90_tiles(int operand_rows) { return operand_rows <= 16 ? 4 : operand_rows <= 64 ? 2 : 1; }

// TMA loads, wgmma multiplies (gemm_sm90.cuh).
struct Col2imSm90Plan : Col2imWalk {
  static constexpr const char* kFamily = "col2im";

  int operand_rows = 16;  // of kCol2imOperandRows: channels x taps, rounded up
  bool planes = false;  // NCHW: columns of the source are adjacent, else channels
  // staged_lead: staged columns before the first one needed, because TMA begins at multiples of 16 bytes. staged_pitch:
  // all staged columns. Products are kept of the needed columns only.
  int staged_lead = 0, staged_pitch = 1;
  int chunks = 1;  // stages of a step
  int slots = 2;
  int slot_bytes = 0;  // from one stage to the next
  int weights_at = 0, products_at = 0, tables_at = 0, shared_bytes = 0;  // byte offsets; stages begin at 0

  constexpr int stage_bytes() const { return rows * staged_pitch * kCol2imChunkBytes; }  // by TMA
};

}  // namespace deconv
