// Plans of strips.cuh and row_stream.cuh: plain data, host and device.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/divisor.h"

namespace deconv {

inline constexpr int kDepthwiseThreads = 256;
inline constexpr int kDepthwiseSharedBytes = 44 << 10;  // of weights; room for four blocks a multiprocessor
inline constexpr int kDepthwiseStrides = 32;  // phases, or source phases, of an axis; their taps are kernel parameters

// strips: taps that share a window of pixels in registers.
inline constexpr int kDepthwiseTapRows = 3, kDepthwiseTapColumns = 3;
// strips: pixels of a thread; with more channels it has fewer.
constexpr int depthwise_strip(int channels) { return channels == 1 ? 8 : 4; }
// strips: phases of a vector; in grad_weight its channels.
constexpr int depthwise_phases(int element) { return element < 4 ? 4 : 16 / element; }

// strips.cuh: any layer, either layout. Axis 0 is the height with channels innermost, else the width. A block's
// threads: `lanes` along the innermost dimension, then first_slots, then second_slots.
//   channels innermost   lanes of `vector` channels, of all phases of the width one after the other; slots are strips,
//                        then rows
//   width innermost      lanes of `vector` phases of the width (grad_input: of one, which adds up a vector of source
//                        phases); slots are columns, then strips, then channels
struct DepthwiseStripsPlan {
  static constexpr const char* kFamily = "depthwise";

  static constexpr int threads = kDepthwiseThreads;
  bool weight_gradient = false;
  bool channels_inner = false;
  int vector = 1;
  int lanes = 1, first_slots = 1, second_slots = 1, channel_slots = 1;
  int blocks_inner = 1, blocks_first = 1, blocks_second = 1, block_phases = 1;
  int rows = 1;  // of second_slots that a thread takes in turn
  int tap_rows = 1, tap_columns = 1;  // staged weights of one channel and lane
  int chunk[2] = {1, 1};  // taps that share a window; 1 if they are more than a pixel apart
  // grad_weight: a block has one chunk of taps of one source phase (width innermost: of each lane's source phase).
  int chunks[2] = {1, 1}, passes[2] = {1, 1};
  int units = 0, units_per_split = 0;  // strips of all images
  int splits = 1;
  int shared_bytes = 0;
  int64_t blocks = 0;
  Divisor by_lanes, by_first_slots, by_second_slots, by_blocks_inner, by_blocks_first, by_blocks_second;
  Divisor by_block_phases, by_tap_columns, by_chunks[2], by_passes[2], by_first_units, by_second_units;
};

// row_stream.cuh: one channel a group, a small square kernel, dilation 1, either layout. Kernel and stride are
// compile-time constants. A thread has some columns of the input and `stride` times as many of the output. Width
// innermost: 16 bytes of the output's. Channels innermost: pixels of 4 bytes of channels, as many as registers hold.
// Rows are read of the input (forward), the output (grad_input) or both (grad_weight).
enum class DepthwiseRowsRead { kInput, kOutput, kBoth };
constexpr int depthwise_rows_channels(int element, bool channels_inner) { return channels_inner ? 4 / element : 1; }
// Input columns of a thread. float32 grad_input with channels innermost has more, so that fewer of the columns it reads
// are its neighbours'.
constexpr int depthwise_rows_columns(int element, int stride, bool channels_inner, DepthwiseRowsRead read) {
  return (!channels_inner ? 16 / element : read == DepthwiseRowsRead::kOutput ? 4 * element : 8) / stride;
}
// Blocks a multiprocessor that registers must suffice for.
constexpr int depthwise_rows_blocks(bool channels_inner) { return channels_inner ? 2 : 4; }
// Padding along the width with which output and input lines begin together, at `stride` times the width. Channels
// innermost also allow any that differs by multiples of the stride.
constexpr int depthwise_rows_padding(int kernel, int stride) { return (kernel - stride + 1) / 2; }
// Most input rows that one output row meets. forward completes an output row in as many steps.
constexpr int depthwise_rows_history(int kernel, int stride) { return (kernel + stride - 1) / stride; }
// Neighbours' input columns that a thread's output meets.
constexpr int depthwise_rows_input_left(int kernel, int stride) {
  return (kernel - 1 - depthwise_rows_padding(kernel, stride)) / stride;
}
constexpr int depthwise_rows_input_right(int kernel, int stride) {
  return (stride - 1 + depthwise_rows_padding(kernel, stride)) / stride;
}
// Neighbours' output columns that a thread's input meets, on both sides together.
constexpr int depthwise_rows_output_beside(int kernel, int stride) { return kernel - stride; }

// Each warp fills a ring of its own in shared memory by cp.async: bytes of a step, steps ahead of use, bytes of the
// ring.
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
  constexpr int kOnTheWay = 2560;  // bytes in flight for a warp; deeper prefetch is slower
  const int steps = kOnTheWay / step_bytes;
  return steps < 1 ? 1 : steps > 4 ? 4 : steps;
}
constexpr int depthwise_rows_ring_bytes(int step_bytes) { return (depthwise_rows_ahead(step_bytes) + 1) * step_bytes; }

// Calls use(stride, kernel) for each compiled pair until it returns true.
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
  int moved = 16;  // bytes of one access
  // Adjacent threads, a power of two: along a line or a part of it; or along the channels, two warps at most.
  int lanes = 32;
  int line_runs = 1;  // threads' shares of a line
  // Parts of a line. Width innermost: a part fills a warp's lanes; if there are several, the outermost lanes only serve
  // their neighbours. Channels innermost: a part is one thread's columns.
  int parts = 1, part_runs = 1;
  int shift = 0;  // input columns by which the padding exceeds depthwise_rows_padding
  int first_row = 0;  // forward: the input row that completes the first output row
  int segments = 1, segment_rows = 1;  // of an image; steps that complete a row of the result
  int64_t units = 0;  // parts of all segments of all images
  int unit_blocks = 1, channel_blocks = 1, threads = kDepthwiseThreads;
  int splits = 1;  // grad_weight: unit_blocks
  int shared_bytes = 0;
  int64_t blocks = 0;
  Divisor by_parts, by_segments, by_channel_blocks;
};

}  // namespace deconv
