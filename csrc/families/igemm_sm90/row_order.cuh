// The order of result channels in the rows of operand A.
//
// wgmma leaves row r (a result channel) in lanes r % 8 * 4 .. + 3 of warp r / 16, columns (pixels) in pairs:
// acc[4 j + 2 (r % 16 >= 8) + b] is pixel 2 (lane % 4) + b of group j.
#pragma once

#include "families/igemm_sm90/plan.h"

namespace deconv::sm90 {

// The row of a warpgroup's operand A that computes `channel` in folded column `column`. If columns are adjacent in the
// result, folded columns share a warp; if channels are, they lie in different warps. With channels adjacent, 16-bit
// results stored from registers have permuted rows: movmatrix then leaves each lane four adjacent channels.
template <class T>
__device__ __forceinline__ int row_of(const IgemmSm90Plan& plan, int channel, int column) {
  if (!plan.channels_adjacent) {
    return plan.tile.fold == 1 ? channel : channel / 8 * 16 + column * 8 + channel % 8;
  }
  const int c = channel % 16;
  const int row = sm90_permutes_rows(plan, sizeof(T)) ? c / 4 * 2 + c % 2 + c / 2 % 2 * 8 : c;
  return column * (kSm90TileM / plan.tile.fold) + channel / 16 * 16 + row;
}
// The inverse within a warp: the channel that row `row` (0..15) computes. M-major rows are not permuted.
template <class T, bool kMajorM>
__device__ __forceinline__ int channel_of_row(const IgemmSm90Plan& plan, int row) {
  if (!kMajorM && sm90_permutes_rows(plan, sizeof(T))) return row % 8 / 2 * 4 + row % 2 + row / 8 * 2;
  return !plan.channels_adjacent && plan.tile.fold > 1 ? row % 8 : row;
}

}  // namespace deconv::sm90
