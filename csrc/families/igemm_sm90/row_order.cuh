// The order of result channels in the rows of operand A.
//
// wgmma leaves row r of the tile (a result channel) in lanes r % 8 * 4 .. + 3 of warp r / 16, columns (pixels) in
// pairs: acc[4 j + 2 (row >= 8) + b] is pixel 2 (lane % 4) + b of group j.
#pragma once

#include "families/igemm_sm90/plan.h"

namespace deconv::hopper {

// The row of operand A, of a warpgroup's, that computes a channel of its in folded column `column`. Folded columns are
// in one warp if columns are adjacent in the result, in different ones if channels are. Then 16-bit types that leave
// from registers are permuted so that transposing 8x8 matrices leaves each lane four neighbouring channels.
template <class T>
__device__ __forceinline__ int row_of(const HopperConvPlan& plan, int channel, int column) {
  if (!plan.channels_adjacent) {
    return plan.tile.fold == 1 ? channel : channel / 8 * 16 + column * 8 + channel % 8;
  }
  const int c = channel % 16;
  const int row = hopper_permutes_rows(plan, sizeof(T)) ? c / 4 * 2 + c % 2 + c / 2 % 2 * 8 : c;
  return column * (kHopperTileM / plan.tile.fold) + channel / 16 * 16 + row;
}
// The channel, of a warp's, that row `row` (0..15) of its computes. Rows of M-major weights are the channels.
template <class T, bool kMajorM>
__device__ __forceinline__ int channel_of_row(const HopperConvPlan& plan, int row) {
  if (!kMajorM && hopper_permutes_rows(plan, sizeof(T))) return row % 8 / 2 * 4 + row % 2 + row / 8 * 2;
  return !plan.channels_adjacent && plan.tile.fold > 1 ? row % 8 : row;
}

}  // namespace deconv::hopper
