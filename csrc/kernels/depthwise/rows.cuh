// Depthwise kernels of small square kernels K and strides S, either layout: one channel a group on either side. Threads
// walk down the rows. In step t a thread meets row t of the input and the S rows o of the output with o + padding =
// S t + r, r = 0 .. S-1, its columns of both in registers:
//
//   forward:     output[S t - padding + k] += input[t] * weight[k]
//   grad_input:  grad_input[t - a] += grad_output[S t - padding + r] * weight[S a + r]
//   grad_weight: grad_weight[S a + r] += input[t - a] * grad_output[S t - padding + r]
//
// Then the first S rows of the output, or the input's row of the last a, have all their taps and leave. So every
// element is read by one thread, once, but for the columns of its neighbours: these come from their registers by
// shuffles where the width is innermost, and from the L1 where channels are.
#pragma once

#include "params.cuh"

namespace deconv {

template <class T>
using DepthwiseRowsParams = DepthwiseParams<T, DepthwiseRowsPlan>;

// kWhole: what a thread moves at once lies on its own boundary in memory.
template <class T, int kStride_, int kKernel_, bool kChannelsInner_, bool kWhole_, bool kWeightGradient>
struct DepthwiseRowsShape {
  using Element = T;
  static constexpr int kStride = kStride_, kKernel = kKernel_;
  static constexpr bool kChannelsInner = kChannelsInner_, kWhole = kWhole_;
  static constexpr int kChannels = depthwise_rows_channels(sizeof(T), kChannelsInner);
  static constexpr int kColumns = depthwise_rows_columns(sizeof(T), kStride, kChannelsInner, kWeightGradient);
  static constexpr int kOutputColumns = kStride * kColumns;
  static constexpr int kPadding = depthwise_rows_padding(kKernel, kStride);
  static constexpr int kHistory = depthwise_rows_history(kKernel, kStride);
  // Columns of the neighbours: of the input that meet a thread's output, and of the output that meet its input.
  static constexpr int kInputLeft = (kKernel - 1 - kPadding) / kStride;
  static constexpr int kInputRight = (kOutputColumns - 1 + kPadding) / kStride - (kColumns - 1);
  static constexpr int kOutputLeft = kPadding, kOutputRight = kKernel - kStride - kPadding;
  static constexpr int kBlocks = depthwise_rows_blocks(kChannelsInner);
};

// kCount neighbours.
template <bool kWhole, int kCount, class T>
__device__ __forceinline__ RawPack<T, kCount> load_pack(const T* at) {
  if constexpr (kWhole) {
    return *reinterpret_cast<const RawPack<T, kCount>*>(at);
  } else {
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = widen(at[i]);
    return narrow<T, kCount>(values);
  }
}
template <bool kWhole, int kCount, class T>
__device__ __forceinline__ void store_pack(T* at, const float (&values)[kCount]) {
  if constexpr (kWhole) {
    *reinterpret_cast<RawPack<T, kCount>*>(at) = narrow<T, kCount>(values);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) at[i] = narrow<T>(values[i]);
  }
}

// Where a thread is, and what of a line it has.
template <class Shape>
struct DepthwiseRowsPlace {
  using T = typename Shape::Element;

  __device__ __forceinline__ DepthwiseRowsPlace(const DepthwiseRowsParams<T>& p) {
    BlockIndex block;
    const int channel_block = block.take(p.plan.by_channel_blocks);  // neighbours in memory at the same time
    split = block.rest();
    const int thread = split * p.plan.threads + static_cast<int>(threadIdx.x);
    const int lane = thread & (p.plan.lanes - 1), unit = thread / p.plan.lanes;
    const int line = p.plan.by_parts.quotient(unit), part = p.plan.by_parts.remainder(unit);
    image = p.plan.by_segments.quotient(line);
    first_row = p.plan.by_segments.remainder(line) * p.plan.segment_rows;
    exists = image < p.batch;
    if constexpr (Shape::kChannelsInner) {
      first_channel = channel_block * p.plan.lanes * Shape::kChannels;
      channel = first_channel + lane * Shape::kChannels;
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
    if (!exists) image = channel = run = 0;
  }

  int split, channel, image, first_row;
  int first_channel;  // of the block
  int run;  // of the line: which of its columns
  bool exists, owns;  // owns: and is not there for a neighbour alone
  bool has_left, has_right;  // neighbours by shuffles
};

// Columns side by side of one line: the first, how many the line has, and how far apart they are in memory.
struct DepthwiseRowsColumns {
  int first, of_line;
  int64_t step;

