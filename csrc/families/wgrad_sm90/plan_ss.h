// Plan of wgrad_ss.cuh: plain data, host and device.
#pragma once

#include "families/wgrad_sm90/plan_tma_nhwc.h"

namespace deconv {

inline constexpr int kWgradChannels = 64;  // of a 128-byte row: wgmma's M, and one block of its N
inline constexpr int kWgradSteps = 16;  // instructions of 16 pixels of a tile, at most
inline constexpr int kWgradAtOnce = 4;  // of these, that a warpgroup issues before it waits
inline constexpr int kWgradRuns = 48;  // of all tap groups

// Instances of the kernel: warpgroups that multiply, blocks of 64 columns in the first and second run of each.
struct WgradSsTile {
  int warpgroups, first, second;
  constexpr int runs() const { return second > 0 ? 2 : 1; }
};
inline constexpr WgradSsTile kWgradSsTiles[] = {{3, 3, 0}, {3, 2, 1}, {3, 2, 2}, {2, 4, 0},
                                                {2, 3, 2}, {2, 2, 0}, {2, 2, 2}};

// What the warpgroups of a block divide among themselves.
enum class WgradShare { kTaps, kInputChannels, kOutputChannels };

// Columns of one instruction: `count` blocks of 64 output channels, each of one tap. The first block's pixels begin at
// row `row` of a stage's boxes of grad_output, each next block's `row_step` rows further on.
struct WgradRun {
  int16_t row, row_step;
  int16_t tap, tap_step;
  int8_t chunk, chunk_step;  // of 64 output channels
  int8_t count;              // 0: idle
};

// grad_weight of 16-bit types from channels_last (wgrad_ss.cuh).
struct WgradSsPlan : WgradTma {
  static constexpr const char* kFamily = "wgrad_sm90";

  WgradSsTile tile{3, 3, 0};
  WgradShare share = WgradShare::kTaps;
  int instructions = 4;  // of 16 pixels, for each run
  int octet_step = 8;  // rows of a box between the two halves of 16 pixels
  std::array<int16_t, kWgradSteps> instruction_row{};  // row of a box at which 16 pixels begin
  int group_runs = 3;  // of a block
  std::array<WgradRun, kWgradRuns> runs{};
};

}  // namespace deconv
