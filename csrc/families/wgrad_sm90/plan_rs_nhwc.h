// Plan of wgrad_rs_nhwc.cuh: plain data, host and device.
#pragma once

#include "families/wgrad_sm90/plan_tma_nhwc.h"

namespace deconv {

inline constexpr int kRsNhwcChannels = 32;  // of a 128-byte row
inline constexpr int kRsNhwcPixels = 32;  // of a tile: a transposed row of 128 bytes
inline constexpr int kRsNhwcTaps = 128;  // of all tap groups
inline constexpr int kSm90TurnWarps = 3;  // that transpose the input

// Instances of the kernel: warpgroups that multiply, taps of each, input channels (wgmma's N).
inline constexpr WgradTile kRsNhwcTilesSplit[] = {{3, 1, 64}, {2, 2, 64}};  // tf32x3: two accumulators
inline constexpr WgradTile kRsNhwcTiles[] = {{3, 3, 64}, {2, 4, 64}, {2, 1, 64}, {2, 2, 128}, {3, 1, 192}, {2, 1, 256}};

// Where a tap finds a tile's first pixel: row `row` of a stage's boxes of grad_output, in the first 128 bytes of
// channels.
struct RsNhwcTap {
  int16_t row, tap;  // tap -1: idle
};

// grad_weight of float32 from channels_last (wgrad_rs_nhwc.cuh).
struct WgradRsNhwcPlan : WgradTma {
  static constexpr const char* kFamily = "wgrad_sm90";

  WgradTile tile{2, 2, 128};
  int parts = 1;  // 2: tf32x3
  bool spread = false;  // warpgroups take adjacent tiles of output channels; else adjacent taps
  int tap_fold = 1;  // taps that share the 64 rows of operand A, with few output channels
  int block_taps = 4;  // of all warpgroups
  std::array<int16_t, kRsNhwcPixels / 8> octet_row{};  // row of a box at which each 8 pixels begin
  std::array<RsNhwcTap, kRsNhwcTaps> taps{};
};

}  // namespace deconv