  template <int kCount>
  __device__ __forceinline__ bool are_inside() const {
    return first >= 0 && first + kCount <= of_line;
  }
  __device__ __forceinline__ bool is_inside(int i) const {
    return static_cast<unsigned>(first + i) < static_cast<unsigned>(of_line);
  }
};

// One row of a source: kOwn columns of the thread's own, and those of its neighbours beside them.
template <class Shape, int kOwn, int kLeft, int kRight>
class DepthwiseRow {
  using T = typename Shape::Element;
  static constexpr int kChannels = Shape::kChannels;

 public:
  static constexpr int kSpan = kLeft + kOwn + kRight;
  // The first column that a thread loads itself, from its first own one on.
  static constexpr int kFirst = Shape::kChannelsInner ? -kLeft : 0;

  // line: at the first of the columns.
  __device__ __forceinline__ void load(const T* line, bool exists, const DepthwiseRowsColumns& columns) {
    if constexpr (!Shape::kChannelsInner) {
      raw_[0] = exists ? load_pack<Shape::kWhole, kOwn>(line) : Pixels{};
    } else if (!exists) {
#pragma unroll
      for (int i = 0; i < kSpan; ++i) raw_[i] = Pixels{};
    } else if (columns.are_inside<kSpan>()) {
#pragma unroll
      for (int i = 0; i < kSpan; ++i, line += columns.step) raw_[i] = load_pack<Shape::kWhole, kChannels>(line);
    } else {
#pragma unroll
      for (int i = 0; i < kSpan; ++i, line += columns.step) {
        raw_[i] = columns.is_inside(i) ? load_pack<Shape::kWhole, kChannels>(line) : Pixels{};
      }
    }
  }

  // All lanes of a warp together.
  __device__ __forceinline__ void widen_into(float (&values)[kSpan][kChannels],
                                             const DepthwiseRowsPlace<Shape>& place) const {
    if constexpr (Shape::kChannelsInner) {
#pragma unroll
      for (int i = 0; i < kSpan; ++i) widen<T, kChannels>(values[i], raw_[i]);
    } else {
      float own[kOwn];
      widen<T, kOwn>(own, raw_[0]);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) values[kLeft + i][0] = own[i];
      constexpr int kWords = static_cast<int>(sizeof(raw_[0].value) / 4), kInWord = kOwn / kWords;
      static_assert(kLeft <= kOwn && kRight <= kOwn);
      const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
      for (int i = 0; i < kLeft; i += kInWord) {  // the nearest word first
        float word[kInWord];
        widen_word(word, shuffle(raw_[0].value[kWords - 1 - i / kInWord], thread - 1), place.has_left);
#pragma unroll
        for (int e = 0; e < kInWord && i + e < kLeft; ++e) values[kLeft - 1 - i - e][0] = word[kInWord - 1 - e];
      }
#pragma unroll
      for (int i = 0; i < kRight; i += kInWord) {
        float word[kInWord];
        widen_word(word, shuffle(raw_[0].value[i / kInWord], thread + 1), place.has_right);
#pragma unroll
        for (int e = 0; e < kInWord && i + e < kRight; ++e) values[kLeft + kOwn + i + e][0] = word[e];
      }
    }
  }

 private:
  using Pixels = RawPack<T, Shape::kChannelsInner ? kChannels : kOwn>;
  Pixels raw_[Shape::kChannelsInner ? kSpan : 1];

  template <class Word>
  static __device__ __forceinline__ Word shuffle(Word word, int lane) {
    return __shfl_sync(0xFFFFFFFFu, word, lane & 31);
  }
  template <class Word, int kInWord>
  static __device__ __forceinline__ void widen_word(float (&values)[kInWord], Word word, bool is_inside) {
    RawPack<T, kInWord> pack;
    pack.value[0] = is_inside ? word : Word{};
    widen<T, kInWord>(values, pack);
  }
};

