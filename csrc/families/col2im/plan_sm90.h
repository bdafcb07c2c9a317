// What the col2im family's planner for Hopper gives to its kernel: plain data, host and device.
#pragma once

#include "families/col2im/plan.h"

namespace deconv {

inline constexpr int kCol2imWarpgroups = 2;       // that multiply
inline constexpr int kCol2imHopperAddWarps = 11;  // with the one that brings three warpgroups
inline constexpr int kCol2imHopperThreads = 128 * (kCol2imWarpgroups + 3);
inline constexpr int kCol2imHopperMostUnits = 2;  // of results, that a warp adds up at once
inline constexpr int kCol2imChunkBytes = 128;  // of channels, of a stage
inline constexpr int kCol2imHopperMostSlots = 8;
inline constexpr int kCol2imOperandRows[] = {16, 32, 48, 64, 96, 128};
// Tiles of 64 pixels of each of two warpgroups: sums of so many rows of operand B fit the registers.
constexpr int col2im_hopper_tiles(int operand_rows) { return operand_rows <= 16 ? 4 : operand_rows <= 64 ? 2 : 1; }

// Source by tensor copies, products from wgmma (kernels/col2im/hopper.cuh).
struct Col2imHopperPlan : Col2imWalk {
  static constexpr const char* kFamily = "col2im";

  int operand_rows = 16;  // of kCol2imOperandRows: channels and taps, filled up
  bool planes = false;    // columns of the source are adjacent, else channels
  // Staged columns before the first one wanted, for copies begin at multiples of 16 bytes; staged columns. Products
  // have neither these nor those behind.
  int staged_lead = 0, staged_pitch = 1;
  int chunks = 1;         // stages of a step
  int slots = 2;
  int slot_bytes = 0;  // from one stage to the next
  int weights_at = 0, products_at = 0, tables_at = 0, shared_bytes = 0;  // bytes; stages lie at 0

  constexpr int stage_bytes() const { return rows * staged_pitch * kCol2imChunkBytes; }  // that a copy brings
};

}  // namespace deconv
