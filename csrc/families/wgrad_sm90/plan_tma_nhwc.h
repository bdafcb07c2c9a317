// What the Hopper family's kernels of grad_weight by tensor copies have in common: which copies bring a tile of pixels,
// and who computes what. Plain data, host and device.
#pragma once

#include <array>
#include <cstdint>

#include "families/igemm_sm90/plan.h"
#include "families/wgrad_sm90/tile.h"

namespace deconv {

inline constexpr int kWgradPlanes = 16;  // tensor maps of grad_output
inline constexpr int kWgradBoxes = 48;  // of all groups of taps

// A copy of grad_output: one plane's halo of a tile of pixels.
struct WgradBox {
  int8_t plane, chunk;  // chunk: of 128 bytes of channels (16-bit elements)
  std::array<int16_t, 3> shift;  // from the tile's first pixel to the box's, axes from the innermost on
};

struct WgradTma {
  Sm90Inner inner = Sm90Inner::kWidth;
  int fold = 1;  // groups that share one tile of channels, of which the blocks on the diagonal count
  // Extents from the innermost axis on: width, height, batch (kWidth), height, width, batch, or batch, width, height.
  std::array<int, 3> pixels{8, 8, 1};  // of a tile
  std::array<int, 3> halo{8, 8, 1};  // of a box
  std::array<int, 3> tiles{1, 1, 1};
  int planes = 1;  // of grad_output, that any tap reads
  std::array<std::array<int16_t, 2>, kWgradPlanes> plane{};  // first row and column
  std::array<int, 2> plane_step{1, 1};  // rows and columns of grad_output from one pixel of a plane to the next
  int tap_groups = 1;  // a block takes one
  std::array<int8_t, kWgradBoxes + 1> first_box{};  // of each group of taps
  std::array<WgradBox, kWgradBoxes> boxes{};
  int box_chunks = 1;  // of 128 bytes of channels, that each box stands for (float32)
  int x_boxes = 1;  // chunks of input channels of a block
  int y_chunks = 1;  // chunks of output channels
  int x_box_bytes = 0, y_box_bytes = 0;
  int y_boxes_at = 0;  // in a stage, bytes
  int slot_bytes = 0, slots = 2;  // ring of stages: all boxes of a tile of pixels
  int barriers_at = 0, shared_bytes = 0;
  int padded_m = 64, padded_n = 64;  // channels of a group in the partial sums
  int blocks_m = 1, blocks_n = 1, blocks_group = 1;
  int64_t steps = 0, steps_per_split = 0;  // tiles of pixels
  int splits = 1;
  bool sums = false;  // in the workspace: of splits, or because the result's fast channels do not lie together
  int64_t items = 0;  // tiles of channels and groups of taps, of all splits
  int64_t blocks = 0;
  int slice = 1;  // images at a time; the next ones add to the same sums
  bool repack_x = false, repack_y = false;  // a kernel before makes the operand channels_last in the workspace
  bool im2col = false;  // a kernel before makes grad_output a matrix there (weight_im2col.h), and the plan is of that
  int64_t x_at = 0, y_at = 0;  // there, bytes
};

}  // namespace deconv