// The weights of the thread's channels.
template <class Shape>
struct DepthwiseRowsWeights {
  using T = typename Shape::Element;
  static constexpr int kKernel = Shape::kKernel;
  float value[kKernel][kKernel][Shape::kChannels];

  __device__ __forceinline__ DepthwiseRowsWeights(const DepthwiseRowsParams<T>& p, int channel) {
#pragma unroll
    for (int v = 0; v < Shape::kChannels; ++v) {
      const T* const at = p.weight(channel + v, 0);
#pragma unroll
      for (int i = 0; i < kKernel; ++i) {
#pragma unroll
        for (int k = 0; k < kKernel; ++k) {
          value[i][k][v] = widen(at[i * p.other_stride.h + k * p.other_stride.w]);
        }
      }
    }
  }
};

// A thread's columns of a row of the result.
template <class Shape, int kColumns>
__device__ __forceinline__ void store_row(typename Shape::Element* line, const DepthwiseRowsColumns& columns,
                                          const float (&values)[kColumns][Shape::kChannels]) {
  if constexpr (!Shape::kChannelsInner) {
    float own[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) own[i] = values[i][0];
    store_pack<Shape::kWhole, kColumns>(line, own);
  } else if (columns.are_inside<kColumns>()) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i, line += columns.step) {
      store_pack<Shape::kWhole, Shape::kChannels>(line, values[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kColumns; ++i, line += columns.step) {
      if (columns.is_inside(i)) store_pack<Shape::kWhole, Shape::kChannels>(line, values[i]);
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(kDepthwiseThreads, Shape::kBlocks)
    depthwise_rows_forward(const __grid_constant__ DepthwiseRowsParams<typename Shape::Element> p) {
  using T = typename Shape::Element;
  constexpr int kStride = Shape::kStride, kKernel = Shape::kKernel, kChannels = Shape::kChannels;
  constexpr int kColumns = Shape::kOutputColumns, kLeft = Shape::kInputLeft, kAhead = Shape::kChannelsInner ? 1 : 2;
  using Row = DepthwiseRow<Shape, Shape::kColumns, kLeft, Shape::kInputRight>;
  const DepthwiseRowsPlace<Shape> place(p);
  const DepthwiseRowsWeights<Shape> weight(p, place.channel);
  float bias[kChannels];
#pragma unroll
  for (int v = 0; v < kChannels; ++v) bias[v] = p.bias != nullptr ? widen(p.bias[place.channel + v]) : 0.0f;

  const DepthwiseRowsColumns input_columns = {place.run * Shape::kColumns + p.plan.shift + Row::kFirst,
                                              p.axis[1].source_size, p.source_stride.w};
  const DepthwiseRowsColumns output_columns = {place.run * kColumns, p.axis[1].result_size, p.result_stride.w};
  int t = p.plan.first_row + place.first_row - (Shape::kHistory - 1);
  const T* input = p.source + place.image * p.source_stride.n + place.channel * p.source_stride.c +
                   t * p.source_stride.h + input_columns.first * p.source_stride.w;
  int row = t * kStride - p.axis[0].padding;  // of the output
  T* output = p.result + place.image * p.result_stride.n + place.channel * p.result_stride.c + row * p.result_stride.h +
              output_columns.first * p.result_stride.w;
  const auto load = [&](Row& to, int ahead) {
    const bool is_row = static_cast<unsigned>(t + ahead) < static_cast<unsigned>(p.axis[0].source_size);
    to.load(input + ahead * p.source_stride.h, place.exists && is_row, input_columns);
  };
  Row rows[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(rows[i], i);

  // Output rows that wait for further input.
  constexpr int kWaiting = kKernel - kStride;
  float waiting[kWaiting > 0 ? kWaiting : 1][kColumns][kChannels];
#pragma unroll
  for (int k = 0; k < kWaiting; ++k) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int v = 0; v < kChannels; ++v) waiting[k][c][v] = bias[v];
    }
  }
  const int steps = p.plan.segment_rows + Shape::kHistory - 1;
  for (int step = 0; step < steps; ++step) {
    float x[Row::kSpan][kChannels];
    rows[0].widen_into(x, place);
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) rows[i] = rows[i + 1];
    load(rows[kAhead - 1], kAhead);
#pragma unroll
    for (int k = 0; k < kKernel; ++k) {
      float sums[kColumns][kChannels];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int v = 0; v < kChannels; ++v) {
          float sum = bias[v];
          if (k < kWaiting) sum = waiting[k][c][v];
#pragma unroll
          for (int i = 0; i < Row::kSpan; ++i) {
            const int tap = c + Shape::kPadding - kStride * (i - kLeft);
            if (tap >= 0 && tap < kKernel) sum += x[i][v] * weight.value[k][tap][v];
          }
          sums[c][v] = sum;
          if (k >= kStride) waiting[k - kStride][c][v] = sum;
        }
      }
      const bool is_row = static_cast<unsigned>(row + k) < static_cast<unsigned>(p.axis[0].result_size);
      if (k < kStride && step >= Shape::kHistory - 1 && place.owns && is_row) {
        store_row<Shape, kColumns>(output + k * p.result_stride.h, output_columns, sums);
      }
    }
    ++t;
    row += kStride;
    input += p.source_stride.h;
    output += kStride * p.result_stride.h;
  }
}

