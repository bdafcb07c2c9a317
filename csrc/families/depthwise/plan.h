// What the depthwise family's kernels need to know beyond the problem: plain data, host and device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/divisor.h"

namespace deconv {

inline constexpr int kDepthwiseThreads = 256;
inline constexpr int kDepthwiseSharedBytes = 44 << 10;  // of weights: four blocks may share a multiprocessor
inline constexpr int kDepthwiseStrides = 32;  // phases, or planes, of an axis whose taps travel with the launch

// Taps that a thread of the strips kernel handles between two loads of the same pixels.
inline constexpr int kDepthwiseTapRows = 3, kDepthwiseTapColumns = 3;
// Its pixels: the more, the fewer channels each takes.
constexpr int depthwise_strip(int channels) { return channels == 1 ? 8 : 4; }
// Phases of a vector of them, also channels of one in grad_weight.
constexpr int depthwise_phases(int element) { return element < 4 ? 4 : 16 / element; }

// Any layer, either layout (strips.cuh). Axis 0 is the height and axis 1 the width where channels are innermost; else
// the other way round. A block's threads: `lanes` along the innermost dimension, then first_slots, then second_slots.
// Channels innermost: lanes of `vector` channels, of all phases of the width one after the other; slots are strips,
// then rows. Width innermost: lanes of `vector` phases of the width (grad_input: one, which adds up a vector of source
// phases); slots are columns, then strips, then channels.
struct DepthwiseStripsPlan {
  static constexpr const char* kFamily = "depthwise";

