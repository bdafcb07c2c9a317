// row_stream: depthwise layers with a square kernel K and stride S known at compile time, either layout. Threads walk
// down the rows. In step t a thread has its columns of row t of the input and of the S rows o of the output with
// o + padding = S t + r, r = 0 .. S-1:
//
//   forward:     output[S t - padding + k] += input[t] * weight[k]
//   grad_input:  grad_input[t - a] += grad_output[S t - padding + r] * weight[S a + r]
//   grad_weight: grad_weight[S a + r] += input[t - a] * grad_output[S t - padding + r]
//
// Then the first S output rows, or the input row of the last a, are complete and leave. Each element is used by one
// thread, once, except neighbours' columns: they arrive by shuffles (width innermost) or are copied twice (channels
// innermost).
//
// cp.async fills a ring in shared memory some steps ahead. Loads into registers would share one of a warp's few
// scoreboards, so that waiting for one step waits for all.
#pragma once

#include "device/cp_async.cuh"
#include "families/depthwise/params.cuh"

namespace deconv {

template <class T>
using DepthwiseRowsParams = DepthwiseParams<T, DepthwiseRowsPlan>;

// kMoved: most bytes of one access, by its alignment in memory: 4 (channels innermost) or 16.
template <class T, int kStride_, int kKernel_, bool kChannelsInner_, int kMoved_, DepthwiseRowsRead kRead_>
struct DepthwiseRowsShape {
  using Element = T;
  static constexpr int kStride = kStride_, kKernel = kKernel_;
  static constexpr bool kChannelsInner = kChannelsInner_;
  static constexpr int kMoved = kMoved_;
  static constexpr DepthwiseRowsRead kRead = kRead_;
  static constexpr int kChannels = depthwise_rows_channels(sizeof(T), kChannelsInner);
  static constexpr int kColumns = depthwise_rows_columns(sizeof(T), kStride, kChannelsInner, kRead);
  static constexpr int kOutputColumns = kStride * kColumns;
  static constexpr int kPadding = depthwise_rows_padding(kKernel, kStride);
  static constexpr int kHistory = depthwise_rows_history(kKernel, kStride);
  // Neighbours' columns: of the input that meet a thread's output; of the output that meet its input.
  static constexpr int kInputLeft = depthwise_rows_input_left(kKernel, kStride);
  static constexpr int kInputRight = depthwise_rows_input_right(kKernel, kStride);
  static constexpr int kOutputLeft = kPadding;
  static constexpr int kOutputRight = depthwise_rows_output_beside(kKernel, kStride) - kPadding;
  static constexpr int kBlocks = depthwise_rows_blocks(kChannelsInner);
};

// A thread's rows, channel and share of a line.
template <class Shape>
struct DepthwiseRowsPlace {
  using T = typename Shape::Element;

  __device__ __forceinline__ DepthwiseRowsPlace(const DepthwiseRowsParams<T>& p) {
    Digits block(blockIdx.x);
    const int channel_block = block.take(p.plan.by_channel_blocks);  // blocks that run together are adjacent in memory
    split = block.rest();
    const int thread = split * p.plan.threads + static_cast<int>(threadIdx.x);
    const int lane = thread & (p.plan.lanes - 1), unit = thread / p.plan.lanes;
    const int line = p.plan.by_parts.quotient(unit), part = p.plan.by_parts.remainder(unit);
    image = p.plan.by_segments.quotient(line);
    first_row = p.plan.by_segments.remainder(line) * p.plan.segment_rows;
    is_unit = exists = image < p.batch;
    if constexpr (Shape::kChannelsInner) {
      channel = (channel_block * p.plan.lanes + lane) * Shape::kChannels;
      first_channel = channel - lane % 32 * Shape::kChannels;
      exists = exists && channel < p.channels;
      owns = exists;
      run = part;
      has_left = has_right = false;
    } else {
      channel = first_channel = channel_block;
      const int of_part = lane - (p.plan.parts > 1 ? 1 : 0);
      run = part * p.plan.part_runs + of_part;
      exists = exists && run >= 0 && run < p.plan.line_runs && of_part <= p.plan.part_runs;
      owns = exists && of_part >= 0 && of_part < p.plan.part_runs;
      has_left = run > 0;
      has_right = run < p.plan.line_runs - 1;
    }
  }