template <class Shape>
__global__ void __launch_bounds__(kDepthwiseThreads, Shape::kBlocks)
    depthwise_rows_grad_input(const __grid_constant__ DepthwiseRowsParams<typename Shape::Element> p) {
  using T = typename Shape::Element;
  constexpr int kStride = Shape::kStride, kKernel = Shape::kKernel, kChannels = Shape::kChannels;
  constexpr int kColumns = Shape::kColumns, kHistory = Shape::kHistory;
  using Row = DepthwiseRow<Shape, Shape::kOutputColumns, Shape::kOutputLeft, Shape::kOutputRight>;
  const DepthwiseRowsPlace<Shape> place(p);
  const DepthwiseRowsWeights<Shape> weight(p, place.channel);

  const DepthwiseRowsColumns input_columns = {place.run * kColumns, p.axis[1].result_size, p.result_stride.w};
  const DepthwiseRowsColumns output_columns = {(input_columns.first - p.plan.shift) * kStride + Row::kFirst,
                                               p.axis[1].source_size, p.source_stride.w};
  int row = place.first_row * kStride - p.axis[0].padding;  // of grad_output
  const T* output = p.source + place.image * p.source_stride.n + place.channel * p.source_stride.c +
                    row * p.source_stride.h + output_columns.first * p.source_stride.w;
  int complete = place.first_row - (kHistory - 1);  // row of grad_input
  T* input = p.result + place.image * p.result_stride.n + place.channel * p.result_stride.c +
             complete * p.result_stride.h + input_columns.first * p.result_stride.w;
  Row next[kStride];
  const auto load = [&](int r) {
    const bool is_row = static_cast<unsigned>(row) < static_cast<unsigned>(p.axis[0].source_size);
    next[r].load(output, place.exists && is_row, output_columns);
    ++row;
    output += p.source_stride.h;
  };
#pragma unroll
  for (int r = 0; r < kStride; ++r) load(r);

  float waiting[kHistory][kColumns][kChannels] = {};  // sums of row t - 1 - a; those of the last row are never used
  const int steps = p.plan.segment_rows + kHistory - 1;
  for (int step = 0; step < steps; ++step) {
    float sums[kHistory][kColumns][kChannels];
#pragma unroll
    for (int a = 0; a < kHistory; ++a) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
#pragma unroll
        for (int v = 0; v < kChannels; ++v) sums[a][i][v] = a > 0 ? waiting[a > 0 ? a - 1 : 0][i][v] : 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      float y[Row::kSpan][kChannels];
      next[r].widen_into(y, place);
      load(r);
#pragma unroll
      for (int a = 0; a < kHistory; ++a) {
        if (kStride * a + r >= kKernel) continue;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
#pragma unroll
          for (int v = 0; v < kChannels; ++v) {
#pragma unroll
            for (int k = 0; k < kKernel; ++k) {
              sums[a][i][v] += y[kStride * i + k][v] * weight.value[kStride * a + r][k][v];
            }
          }
        }
      }
    }
#pragma unroll
    for (int a = 0; a < kHistory; ++a) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
