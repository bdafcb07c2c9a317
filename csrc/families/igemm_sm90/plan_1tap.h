// Plan of conv_1tap.cuh: plain data, host and device.
#pragma once

#include <cstdint>

#include "families/igemm_sm90/plan.h"

namespace deconv {

inline constexpr int kOneTapPiece = 32;  // adjacent pixels of an image
// Pixels of a piece's row. With several classes it has room for pixels before the piece; 16-bit rows then lie an odd
// multiple of 16 bytes apart, which avoids bank conflicts.
constexpr int one_tap_row(int classes) { return classes > 1 ? kOneTapPiece + 8 : kOneTapPiece; }
constexpr int one_tap_piece_bytes(int classes) { return one_tap_row(classes) * kSm90RowBytes; }  // of a k_block
inline constexpr int kOneTapPieces = 2;  // of a warpgroup: the 64 rows of operand A
inline constexpr int kOneTapMostSlots = 8;
// Result channels of a work tile: wgmma's N.
inline constexpr int kOneTapChannels[] = {64, 128, 192, 256};
// Warpgroups that multiply. Weight-stationary: each has work tiles of its own, and there are as many as registers
// allow.
constexpr int one_tap_warpgroups(int channels, bool resident) { return resident && channels <= 128 ? 3 : 2; }
constexpr int one_tap_threads(int channels, bool resident) {
  return 128 * (one_tap_warpgroups(channels, resident) + 1);
}
// Bytes of a result channel in the table: its place in a block, its bias.
inline constexpr int kOneTapEntryBytes = 16;

// Kernel = stride, from NCHW: pixels are operand A (conv_1tap.cuh).
struct OneTapPlan {
  static constexpr const char* kFamily = "igemm_sm90";

  IgemmSm90Plan weights;  // of the packed weights: tile_m result channels, k_blocks
  bool resident = false;  // weight-stationary: each warpgroup has work tiles of its own
  int pieces = 2 * kOneTapPieces;  // of a work tile
  // TMA begins at multiples of 16 bytes. The planes of every classes-th channel begin equally far behind such a
  // multiple: they form a class. A k_block holds class after class.
  int classes = 1;
  int image_pieces = 1;
  int columns = 1;  // work tiles that share pixels
  int items = 0, blocks = 0;
  // A stage is a k_block of the source and, unless weight-stationary, of the weights. rings: Pipelines, one in all or
  // one for each warpgroup.
  int slots = 0, stage_bytes = 0, rings = 1;
  int weights_at = 0, tables_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets

  int warpgroups() const { return one_tap_warpgroups(weights.tile_m, resident); }
};

}  // namespace deconv