  template <class Pointer>
  __device__ __forceinline__ Pointer at(Pointer data, const DepthwiseStrides& stride, int row, int column) const {
    return data + image * stride.n + channel * stride.c + row * stride.h + column * stride.w;
  }
  // A channel that exists, for weights and bias.
  __device__ __forceinline__ int channel_or_first() const { return exists ? channel : 0; }

  int split, channel, image, first_row;
  int first_channel;  // of the unit's lanes in this warp
  int run;  // which thread's share of the line
  bool is_unit;  // its part of a line exists
  bool exists, owns;  // exists: so do its channel or columns; owns: not only for a neighbour
  bool has_left, has_right;  // in the line
};

// Adjacent columns of a line: the first, the line's number of columns, elements from one to the next.
struct DepthwiseRowsColumns {
  int first, of_line;
  int64_t step;

  __device__ __forceinline__ bool is_inside(int i) const {
    return static_cast<unsigned>(first + i) < static_cast<unsigned>(of_line);
  }
};

// Rows of a source in a warp's shared memory: kOwn columns of each thread and, with channels innermost, its neighbours'
// columns next to them. A cell is a thread's share of one column (channels innermost), or of all its own columns.
template <class Shape, int kOwn, int kLeft, int kRight>
class DepthwiseRow {
  using T = typename Shape::Element;
  static constexpr int kChannels = Shape::kChannels;
  using Cell = RawPack<T, Shape::kChannelsInner ? kChannels : kOwn>;
  static constexpr int kCell = static_cast<int>(sizeof(Cell));

 public:
  static constexpr int kSpan = kLeft + kOwn + kRight;
  // First column of a thread's cells, relative to its own first.
  static constexpr int kFirst = Shape::kChannelsInner ? -kLeft : 0;
  static constexpr int kCells = Shape::kChannelsInner ? kSpan : 1;
  static constexpr int kBytes = kCells * 32 * kCell;  // of a warp

  // columns: of the thread's cells.
  __device__ __forceinline__ DepthwiseRow(const DepthwiseRowsParams<T>& p, const DepthwiseRowsPlace<Shape>& place,
                                          const DepthwiseRowsColumns& columns)
      : lane_(static_cast<int>(threadIdx.x) & 31), copied_cell_(lane_) {
    bool exists = place.exists;
    if constexpr (kTogether > 1) {
      const int lanes = min(p.plan.lanes, 32), lane = lane_ & (lanes - 1), across = lanes / kTogether;
      column_ = lane / across;
      const int first = lane % across * kTogether;  // lane of the first cell
      exists = place.is_unit && place.first_channel + first * kChannels < p.channels;
      copied_cell_ += first - lane + column_ * 32;
      from_first_ = column_ * columns.step + (first - lane) * kChannels;
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int column = column_ + i * kTogether;
      const bool is_inside = !Shape::kChannelsInner || columns.is_inside(column);
      if (exists && is_inside) inside_ |= 1u << i;
    }
    from_step_ = kTogether * columns.step;
  }

  // Issues the copies of a row to shared memory; zeros where the row or its columns do not exist. line: at the thread's
  // first cell.
  __device__ __forceinline__ void copy(unsigned char* row, const T* line, bool exists) const {
    const unsigned inside = exists ? inside_ : 0u;
    const T* from = line + from_first_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i, from += from_step_) {
      const bool is_cell = (i + 1) * kTogether <= kCells || column_ + i * kTogether < kCells;
      const uint32_t to = shared_address(row) + (copied_cell_ + i * kTogether * 32) * kCell;
#pragma unroll
      for (int at = 0; at < kTogether * kCell; at += kMoved) {
        copy_if<kMoved, kTogether == 1>(is_cell, to + at, from + at / sizeof(T), (inside >> i & 1u) != 0);
      }
    }
  }

