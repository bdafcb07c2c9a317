// What the Hopper family's planner of grad_weight by tensor copies gives to its kernel: plain data, host and device.
#pragma once

#include <array>
#include <cstdint>

#include "hopper_plan.h"
#include "hopper_weight_plan.h"

namespace deconv {

inline constexpr int kHopperWeightChannels = 64;  // of a 128-byte row: wgmma's M, and one block of its N
inline constexpr int kHopperWeightSteps = 16;     // most instructions' worth of 16 pixels in a tile
inline constexpr int kHopperWeightAtOnce = 4;     // of these, that a warpgroup starts before it waits for others
inline constexpr int kHopperWeightPlanes = 16;    // tensor maps of grad_output
inline constexpr int kHopperWeightRuns = 48;      // of all groups of taps
inline constexpr int kHopperWeightBoxes = 48;

// Instances of the kernel: warpgroups that multiply, blocks of 64 columns in the first and in the second run of each.
struct HopperWeightTensorTile {
  int warpgroups, first, second;
  constexpr int runs() const { return second > 0 ? 2 : 1; }
};
inline constexpr HopperWeightTensorTile kHopperWeightTensorTiles[] = {{3, 3, 0}, {3, 2, 1}, {3, 2, 2}, {2, 4, 0},
                                                                      {2, 3, 2}, {2, 2, 0}, {2, 2, 2}};

// What the warpgroups of a block divide among themselves.
enum class HopperWeightShare { kTaps, kInputChannels, kOutputChannels };

// One instruction's columns: `count` blocks of 64 output channels, each of one tap. In a stage's copies of grad_output
// the first block's pixels begin at row `row`, each next block's `row_step` rows further on.
struct HopperWeightRun {
  int16_t row, row_step;
  int16_t tap, tap_step;
  int8_t chunk, chunk_step;  // of 64 output channels
  int8_t count;              // 0: idle
};

// A copy of grad_output: one plane's halo of a tile of pixels.
struct HopperWeightBox {
  int8_t plane, chunk;
  std::array<int16_t, 3> shift;  // from the tile's first pixel to the box's, axes from the innermost on
};

// grad_weight of 16-bit elements (kernels/hopper/weight_tensor.cuh has the meaning).
struct HopperWeightTensorPlan {
  HopperWeightTensorTile tile{3, 3, 0};
  HopperWeightShare share = HopperWeightShare::kTaps;
  HopperInner inner = HopperInner::kWidth;
  int fold = 1;  // groups that share 64 x 64 channels, of which the blocks on the diagonal count
  // Extents from the innermost axis on: width, height, batch (kWidth), height, width, batch, or batch, width, height.
  std::array<int, 3> pixels{8, 8, 1};  // of a tile
  std::array<int, 3> halo{8, 8, 1};  // of a box
  std::array<int, 3> tiles{1, 1, 1};
  int instructions = 4;  // of 16 pixels, in a tile, for each run
  int octet_step = 8;  // rows of a box between the two halves of 16 pixels
  std::array<int16_t, kHopperWeightSteps> instruction_row{};  // of a box, where the 16 pixels begin
  int planes = 1;  // of grad_output, that any tap reads
  std::array<std::array<int16_t, 2>, kHopperWeightPlanes> plane{};  // first row and column
  std::array<int, 2> plane_step{1, 1};  // rows and columns of grad_output from one pixel of a plane to the next
  int tap_groups = 1;  // a block takes one
  int group_runs = 3;  // of a block
  std::array<HopperWeightRun, kHopperWeightRuns> runs{};
  std::array<int8_t, kHopperWeightRuns + 1> first_box{};  // of each group of taps
  std::array<HopperWeightBox, kHopperWeightBoxes> boxes{};
  int x_boxes = 1;  // tiles of 64 input channels of a block
  int y_chunks = 1;  // tiles of 64 output channels
  int x_box_bytes = 0, y_box_bytes = 0;
  int slot_bytes = 0, slots = 2;  // ring of stages: all boxes of a tile of pixels
  int barriers_at = 0, shared_bytes = 0;
  int padded_m = 64, padded_n = 64;  // channels of a group in the partial sums
  int blocks_m = 1, blocks_n = 1, blocks_group = 1;
  int64_t steps = 0, steps_per_split = 0;  // tiles of pixels
  int splits = 1;
  bool sums = false;  // in the workspace: of splits, or because the result's output channels do not lie together
  int64_t items = 0;  // tiles of channels and groups of taps, for each split
  int64_t blocks = 0;
  int slice = 1;  // images at a time; the next ones add to the same sums
  bool repack_x = false, repack_y = false;  // a kernel before makes the operand channels_last in the workspace
  int64_t x_at = 0, y_at = 0;  // there, bytes
  HopperWeightPlan gathered;  // serves where the driver refuses a tensor map
};

}  // namespace deconv
