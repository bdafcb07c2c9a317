// What the Hopper family's planner of grad_weight gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kHopperWeightTileM = 64;         // output channels of a warpgroup
inline constexpr int kHopperWeightTurns = 4;  // steps that are brought at the same time, given slots for them
inline constexpr int kHopperWeightOctets = 16;         // most octets of pixels in a step

// Instances of the kernel: warpgroups that multiply, taps that each accumulates, input channels (wgmma's N).
struct HopperWeightTile {
  int warpgroups, taps, n;
};
inline constexpr HopperWeightTile kHopperWeightTiles[] = {{3, 3, 64}, {2, 4, 64}, {2, 2, 128}};
inline constexpr HopperWeightTile kHopperWeightTilesSplit[] = {{3, 1, 64}, {2, 2, 64}};  // 3xTF32 accumulates twice

// Warps that bring a step together: two, where that leaves registers enough and is quicker (TF32).
constexpr int hopper_weight_step_warps(int element, int parts, HopperWeightTile tile) {
  return element == 4 && parts == 1 && tile.n == 128 ? 2 : 1;
}

// grad_weight (kernels/hopper/weight.cuh has the meaning). A step is one image row of a strip: `images` images,
// 8 * image_octets columns of the input; strips lie next to each other in `tiles_w` and over the batch.
struct HopperWeightPlan {
  HopperWeightTile tile{3, 3, 64};
  int parts = 1;            // 2: float32 as two TF32 parts, three products
  int step_warps = 1;       // that bring a step together
  bool channels = false;    // pixels are rows in shared memory (channels_last); else channels are
  bool spread = false;  // warpgroups take neighbouring tiles of output channels; else neighbouring groups of taps
  int fold = 1;             // taps that share the 64 rows of operand A, where there are few output channels
  int block_taps = 9;       // of all warpgroups
  int images = 1, image_octets = 1, octets = 1;
  int tiles_w = 1;
  bool x_turned = false;  // float32, channels adjacent: loaded as rows of channels and turned in shared memory
  int x_piece = 16;  // bytes of a global load of the input, of grad_output
  int y_piece = 16;
  int x_rows_bytes = 0;  // of one block of 128-byte rows
  int x_slot_bytes = 0;  // of a step, all parts
  int y_columns = 0;  // of one image staged, y_lead of them before the first tap of the first pixel
  int y_phase_columns = 0;  // channels: columns that are a stride apart lie together, so many of each phase
  int y_lead = 0;
  int y_channels = 64;  // output channels staged
  int y_channel_pitch = 0;  // bytes from one channel to the next, from one column to the next
  int y_column_pitch = 0;
  int y_row_bytes = 0;
  int y_rows = 1;  // ring of rows
  int x_slots = 3;  // ring of the input's rows
  int y_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets in shared memory
  int blocks_m = 1, blocks_n = 1, blocks_tap = 1;  // of input channels, output channels, taps
  int64_t steps = 0, steps_per_split = 0;
  int splits = 1;
  int64_t blocks = 0;
};

}  // namespace deconv
