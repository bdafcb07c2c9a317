// Plan of conv_all_phases.cuh: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kAllPhasesWarpgroups = 3;  // that multiply
inline constexpr int kAllPhasesThreads = 128 * (kAllPhasesWarpgroups + 1);
inline constexpr int kAllPhasesMostSlots = 8;
inline constexpr int kAllPhasesOperandRows[] = {16, 32, 64};
// Source rows, and columns, from the first to the last that a pixel of any phase reads.
inline constexpr int kAllPhasesShifts[] = {2, 3};

// Layout of the source. kPixels: channels are adjacent. kPlanes: columns are, and rows begin at multiples of 16 bytes.
// kLines: columns and rows are adjacent, as one line.
enum class AllPhasesSource { kPixels, kPlanes, kLines };
constexpr bool has_planes(AllPhasesSource source) { return source != AllPhasesSource::kPixels; }

// A warp has a strip of a tile. An instruction has eight columns; the last shifts - 1 lack their neighbours.
constexpr int all_phases_strip_columns(int shifts) { return 8 - (shifts - 1); }
// Tiles of operand A of a strip, two rows each: as many as registers hold sums for.
constexpr int all_phases_strip_tiles(int operand_rows) { return operand_rows == 16 ? 3 : operand_rows == 32 ? 2 : 1; }
constexpr int all_phases_strip_rows(int operand_rows) { return 2 * all_phases_strip_tiles(operand_rows); }
inline constexpr int kAllPhasesStrips = 4 * kAllPhasesWarpgroups;  // of a tile
// Bytes of channels of a stage.
constexpr int all_phases_stage_channels(AllPhasesSource source) { return has_planes(source) ? 32 : 64; }

// Pixels are operand A; operand B has a row for each (phase, result channel), with zeros where a phase has no tap
// (conv_all_phases.cuh).
struct AllPhasesPlan {
  static constexpr const char* kFamily = "igemm_sm90";

  int operand_rows = 16;  // of kAllPhasesOperandRows: phases x result channels, rounded up
  AllPhasesSource source = AllPhasesSource::kPixels;
  int shifts = 3;         // of kAllPhasesShifts, along both axes
  int origin_h = 0, origin_w = 0;  // smallest shift
  int strips_w = 1;  // of a tile, side by side; the others lie below
  int tile_rows = 1, tile_columns = 1;  // in pixels of a phase
  int lead = 0;  // staged columns before the first one needed: TMA begins at multiples of 16 bytes
  int lead_step = 0;  // kLines: change of lead from one row to the next, modulo 16 bytes
  int pitch = 1;      // staged columns
  int halo_rows = 1;
  int tiles_h = 1, tiles_w = 1, tiles = 0;  // of an image; of all images
  int tile_blocks = 1;  // blocks that share the tiles of a group
  int blocks = 0;
  int chunks = 1;  // k_blocks
  int stages = 1;  // of a tile
  int slots = 2;
  int stage_bytes = 0, slot_bytes = 0;  // loaded by TMA; from one stage to the next
  // Results are staged and leave by TMA, one copy for each line of strips: [row][channel][column], or
  // [row][column][channel].
  bool copied = false;
  int staged_row = 0, staged_channel = 0;  // elements from one row, or channel, to the next
  int staged_phase = 0, staged_column = 0;  // elements from one phase of the width, or pixel, to the next
  int staged_bytes = 0;  // of a line of strips
  int weights_at = 0, rows_at = 0, staged_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets; stages begin at 0
};

}  // namespace deconv
