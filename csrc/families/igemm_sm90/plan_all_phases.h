// What the Hopper family's planner gives to its kernel for few result channels: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kAllPhasesWarpgroups = 3;  // that multiply
inline constexpr int kAllPhasesThreads = 128 * (kAllPhasesWarpgroups + 1);
inline constexpr int kAllPhasesMostSlots = 8;
inline constexpr int kAllPhasesOperandRows[] = {16, 32, 64};
// Rows, and columns, of the source from the first to the last that a pixel of any phase reads.
inline constexpr int kAllPhasesShifts[] = {2, 3};

// How the source lies: channels are adjacent; columns are, and rows begin at multiples of 16 bytes; columns and rows
// are, as one line of all.
enum class AllPhasesSource { kPixels, kPlanes, kLines };
constexpr bool has_planes(AllPhasesSource source) { return source != AllPhasesSource::kPixels; }

// A warp has a strip of a tile, so many columns and rows of each phase; its products are of eight columns.
constexpr int all_phases_strip_columns(int shifts) { return 8 - (shifts - 1); }
// Of operand A, of two rows each: their sums fit the registers.
constexpr int all_phases_strip_tiles(int operand_rows) { return operand_rows == 16 ? 3 : operand_rows == 32 ? 2 : 1; }
constexpr int all_phases_strip_rows(int operand_rows) { return 2 * all_phases_strip_tiles(operand_rows); }
inline constexpr int kAllPhasesStrips = 4 * kAllPhasesWarpgroups;  // of a tile
// Bytes of channels of a stage.
constexpr int all_phases_stage_channels(AllPhasesSource source) { return has_planes(source) ? 32 : 64; }

// Pixels are operand A, all phases of all channels the rows of operand B, a tap that a phase does not have a zero
// (kernels/hopper/pictures.cuh).
struct AllPhasesPlan {
  static constexpr const char* kFamily = "igemm_sm90";

  int operand_rows = 16;  // of kAllPhasesOperandRows: result channels and phases, filled up
  AllPhasesSource source = AllPhasesSource::kPixels;
  int shifts = 3;         // of kAllPhasesShifts, along both axes
  int origin_h = 0, origin_w = 0;  // smallest shift
  int strips_w = 1;  // of a tile, the others below
  int tile_rows = 1, tile_columns = 1;  // in pixels of a phase
  int lead = 0;       // staged columns before the first one wanted, for copies begin at multiples of 16 bytes
  int lead_step = 0;  // of lines: from one row to the next, modulo 16 bytes
  int pitch = 1;      // staged columns
  int halo_rows = 1;
  int tiles_h = 1, tiles_w = 1, tiles = 0;  // of an image; of all
  int tile_blocks = 1;  // that share the tiles of one group
  int blocks = 0;
  int chunks = 1;  // of 128 bytes of channels
  int stages = 1;  // of a tile
  int slots = 2;
  int stage_bytes = 0, slot_bytes = 0;  // that copies bring; from one stage to the next
  // Results leave by tensor copies, of each line of a tile's strips one, from where they are staged: rows of channels
  // of columns, or of columns of channels.
  bool copied = false;
  int staged_row = 0, staged_channel = 0;  // elements, from one to the next
  int staged_phase = 0, staged_column = 0;  // the same along the width: from phase to phase, from pixel to pixel
  int staged_bytes = 0;  // of a line of strips
  int weights_at = 0, rows_at = 0, staged_at = 0, barriers_at = 0, shared_bytes = 0;  // bytes; stages lie at 0
};

}  // namespace deconv
