// What the planner of the Hopper family's strided planes gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

#include "families/igemm_sm90/plan.h"

namespace deconv {

// Of layers with strides of 2: which columns the taps of an even and of an odd column of the result read, as bits, the
// first the leftmost of all; that lies at a multiple of 8 columns from the pixel's own, or one before. Rows the same,
// wherever the first lies.
struct Stride2Pattern {
  int even, odd;
  bool before;
};
inline constexpr Stride2Pattern kStride2Patterns[] = {
    {0b001, 0b011, false}, {0b011, 0b010, true}, {0b011, 0b110, true}, {0b011, 0b011, true}};
constexpr int stride2_bits(int mask) { return mask == 0 ? 0 : (mask & 1) + stride2_bits(mask >> 1); }
// Columns, or rows, that taps read.
constexpr int stride2_lines(const Stride2Pattern& p) { return (p.even | p.odd) > 3 ? 3 : 2; }
constexpr int stride2_taps(const Stride2Pattern& p) { return stride2_bits(p.even) + stride2_bits(p.odd); }
// Octets of columns that a tile needs beside its own.
constexpr int stride2_more_octets(const Stride2Pattern& p) { return p.before && stride2_lines(p) == 3 ? 2 : 1; }

inline constexpr int kStride2Channels = 64;  // of the result, of an item
inline constexpr int kStride2Octets = 8;     // of columns, of a warpgroup: the 64 rows of operand A
inline constexpr int kStride2Warpgroups = 2;  // that multiply
inline constexpr int kStride2Threads = 128 * (kStride2Warpgroups + 1);
inline constexpr int kStride2MostSlots = 6;

// Pixels are operand A, gathered from planes as they lie; each phase has accumulators of its own
// (kernels/hopper/strided.cuh).
struct Stride2Plan {
  static constexpr const char* kFamily = "igemm_sm90";

  IgemmSm90Plan weights;  // how they are packed: chunks, slots
  int pattern = 0;         // of kStride2Patterns
  bool resident = false;   // a block's weights stay in shared memory, and each warpgroup takes items of its own
  int octets = 8;          // of a tile's row; its rows: kStride2Octets / octets
  int halo_rows = 1, halo_octets = 1;
  int halo_bytes = 0;  // of a chunk of channels
  int origin_h = 0, origin_w = 0;           // where a tile's halo begins, from its first pixel
  int tiles_w = 1, tiles_h = 1, tiles = 0;  // of an image; of all
  int columns = 1;  // items that share pixels: groups, tiles of channels
  int items = 0, blocks = 0;
  // Of halos, of each ring; of weights, a stage those of a chunk, a row of a pixel's halo and a phase of the height.
  int slots = 0, weight_slots = 0, stage_bytes = 0;
  int weights_at = 0, bias_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets

  int tile_rows() const { return kStride2Octets / octets; }
  int rings() const { return resident ? kStride2Warpgroups : 1; }
};

}  // namespace deconv
