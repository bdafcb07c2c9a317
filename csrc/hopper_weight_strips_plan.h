// What the Hopper family's planner of grad_weight of float32 by strips gives to its kernels: plain data, host and
// device.
#pragma once

#include <array>
#include <cstdint>

#include "hopper_weight_tensor_plan.h"

namespace deconv {

inline constexpr int kHopperStrips = 8;          // whose pixels one instruction multiplies, one of each
inline constexpr int kHopperStripUnit = 4;       // positions of a strip in a row of 128 bytes
inline constexpr int kHopperStripsKernel = 128;  // most columns of a kernel
inline constexpr int kHopperStripsPlanes = 16;   // most planes of the columns

// Instances of the kernel: warpgroups that multiply, and tiles of 64 input x n output channels that each accumulates.
struct HopperWeightStripsTile {
  int warpgroups, columns, n;
  constexpr int threads() const { return 128 * (warpgroups + 1); }  // one brings the operands
};
inline constexpr HopperWeightStripsTile kHopperWeightStripsTiles[] = {
    {3, 3, 64}, {2, 4, 64}, {2, 6, 64}, {2, 2, 128}, {3, 4, 32}};
inline constexpr HopperWeightStripsTile kHopperWeightStripsTilesSplit[] = {{2, 3, 64}, {2, 2, 64}};

// grad_weight of float32 (kernels/hopper/weight_strips.cuh has the meaning).
struct HopperWeightStripsPlan {
  HopperWeightStripsTile tile{3, 3, 64};
  HopperWeightShare share = HopperWeightShare::kTaps;  // what the warpgroups divide among themselves
  int parts = 1;       // 2: float32 as two TF32 parts, three products
  int fold = 1;        // groups that share 64 x n channels, of which the blocks on the diagonal count
  int width = 4;       // pixels of a strip, a multiple of kHopperStripUnit
  int strips_w = 8;    // strips side by side in a row; the others belong to further images
  int tiles_w = 1;     // of 8 strips, in a row
  int column_taps = 3, column_chunks = 1;  // of a warpgroup's tiles: taps x tiles of output channels
  int block_taps = 9;  // of all warpgroups
  int span = 3, advance = 1;  // rows of grad_output that a step reads, that it is the first to read
  int planes = 1, all_planes = 1;  // of the columns of grad_output: most that a block reads; of all taps
  int positions = 6;   // of a strip of grad_output
  int rows = 1;        // of grad_output packed for a tile of strips
  std::array<uint8_t, kHopperStripsKernel> kernel_column{};  // in the order of their planes, then of their shifts
  int x_chunks = 1, y_chunks = 1;  // tiles of 64 input and of n output channels of a block
  int x_box_bytes = 0, y_box_bytes = 0;  // of one such tile, of grad_output in one plane: a row of strips, one part
  int x_slot_bytes = 0, x_slots = 2;  // ring of the input's steps
  int y_row_bytes = 0, y_rows = 4;    // ring of rows of grad_output
  int y_at = 0, barriers_at = 0, shared_bytes = 0;
  int padded_m = 64, padded_n = 64;  // channels of a group in the partial sums
  int blocks_m = 1, blocks_n = 1, blocks_tap = 1, blocks_group = 1;
  int tiles = 1, slice_tiles = 1;  // of strips; that are packed at a time, then multiplied
  int64_t input_at = 0, grad_output_at = 0;  // where a slice of both lies packed in the workspace, bytes
  int64_t x_part = 0, y_part = 0;            // bytes of one part of it
  int64_t steps_per_split = 0;
  int slice_splits = 1;  // of a slice: the next one adds to the same sums
  int splits = 0;  // whose sums lie in the workspace; 0: one block sums up all
};

}  // namespace deconv
