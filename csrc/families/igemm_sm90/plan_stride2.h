// Plan of conv_stride2.cuh: plain data, host and device.
#pragma once

#include <cstdint>

#include "families/igemm_sm90/plan.h"

namespace deconv {

// Which source columns the taps of an even and of an odd result column read: a bit each, the lowest for the leftmost
// column of all. That one lies a multiple of 8 columns from the pixel's own, or one before (`before`). Rows have the
// same patterns; their first may lie anywhere.
struct Stride2Pattern {
  int even, odd;
  bool before;
};
inline constexpr Stride2Pattern kStride2Patterns[] = {
    {0b001, 0b011, false}, {0b011, 0b010, true}, {0b011, 0b110, true}, {0b011, 0b011, true}};
constexpr int stride2_bits(int mask) { return mask == 0 ? 0 : (mask & 1) + stride2_bits(mask >> 1); }
// Columns, or rows, that the taps read.
constexpr int stride2_lines(const Stride2Pattern& p) { return (p.even | p.odd) > 3 ? 3 : 2; }
constexpr int stride2_taps(const Stride2Pattern& p) { return stride2_bits(p.even) + stride2_bits(p.odd); }
// Octets of columns that a tile needs beyond its own.
constexpr int stride2_more_octets(const Stride2Pattern& p) { return p.before && stride2_lines(p) == 3 ? 2 : 1; }

inline constexpr int kStride2Channels = 64;  // of the result, of a work tile
inline constexpr int kStride2Octets = 8;  // octets of columns of a warpgroup: the 64 rows of operand A
inline constexpr int kStride2Warpgroups = 2;  // that multiply
inline constexpr int kStride2Threads = 128 * (kStride2Warpgroups + 1);
inline constexpr int kStride2MostSlots = 6;

// Forward with stride 2, from NCHW: pixels are operand A, and each phase has its own accumulators (conv_stride2.cuh).
struct Stride2Plan {
  static constexpr const char* kFamily = "igemm_sm90";

  IgemmSm90Plan weights;  // of the packed weights: k_blocks, slots
  int pattern = 0;         // of kStride2Patterns
  bool resident = false;  // weight-stationary: each warpgroup has work tiles of its own
  int octets = 8;  // of a tile's row; it has kStride2Octets / octets rows
  int halo_rows = 1, halo_octets = 1;
  int halo_bytes = 0;  // of a k_block
  int origin_h = 0, origin_w = 0;  // a halo's first pixel, from its tile's first
  int tiles_w = 1, tiles_h = 1, tiles = 0;  // of an image; of all images
  int columns = 1;  // work tiles that share pixels
  int items = 0, blocks = 0;
  // slots: of each Pipeline of halos. A stage of weights is for a k_block, a source row of the pixel's and a phase of
  // the height.
  int slots = 0, weight_slots = 0, stage_bytes = 0;
  int weights_at = 0, bias_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets

  int tile_rows() const { return kStride2Octets / octets; }
  int rings() const { return resident ? kStride2Warpgroups : 1; }
};

}  // namespace deconv