  static constexpr int threads = kDepthwiseThreads;
  bool weight_gradient = false;
  bool channels_inner = false;
  int vector = 1;
  int lanes = 1, first_slots = 1, second_slots = 1, channel_slots = 1;
  int blocks_inner = 1, blocks_first = 1, blocks_second = 1, block_phases = 1;
  int rows = 1;  // of second_slots that a thread takes one after the other
  int tap_rows = 1, tap_columns = 1;  // weights of one channel and lane in shared memory
  int chunk[2] = {1, 1};  // taps of one pass over a window: 1 where they are further than a pixel apart
  // grad_weight: a block takes one chunk of taps of one source phase (width innermost: of all lanes' source phases).
  int chunks[2] = {1, 1}, passes[2] = {1, 1};
  int units = 0, units_per_split = 0;  // strips of all images
  int splits = 1;
  int shared_bytes = 0;
  int64_t blocks = 0;
  Divisor by_lanes, by_first_slots, by_second_slots, by_blocks_inner, by_blocks_first, by_blocks_second;
  Divisor by_block_phases, by_tap_columns, by_chunks[2], by_passes[2], by_first_units, by_second_units;
};

// One channel a group on either side, a small square kernel without dilation, either layout (row_stream.cuh). The
// kernel and the stride are known at compile time. A thread has so many columns of the input, and `stride` times as
// many of the output: 16 bytes of them; where channels are innermost some pixels of 4 bytes of channels, as many as
// registers hold. What comes in rows: forward, grad_input, grad_weight.
enum class DepthwiseRowsRead { kInput, kOutput, kBoth };
constexpr int depthwise_rows_channels(int element, bool channels_inner) { return channels_inner ? 4 / element : 1; }
// Of channels innermost grad_input has more in float32, so that fewer of the columns it reads are its neighbours'.
constexpr int depthwise_rows_columns(int element, int stride, bool channels_inner, DepthwiseRowsRead read) {
  return (!channels_inner ? 16 / element : read == DepthwiseRowsRead::kOutput ? 4 * element : 8) / stride;
}
// Blocks of a multiprocessor for which registers suffice.
constexpr int depthwise_rows_blocks(bool channels_inner) { return channels_inner ? 2 : 4; }
// Of the width. With it an output of `stride` times the input's width has its rows where the input has its own; of
// channels innermost any other that differs by multiples of the stride.
constexpr int depthwise_rows_padding(int kernel, int stride) { return (kernel - stride + 1) / 2; }
// Rows of the input that meet one of the output at most (forward: in so many steps a row of the output is complete).
constexpr int depthwise_rows_history(int kernel, int stride) { return (kernel + stride - 1) / stride; }
// Columns of the input beside a thread's own that its output meets.
constexpr int depthwise_rows_input_left(int kernel, int stride) {
  return (kernel - 1 - depthwise_rows_padding(kernel, stride)) / stride;
}
constexpr int depthwise_rows_input_right(int kernel, int stride) {
  return (stride - 1 + depthwise_rows_padding(kernel, stride)) / stride;
}
// Columns of the output beside a thread's own that its input meets, on both sides.
constexpr int depthwise_rows_output_beside(int kernel, int stride) { return kernel - stride; }

// Rows come to shared memory by asynchronous copies, each warp's to a ring of its own: bytes of a step, how many steps
// they come ahead of their use, and bytes of the ring. More on the way than so much made layers slower.
constexpr int depthwise_rows_step_bytes(int element, int stride, int kernel, bool channels_inner,
                                        DepthwiseRowsRead read) {
  const bool input = read != DepthwiseRowsRead::kOutput, output = read != DepthwiseRowsRead::kInput;
  const int columns = depthwise_rows_columns(element, stride, channels_inner, read);
  const int beside_input = channels_inner && !output
                               ? depthwise_rows_input_left(kernel, stride) + depthwise_rows_input_right(kernel, stride)
                               : 0;
  const int beside_output = channels_inner ? depthwise_rows_output_beside(kernel, stride) : 0;
  const int taken = (input ? columns + beside_input : 0) + (output ? stride * (stride * columns + beside_output) : 0);
  return 32 * taken * depthwise_rows_channels(element, channels_inner) * element;
}
constexpr int depthwise_rows_ahead(int step_bytes) {
  constexpr int kOnTheWay = 2560;  // bytes of a warp
  const int steps = kOnTheWay / step_bytes;
  return steps < 1 ? 1 : steps > 4 ? 4 : steps;
}
constexpr int depthwise_rows_ring_bytes(int step_bytes) { return (depthwise_rows_ahead(step_bytes) + 1) * step_bytes; }

// Calls use(stride, kernel) with each that has kernels, until it returns true.
template <class Use>
constexpr bool any_depthwise_rows(Use&& use) {
  return use(std::integral_constant<int, 1>(), std::integral_constant<int, 3>()) ||
         use(std::integral_constant<int, 2>(), std::integral_constant<int, 2>()) ||
         use(std::integral_constant<int, 2>(), std::integral_constant<int, 3>()) ||
         use(std::integral_constant<int, 2>(), std::integral_constant<int, 4>());
}
struct DepthwiseRowsPlan {
  static constexpr const char* kFamily = "depthwise";

  bool weight_gradient = false;
  DepthwiseRowsRead read = DepthwiseRowsRead::kInput;
  bool channels_inner = false;
  int stride = 1, kernel = 3;
  int moved = 16;  // bytes at once
  // Threads beside each other, a power of two: along a line of the image or a part of it, or along the channels, then
  // of two warps at most.
  int lanes = 32;
  int line_runs = 1;  // threads' columns of a line
  // Parts of a line: of width innermost as many lanes as a warp has, of which the outermost are there for their
  // neighbours alone if there are several; of channels innermost each a thread's columns.
  int parts = 1, part_runs = 1;
  int shift = 0;  // input columns by which the padding is more than depthwise_rows_padding
  int first_row = 0;  // forward: the row of the input with which the first output row is complete
  int segments = 1, segment_rows = 1;  // of an image: steps of a thread that complete a row of the result
  int64_t units = 0;  // parts of all segments of all images
  int unit_blocks = 1, channel_blocks = 1, threads = kDepthwiseThreads;
  int splits = 1;  // grad_weight: unit_blocks
  int shared_bytes = 0;
  int64_t blocks = 0;
  Divisor by_parts, by_segments, by_channel_blocks;
};

}  // namespace deconv
