// What the Hopper family's planner of grad_weight of float32 by tensor copies gives to its kernel: plain data, host and
// device.
#pragma once

#include "families/wgrad_sm90/plan_tma_nhwc.h"

namespace deconv {

inline constexpr int kRsNhwcChannels = 32;  // of a 128-byte row
inline constexpr int kRsNhwcPixels = 32;  // of a tile: what a turned row holds
inline constexpr int kRsNhwcTaps = 128;  // of all groups of taps
inline constexpr int kSm90TurnWarps = 3;  // that turn the input around

// Instances of the kernel: warpgroups that multiply, taps that each accumulates, input channels (wgmma's N).
inline constexpr WgradTile kRsNhwcTilesSplit[] = {{3, 1, 64}, {2, 2, 64}};  // 3xTF32 accumulates twice
inline constexpr WgradTile kRsNhwcTiles[] = {{3, 3, 64}, {2, 4, 64}, {2, 1, 64}, {2, 2, 128}, {3, 1, 192}, {2, 1, 256}};

// In a stage's copies of grad_output the tap's first pixel lies at row `row`, of the first chunk of channels.
struct RsNhwcTap {
  int16_t row, tap;  // tap -1: idle
};

// grad_weight of float32 (kernels/hopper/weight_turned.cuh has the meaning).
struct WgradRsNhwcPlan : WgradTma {
  static constexpr const char* kFamily = "wgrad_sm90";

  WgradTile tile{2, 2, 128};
  int parts = 1;  // 2: float32 as two TF32 parts, three products
  bool spread = false;  // warpgroups take neighbouring tiles of output channels; else neighbouring taps
  int tap_fold = 1;  // taps that share the 64 rows of operand A, where there are few output channels
  int block_taps = 4;  // of all warpgroups
  std::array<int16_t, kRsNhwcPixels / 8> octet_row{};  // of a box, where each 8 pixels begin
  std::array<RsNhwcTap, kRsNhwcTaps> taps{};
};

}  // namespace deconv