  // All lanes of a warp call it together, after their copies are complete.
  __device__ __forceinline__ void read(float (&values)[kSpan][kChannels], const unsigned char* row,
                                       const DepthwiseRowsPlace<Shape>& place) const {
    const Cell* const cells = reinterpret_cast<const Cell*>(row) + lane_;
    if constexpr (Shape::kChannelsInner) {
#pragma unroll
      for (int i = 0; i < kSpan; ++i) widen<T, kChannels>(values[i], cells[i * 32]);
    } else {
      static_assert(kLeft <= kOwn && kRight <= kOwn);
      constexpr int kInWord = 4 * kOwn / kCell;
      float own[kOwn], left[kOwn], right[kOwn];
      widen<T, kOwn>(own, *cells);
      widen<T, kOwn>(left, shuffle(*cells, lane_ - 1, place.has_left, (kOwn - kLeft) / kInWord, kCell / 4));
      widen<T, kOwn>(right, shuffle(*cells, lane_ + 1, place.has_right, 0, (kRight + kInWord - 1) / kInWord));
#pragma unroll
      for (int i = 0; i < kLeft; ++i) values[i][0] = left[kOwn - kLeft + i];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) values[kLeft + i][0] = own[i];
#pragma unroll
      for (int i = 0; i < kRight; ++i) values[kLeft + kOwn + i][0] = right[i];
    }
  }

 private:
  // Adjacent cells that one copy takes. A thread then copies every kTogether-th column.
  static constexpr int kTogether = Shape::kChannelsInner && Shape::kMoved > kCell ? Shape::kMoved / kCell : 1;
  static constexpr int kMoved = Shape::kMoved < kTogether * kCell ? Shape::kMoved : kTogether * kCell;
  static constexpr int kCopies = (kCells + kTogether - 1) / kTogether;
  int lane_, copied_cell_;  // of the warp
  int column_ = 0;
  int64_t from_first_ = 0, from_step_;
  unsigned inside_ = 0;  // a bit for each copy

  // Some words of another lane's cell; zeros if it does not exist.
  static __device__ __forceinline__ Cell shuffle(const Cell& cell, int lane, bool is_inside, int first, int end) {
    Cell words = {};
#pragma unroll
    for (int i = first; i < end; ++i) {
      const auto word = __shfl_sync(0xFFFFFFFFu, cell.value[i], lane & 31);
      if (is_inside) words.value[i] = word;
    }
    return words;
  }
};

// A warp's ring of steps in shared memory: one in use, the others in flight.
template <class Shape>
class DepthwiseRowsRing {
 public:
  static constexpr int kStepBytes = depthwise_rows_step_bytes(sizeof(typename Shape::Element), Shape::kStride,
                                                              Shape::kKernel, Shape::kChannelsInner, Shape::kRead);
  static constexpr int kAhead = depthwise_rows_ahead(kStepBytes);

  __device__ __forceinline__ explicit DepthwiseRowsRing(unsigned char* shared)
      : begin_(shared + threadIdx.x / 32 * kBytes), next_(begin_) {}

  // Issues the copies of the first steps, by one call of copy(where) a step.
  template <class Copy>
  __device__ __forceinline__ void fill(Copy&& copy) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      copy(begin_ + i * kStepBytes);
      copy_commit();
    }
    free_ = begin_ + kAhead * kStepBytes;
  }
  // Returns the next step's rows, complete for all lanes. Issues the copies of the step kAhead later into the slot of
  // the step before.
  template <class Copy>
  __device__ __forceinline__ const unsigned char* advance(Copy&& copy) {
    copy_wait<kAhead - 1>();
    __syncwarp();
    copy(free_);
    copy_commit();
    free_ = next_;
    next_ = next_ == begin_ + kAhead * kStepBytes ? begin_ : next_ + kStepBytes;
    return free_;
  }

 private:
  static constexpr int kBytes = depthwise_rows_ring_bytes(kStepBytes);
  unsigned char *begin_, *next_, *free_;
};

// The weights of a thread's channels.
template <class T, int kKernel, int kChannels>
__device__ __forceinline__ void load_weights(float (&weights)[kKernel][kKernel][kChannels],
                                             const DepthwiseRowsParams<T>& p, int channel) {
#pragma unroll
  for (int e = 0; e < kKernel * kKernel * kChannels; ++e) {
    const int v = e % kChannels, k = e / kChannels % kKernel, i = e / kChannels / kKernel;
    weights[i][k][v] = widen(p.weight(channel + v, 0)[i * p.other_stride.h + k * p.other_stride.w]);
  }
}

