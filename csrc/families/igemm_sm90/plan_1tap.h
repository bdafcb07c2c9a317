// What the planner of the Hopper family's planes as they lie gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

#include "families/igemm_sm90/plan.h"

namespace deconv {

inline constexpr int kOneTapPiece = 32;  // neighbouring pixels of an image
// Pixels of a channel that tensor copies bring for a piece: where channels are of several classes some before it, too,
// and so many that rows lie an odd multiple of 16 bytes apart.
constexpr int one_tap_row(int classes) { return classes > 1 ? kOneTapPiece + 8 : kOneTapPiece; }
constexpr int one_tap_piece_bytes(int classes) { return one_tap_row(classes) * kSm90RowBytes; }  // of a chunk
inline constexpr int kOneTapPieces = 2;  // of a warpgroup: the 64 rows of operand A
inline constexpr int kOneTapMostSlots = 8;
// Result channels of an item: columns of one instruction.
inline constexpr int kOneTapChannels[] = {64, 128, 192, 256};
// Warpgroups that multiply: with weights that stay each for itself, and so many as registers suffice for.
constexpr int one_tap_warpgroups(int channels, bool resident) { return resident && channels <= 128 ? 3 : 2; }
constexpr int one_tap_threads(int channels, bool resident) {
  return 128 * (one_tap_warpgroups(channels, resident) + 1);
}
// What is known of an item's result channels: of each where it lies in a block, and its bias.
inline constexpr int kOneTapEntryBytes = 16;

// One tap, and a contiguous source, whose planes of pixels are operand A (kernels/hopper/planes.cuh).
struct OneTapPlan {
  static constexpr const char* kFamily = "igemm_sm90";

  IgemmSm90Plan weights;  // how they are packed: tile_m result channels, chunks of source channels
  bool resident = false;  // a block's weights stay in shared memory, and each warpgroup takes items of its own
  int pieces = 2 * kOneTapPieces;  // of an item
  // Tensor copies begin at multiples of 16 bytes. Every classes-th channel's plane begins as far behind one: they are
  // of one class, and of a chunk those of the first class come first.
  int classes = 1;
  int image_pieces = 1;
  int columns = 1;  // items that share pixels
  int items = 0, blocks = 0;
  // Stages of a ring: a chunk of the source and, unless they stay, of the weights. Rings: one, or one of each
  // warpgroup.
  int slots = 0, stage_bytes = 0, rings = 1;
  int weights_at = 0, tables_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets

  int warpgroups() const { return one_tap_warpgroups(weights.tile_m, resident); }
};

}  // namespace deconv
