// What the col2im family's planner gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

// Warps of a block, by what they do. parts: of the operands; three products of two parts want more registers.
inline constexpr int kCol2imMultiplyWarps = 8, kCol2imBringWarps = 4;
constexpr int col2im_add_warps(int parts) { return parts == 2 ? 4 : 8; }
constexpr int col2im_threads(int parts) {
  return 32 * (kCol2imMultiplyWarps + col2im_add_warps(parts) + kCol2imBringWarps);
}
inline constexpr int kCol2imPixelTiles = 4;    // groups of 8 source pixels of one warp
inline constexpr int kCol2imUnitBytes = 16;    // that one copy brings, of channels or of columns
inline constexpr int kCol2imMostSlots = 12;    // stages of the source in shared memory
inline constexpr int kCol2imMostRowTiles = 3;  // of one warp
inline constexpr int kCol2imMostUnits = 4;     // of results, that a warp adds up at once; or half as many
// Of each stage, and of each of two steps of products: a barrier that says full and one that says empty.
inline constexpr int kCol2imBarrierBytes = 16 * (kCol2imMostSlots + 2);

// A block's stretch of work is a *segment*: rows of a strip of columns of one image, walked from top to bottom, some
// source rows a step. Products of the rows of two steps, and of those before that results still read, are kept.
struct Col2imWalk {
  int channels = 1;              // result channels of a block
  int passes = 1;                // blocks of channels
  bool columns_adjacent = true;  // of the result in memory; else its channels are
  int columns = 1;               // of a strip, in pixels of a phase
  int rows = 1;                  // of the source, in a step
  int lead = 0;                  // columns of products before the first one wanted
  int pitch = 1;                 // columns of products
  int origin_h = 0, origin_w = 0;  // smallest shift
  int shifts_h = 1, shifts_w = 1;  // from the smallest to the largest
  int ring_rows = 1;      // of products that are kept
  int product_pitch = 1;  // words from one row of products to the next
  int strips = 1, segments = 1, segment_rows = 1;  // of an image; rows in pixels of a phase
  int steps = 1;                                   // of a segment
  int units = 1;           // rows, or 32 columns of one, that a warp adds up at once
  int segment_blocks = 1;  // that share the segments of one pass
  int64_t blocks = 0;
};

struct Col2imConvPlan : Col2imWalk {
  static constexpr const char* kFamily = "col2im";

  int row_tiles = 1;     // tiles of 16 rows of one warp; a row is a result channel and a tap
  int warps_m = 1;       // warps along the rows, the others along the pixels
  int parts = 1;         // 2: float32 as two TF32 parts
  int column_bytes = 0;  // that one copy of adjacent columns brings: 16, 4, or 0 for copies of channels
  int depth_steps = 1;   // products' depths in a stage
  int all_depth_steps = 1, chunks = 1;  // of all channels; stages of a step
  int slots = 2;
  int slot_bytes = 0;
  int source_at = 0, products_at = 0, tables_at = 0, shared_bytes = 0;  // bytes; weights lie at 0

  constexpr int all_row_tiles() const { return row_tiles * warps_m; }
  constexpr int warps_n() const { return kCol2imMultiplyWarps / warps_m; }
  constexpr int pixels() const { return warps_n() * 8 * kCol2imPixelTiles; }  // of a step, a power of two
};

inline constexpr int kCol2imWarpgroups = 2;       // that multiply
inline constexpr int kCol2imSm90AddWarps = 11;  // with the one that brings three warpgroups
inline constexpr int kCol2imSm90Threads = 128 * (kCol2imWarpgroups + 3);
inline constexpr int kCol2imSm90MostUnits = 2;  // of results, that a warp adds up at once
inline constexpr int kCol2imChunkBytes = 128;  // of channels, of a stage
inline constexpr int kCol2imSm90MostSlots = 8;
inline constexpr int kCol2imOperandRows[] = {16, 32, 48, 64, 96, 128};
// Tiles of 64 pixels of each of two warpgroups: sums of so many rows of operand B fit the registers.
constexpr int col2im_sm90_tiles(int operand_rows) { return operand_rows <= 16 ? 4 : operand_rows <= 64 ? 2 : 1; }

// Source by tensor copies, products from wgmma (gemm_sm90.cuh).
struct Col2imSm90Plan : Col2imWalk {
  static constexpr const char* kFamily = "col2im";

  int operand_rows = 16;  // of kCol2imOperandRows: channels and taps, filled up
  bool planes = false;    // columns of the source are adjacent, else channels
  // Staged columns before the first one wanted, for copies begin at multiples of 16 bytes; staged columns. Products
  // have neither these nor those behind.
  int staged_lead = 0, staged_pitch = 1;
  int chunks = 1;         // stages of a step
  int slots = 2;
  int slot_bytes = 0;  // from one stage to the next
  int weights_at = 0, products_at = 0, tables_at = 0, shared_bytes = 0;  // bytes; stages lie at 0

  constexpr int stage_bytes() const { return rows * staged_pitch * kCol2imChunkBytes; }  // that a copy brings
};

}  // namespace deconv