// Moves every row to the next, and zeros into the first.
template <int kRows, int kColumns, int kChannels>
__device__ __forceinline__ void move_rows(float (&rows)[kRows][kColumns][kChannels]) {
#pragma unroll
  for (int a = kRows - 1; a >= 0; --a) {
#pragma unroll
    for (int e = 0; e < kColumns * kChannels; ++e) {
      const int i = e / kChannels, v = e % kChannels;
      rows[a][i][v] = a > 0 ? rows[a > 0 ? a - 1 : 0][i][v] : 0.0f;
    }
  }
}

// Stores a thread's columns of a row of the result.
template <class Shape, int kColumns>
__device__ __forceinline__ void store_row(typename Shape::Element* line, const DepthwiseRowsColumns& columns,
                                          const float (&values)[kColumns][Shape::kChannels]) {
  using T = typename Shape::Element;
  if constexpr (!Shape::kChannelsInner) {
    float own[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) own[i] = values[i][0];
    *reinterpret_cast<RawPack<T, kColumns>*>(line) = narrow<T, kColumns>(own);
  } else {
    const bool are_inside = columns.first >= 0 && columns.first + kColumns <= columns.of_line;
#pragma unroll
    for (int i = 0; i < kColumns; ++i, line += columns.step) {
      if (!are_inside && !columns.is_inside(i)) continue;
      *reinterpret_cast<RawPack<T, Shape::kChannels>*>(line) = narrow<T, Shape::kChannels>(values[i]);
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(kDepthwiseThreads, Shape::kBlocks)
    row_stream_forward(const __grid_constant__ DepthwiseRowsParams<typename Shape::Element> p) {
#if __CUDA_ARCH__ >= 800
  using T = typename Shape::Element;
  constexpr int kStride = Shape::kStride, kKernel = Shape::kKernel, kChannels = Shape::kChannels;
  constexpr int kColumns = Shape::kOutputColumns, kLeft = Shape::kInputLeft;
  using Row = DepthwiseRow<Shape, Shape::kColumns, kLeft, Shape::kInputRight>;
  extern __shared__ __align__(16) unsigned char shared[];
  DepthwiseRowsRing<Shape> ring(shared);
  static_assert(ring.kStepBytes == Row::kBytes);
  const DepthwiseRowsPlace<Shape> place(p);
  const DepthwiseRowsColumns input_columns = {place.run * Shape::kColumns + p.plan.shift + Row::kFirst,
                                              p.axis[1].source_size, p.source_stride.w};
  const DepthwiseRowsColumns output_columns = {place.run * kColumns, p.axis[1].result_size, p.result_stride.w};
  int t = p.plan.first_row + place.first_row - (Shape::kHistory - 1);
  const T* input = place.at(p.source, p.source_stride, t, input_columns.first);
  int row = t * kStride - p.axis[0].padding;  // of the output
  T* output = place.at(p.result, p.result_stride, row, output_columns.first);
  const int steps = p.plan.segment_rows + Shape::kHistory - 1;
  const int end = min(t + steps, p.axis[0].source_size);
  const Row rows(p, place, input_columns);
  const auto copy = [&](unsigned char* to) {
    rows.copy(to, input, t >= 0 && t < end);
    ++t;
    input += p.source_stride.h;
  };
  ring.fill(copy);

  float weight[kKernel][kKernel][kChannels];
  load_weights(weight, p, place.channel_or_first());
  float bias[kChannels];
#pragma unroll
  for (int v = 0; v < kChannels; ++v) bias[v] = p.bias != nullptr ? widen(p.bias[place.channel_or_first() + v]) : 0.0f;

  // Output rows that wait for further input rows.
  constexpr int kWaiting = kKernel - kStride;
  float waiting[kWaiting > 0 ? kWaiting : 1][kColumns][kChannels] = {};  // the first are of rows that are not stored
  for (int step = 0; step < steps; ++step) {
    float x[Row::kSpan][kChannels];
    rows.read(x, ring.advance(copy), place);
#pragma unroll
    for (int k = 0; k < kKernel; ++k) {
      float sums[kColumns][kChannels];
#pragma unroll
      for (int e = 0; e < kColumns * kChannels; ++e) {
        const int c = e / kChannels, v = e % kChannels;
        float sum = bias[v];
        if (k < kWaiting) sum = waiting[k][c][v];
#pragma unroll
        for (int i = 0; i < Row::kSpan; ++i) {
          const int tap = c + Shape::kPadding - kStride * (i - kLeft);
          if (tap >= 0 && tap < kKernel) sum += x[i][v] * weight[k][tap][v];
        }
        sums[c][v] = sum;
        if (k >= kStride) waiting[k - kStride][c][v] = sum;
      }
      const bool is_row = static_cast<unsigned>(row + k) < static_cast<unsigned>(p.axis[0].result_size);
      if (k < kStride && step >= Shape::kHistory - 1 && place.owns && is_row) {
        store_row<Shape, kColumns>(output + k * p.result_stride.h, output_columns, sums);
      }
    }
    row += kStride;
    output += kStride * p.result_stride.h;
  }
#endif
}

template <class Shape>
__global__ void __launch_bounds__(kDepthwiseThreads, Shape::kBlocks)
    row_stream_grad_input(const __grid_constant__ DepthwiseRowsParams<typename Shape::Element> p) {
#if __CUDA_ARCH__ >= 800
  using T = typename Shape::Element;
  constexpr int kStride = Shape::kStride, kKernel = Shape::kKernel, kChannels = Shape::kChannels;
  constexpr int kColumns = Shape::kColumns, kHistory = Shape::kHistory;
  using Row = DepthwiseRow<Shape, Shape::kOutputColumns, Shape::kOutputLeft, Shape::kOutputRight>;
  extern __shared__ __align__(16) unsigned char shared[];
  DepthwiseRowsRing<Shape> ring(shared);
  static_assert(ring.kStepBytes == kStride * Row::kBytes);
  const DepthwiseRowsPlace<Shape> place(p);

  const DepthwiseRowsColumns input_columns = {place.run * kColumns, p.axis[1].result_size, p.result_stride.w};
  const DepthwiseRowsColumns output_columns = {(input_columns.first - p.plan.shift) * kStride + Row::kFirst,
                                               p.axis[1].source_size, p.source_stride.w};
  int row = place.first_row * kStride - p.axis[0].padding;  // of grad_output
  const T* output = place.at(p.source, p.source_stride, row, output_columns.first);
  int complete = place.first_row - (kHistory - 1);  // row of grad_input
  T* input = place.at(p.result, p.result_stride, complete, input_columns.first);
  const int steps = p.plan.segment_rows + kHistory - 1;
  const int end = min(row + steps * kStride, p.axis[0].source_size);
  const Row rows(p, place, output_columns);
  const auto copy = [&](unsigned char* to) {
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      rows.copy(to + r * Row::kBytes, output, row >= 0 && row < end);
      ++row;
      output += p.source_stride.h;
    }
  };
  ring.fill(copy);
  float weight[kKernel][kKernel][kChannels];
  load_weights(weight, p, place.channel_or_first());

  float sums[kHistory][kColumns][kChannels] = {};  // of row t - a
  for (int step = 0; step < steps; ++step) {
    const unsigned char* const own = ring.advance(copy);
    move_rows(sums);
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      float y[Row::kSpan][kChannels];
      rows.read(y, own + r * Row::kBytes, place);
#pragma unroll
      for (int a = 0; a < kHistory; ++a) {
        if (kStride * a + r >= kKernel) continue;
#pragma unroll
        for (int e = 0; e < kColumns * kChannels; ++e) {
          const int i = e / kChannels, v = e % kChannels;
#pragma unroll
          for (int k = 0; k < kKernel; ++k) {
            sums[a][i][v] += y[kStride * i + k][v] * weight[kStride * a + r][k][v];
          }
        }
      }
    }
    if (step >= kHistory - 1 && place.owns && complete < p.axis[0].result_size) {
      store_row<Shape, kColumns>(input, input_columns, sums[kHistory - 1]);
    }
    ++complete;
    input += p.result_stride.h;
  }
#endif
}

template <class Shape>
__global__ void __launch_bounds__(kDepthwiseThreads, Shape::kBlocks)
    row_stream_grad_weight(const __grid_constant__ DepthwiseRowsParams<typename Shape::Element> p) {
#if __CUDA_ARCH__ >= 800
  using T = typename Shape::Element;
  constexpr int kStride = Shape::kStride, kKernel = Shape::kKernel, kChannels = Shape::kChannels;
  constexpr int kColumns = Shape::kColumns, kHistory = Shape::kHistory, kWarps = kDepthwiseThreads / 32;
  using InputRow = DepthwiseRow<Shape, kColumns, 0, 0>;
  using OutputRow = DepthwiseRow<Shape, Shape::kOutputColumns, Shape::kOutputLeft, Shape::kOutputRight>;
  extern __shared__ __align__(16) unsigned char shared[];
  DepthwiseRowsRing<Shape> ring(shared);
  static_assert(ring.kStepBytes == InputRow::kBytes + kStride * OutputRow::kBytes);
  const DepthwiseRowsPlace<Shape> place(p);

  const DepthwiseRowsColumns input_columns = {place.run * kColumns, p.axis[1].result_size, p.other_stride.w};
  const DepthwiseRowsColumns output_columns = {(input_columns.first - p.plan.shift) * kStride + OutputRow::kFirst,
                                               p.axis[1].source_size, p.source_stride.w};
  const int steps = p.plan.segment_rows + kHistory - 1;
  const int end = min(place.first_row + p.plan.segment_rows, p.axis[0].result_size);
  const int first_output = place.first_row * kStride - p.axis[0].padding;
  const int output_end = min(first_output + steps * kStride, p.axis[0].source_size);
  int t = place.first_row, row = first_output;  // to copy next
  const T* input = place.at(p.other, p.other_stride, t, input_columns.first);
  const T* output = place.at(p.source, p.source_stride, row, output_columns.first);
  const InputRow input_rows(p, place, input_columns);
  const OutputRow output_rows(p, place, output_columns);
  const auto copy = [&](unsigned char* to) {
    input_rows.copy(to, input, t < end);
    ++t;
    input += p.other_stride.h;
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      output_rows.copy(to + InputRow::kBytes + r * OutputRow::kBytes, output, row >= 0 && row < output_end);
      ++row;
      output += p.source_stride.h;
    }
  };
  ring.fill(copy);

  float sums[kKernel][kKernel][kChannels] = {};
  float x[kHistory][kColumns][kChannels] = {};  // row t - a
#pragma unroll(kHistory)  // unrolled, so that rows need not move
  for (int step = 0; step < steps; ++step) {
    move_rows(x);
    const unsigned char* const own = ring.advance(copy);
    input_rows.read(x[0], own, place);
    const int here = place.first_row + step;
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      float y[OutputRow::kSpan][kChannels];
      output_rows.read(y, own + InputRow::kBytes + r * OutputRow::kBytes, place);
      const int here_output = first_output + step * kStride + r;
      if (here_output < 0 || here_output >= output_end) continue;
#pragma unroll
      for (int a = 0; a < kHistory; ++a) {
        // Skips input rows outside the segment.
        if (kStride * a + r >= kKernel || here - a < place.first_row || here - a >= end) continue;
#pragma unroll
        for (int k = 0; k < kKernel; ++k) {
#pragma unroll
          for (int e = 0; e < kColumns * kChannels; ++e) {
            const int i = e / kChannels, v = e % kChannels;
            sums[kStride * a + r][k][v] += x[a][i][v] * y[kStride * i + k][v];
          }
        }
      }
    }
  }

  start_dependents();
  // Adds lanes, then warps, in order. Lanes along the channels keep their own sums.
  __shared__ float of_warps[kWarps][kKernel][kChannels][Shape::kChannelsInner ? 32 : 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = p.plan.threads / 32;
  const int kept = Shape::kChannelsInner ? p.plan.lanes : 1;
#pragma unroll
  for (int i = 0; i < kKernel; ++i) {
#pragma unroll
    for (int k = 0; k < kKernel; ++k) {
#pragma unroll
      for (int v = 0; v < kChannels; ++v) {
        float sum = place.owns ? sums[i][k][v] : 0.0f;
        for (int other = 16; other >= kept; other /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, other);
        if (lane < kept) of_warps[warp][k][v][lane] = sum;
      }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < kKernel * kChannels * kept; e += p.plan.threads) {
      const int of_lane = e & (kept - 1), any = e / kept, v = any % kChannels, k = any / kChannels;
      float sum = 0;
      for (int other = 0; other < warps; ++other) sum += of_warps[other][k][v][of_lane];
      const int channel = place.first_channel + of_lane * kChannels + v;
      if (channel < p.channels) p.store_weight(place.split, channel, i, k, sum);
    }
    __syncthreads();
  }
#endif
}

}  // namespace deconv