#pragma unroll
        for (int v = 0; v < kChannels; ++v) waiting[a][i][v] = sums[a][i][v];
      }
    }
    if (step >= kHistory - 1 && place.owns && complete < p.axis[0].result_size) {
      store_row<Shape, kColumns>(input, input_columns, sums[kHistory - 1]);
    }
    ++complete;
    input += p.result_stride.h;
  }
}

template <class Shape>
__global__ void __launch_bounds__(kDepthwiseThreads, Shape::kBlocks)
    depthwise_rows_grad_weight(const __grid_constant__ DepthwiseRowsParams<typename Shape::Element> p) {
  using T = typename Shape::Element;
  constexpr int kStride = Shape::kStride, kKernel = Shape::kKernel, kChannels = Shape::kChannels;
  constexpr int kColumns = Shape::kColumns, kHistory = Shape::kHistory, kWarps = kDepthwiseThreads / 32;
  using InputRow = DepthwiseRow<Shape, kColumns, 0, 0>;
  using OutputRow = DepthwiseRow<Shape, Shape::kOutputColumns, Shape::kOutputLeft, Shape::kOutputRight>;
  const DepthwiseRowsPlace<Shape> place(p);

  const DepthwiseRowsColumns input_columns = {place.run * kColumns, p.axis[1].result_size, p.other_stride.w};
  const DepthwiseRowsColumns output_columns = {(input_columns.first - p.plan.shift) * kStride + OutputRow::kFirst,
                                               p.axis[1].source_size, p.source_stride.w};
  const int end = min(place.first_row + p.plan.segment_rows, p.axis[0].result_size);
  int t = place.first_row, row = t * kStride - p.axis[0].padding;
  const T* input = p.other + place.image * p.other_stride.n + place.channel * p.other_stride.c + t * p.other_stride.h +
                   input_columns.first * p.other_stride.w;
  const T* output = p.source + place.image * p.source_stride.n + place.channel * p.source_stride.c +
                    row * p.source_stride.h + output_columns.first * p.source_stride.w;
  InputRow next_x;
  OutputRow next_y[kStride];
  bool is_row[kStride];  // of grad_output
  const auto load_input = [&] {
    next_x.load(input, place.exists && t < end, input_columns);
    ++t;
    input += p.other_stride.h;
  };
  const auto load_output = [&](int r) {
    is_row[r] = static_cast<unsigned>(row) < static_cast<unsigned>(p.axis[0].source_size);
    next_y[r].load(output, place.exists && is_row[r], output_columns);
    ++row;
    output += p.source_stride.h;
  };
  load_input();
#pragma unroll
  for (int r = 0; r < kStride; ++r) load_output(r);

  float sums[kKernel][kKernel][kChannels] = {};
  float x[kHistory][kColumns][kChannels] = {};  // row t - a
  const int steps = p.plan.segment_rows + kHistory - 1;
#pragma unroll(Shape::kWhole ? kHistory : 1)  // so that rows need not move
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int a = kHistory - 1; a > 0; --a) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
#pragma unroll
        for (int v = 0; v < kChannels; ++v) x[a][i][v] = x[a - 1][i][v];
      }
    }
    next_x.widen_into(x[0], place);
    load_input();
    const int here = place.first_row + step;
#pragma unroll
    for (int r = 0; r < kStride; ++r) {
      float y[OutputRow::kSpan][kChannels];
      next_y[r].widen_into(y, place);
      const bool has_output = is_row[r];
      load_output(r);
      if (!has_output) continue;
#pragma unroll
      for (int a = 0; a < kHistory; ++a) {
        // No products of rows that are not there.
        if (kStride * a + r >= kKernel || here - a < place.first_row || here - a >= end) continue;
#pragma unroll
        for (int k = 0; k < kKernel; ++k) {
#pragma unroll
          for (int i = 0; i < kColumns; ++i) {
#pragma unroll
            for (int v = 0; v < kChannels; ++v) {
              sums[kStride * a + r][k][v] += x[a][i][v] * y[kStride * i + k][v];
            }
          }
        }
      }
    }
  }

  start_dependents();
  // Sums of lanes, then of warps, in their order. Lanes along the channels keep their own.
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
}

}  // namespace deconv
