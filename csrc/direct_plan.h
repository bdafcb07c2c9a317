// What the direct family's planner gives to its kernel: plain data, host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "divisor.h"

namespace deconv {

inline constexpr int kDirectThreads = 256;
inline constexpr int kDirectRows = 2;      // of the result, of a thread
inline constexpr int kDirectChannels = 4;  // of the source, that a thread loads at once
inline constexpr int kDirectPhases = 32;   // of an axis, at most

// Result channels of a thread, at most: what its registers hold.
constexpr int direct_channels(size_t accumulator_bytes) { return accumulator_bytes == 8 ? 4 : 8; }

// Forward and grad_input (kernels/direct/conv.cuh has the meaning).
struct DirectConvPlan {
  int channels = 2;             // of the result, of a thread: 2, 4 or 8
  int chunks = 1;               // of the source channels
  int splits = 1;               // threads that share the chunks and rows of taps of a result, a power of two
  int pixels = kDirectThreads;  // threads of a block with a column each
  int blocks_m = 1;             // along the result channels of a group
  int pixel_blocks = 1;
  int shared_bytes = 0;
  int64_t blocks = 0;  // groups included
  Divisor by_width, by_row_units, by_row_phases, by_column_phases, by_blocks_m, by_groups, by_chunks;
};

}  // namespace deconv
