// Shared by the plans of ss and rs_nhwc: the TMA boxes of a tile of pixels, and the division of the work. Plain data,
// host and device.
#pragma once

#include <array>
#include <cstdint>

#include "families/igemm_sm90/plan.h"
#include "families/wgrad_sm90/tile.h"

namespace deconv {

inline constexpr int kWgradPlanes = 16;  // source phases of grad_output: a tensor map each
inline constexpr int kWgradBoxes = 48;  // of all tap groups

// A TMA box of grad_output: the halo of a tile of pixels in one source phase.
struct WgradBox {
  int8_t plane, chunk;  // chunk: of 128 bytes of channels (16-bit types)
  std::array<int16_t, 3> shift;  // from the tile's first pixel to the box's, the innermost axis first
};

struct WgradTma {
  Sm90Inner inner = Sm90Inner::kWidth;
  int fold = 1;  // groups that share a tile of channels; its diagonal blocks are stored
  // The innermost axis first: width, height, batch (kWidth); height, width, batch (kHeight); batch, width, height
  // (kBatch).
  std::array<int, 3> pixels{8, 8, 1};  // of a tile
  std::array<int, 3> halo{8, 8, 1};  // of a box
  std::array<int, 3> tiles{1, 1, 1};
  int planes = 1;  // source phases of grad_output that any tap reads
  std::array<std::array<int16_t, 2>, kWgradPlanes> plane{};  // first row and column
  std::array<int, 2> plane_step{1, 1};  // of grad_output, from one pixel of a source phase to the next
  int tap_groups = 1;  // a block takes one
  std::array<int8_t, kWgradBoxes + 1> first_box{};  // of each tap group
  std::array<WgradBox, kWgradBoxes> boxes{};
  int box_chunks = 1;  // float32: chunks of 128 bytes of channels of each box
  int x_boxes = 1;  // chunks of input channels
  int y_chunks = 1;  // chunks of output channels
  int x_box_bytes = 0, y_box_bytes = 0;
  int y_boxes_at = 0;  // in a stage, byte offset
  int slot_bytes = 0, slots = 2;  // Pipeline of stages: all boxes of a tile of pixels
  int barriers_at = 0, shared_bytes = 0;
  int padded_m = 64, padded_n = 64;  // channels of a group in the partial sums
  int blocks_m = 1, blocks_n = 1, blocks_group = 1;
  int64_t steps = 0, steps_per_split = 0;  // tiles of pixels
  int splits = 1;
  bool sums = false;  // partial sums: for splits or slices, or because the result is scattered
  int64_t items = 0;  // work tiles: tiles of channels x tap groups x splits
  int64_t blocks = 0;
  int slice = 1;  // images at a time; later slices add to the same sums
  bool repack_x = false, repack_y = false;  // a kernel before rewrites the operand channels_last in the workspace
  bool im2col = false;  // there grad_output is an im2col matrix (lowerings/wgrad_im2col.h), which the plan is for
  int64_t x_at = 0, y_at = 0;  // there, byte offsets
};

}  // namespace deconv
