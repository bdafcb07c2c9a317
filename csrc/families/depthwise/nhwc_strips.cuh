// Depthwise kernels for results (grad_weight: inputs) whose channels are innermost in memory.
//
// Lanes lie along the channels, kVector of them a thread, so that every access is a vector and whole sectors move. A
// thread slides along the width: kStrip pixels of one phase meet a row of taps in registers. Source pixels come through
// the L1, where the rows above each other meet again; only weights are staged.
#pragma once

#include "families/depthwise/params.cuh"

namespace deconv {

template <class T>
using DepthwiseChannelsParams = DepthwiseParams<T, DepthwiseChannelsPlan>;

// Pixels of one row from `column` on, `step` apart; zeros outside the image.
template <int kVector, int kCount, class T>
__device__ __forceinline__ void load_pixels(RawPack<T, kVector> (&pixels)[kCount], const T* row, int column, int step,
                                            int width, int64_t stride) {
  using Vector = RawPack<T, kVector>;
  const T* at = row + column * stride;
  const int64_t hop = step * stride;
  if (column >= 0 && column + (kCount - 1) * step < width) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      pixels[i] = *reinterpret_cast<const Vector*>(at);
      at += hop;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      pixels[i] = Vector{};
      if (column + i * step >= 0 && column + i * step < width) pixels[i] = *reinterpret_cast<const Vector*>(at);
      at += hop;
    }
  }
}

template <class T, int kVector, int kStrip>
class DepthwiseChannelsBlock {
  using Accum = AccumulatorOf<T>;
  using Vector = RawPack<T, kVector>;

 public:
  __device__ __forceinline__ DepthwiseChannelsBlock(const DepthwiseChannelsParams<T>& params, unsigned char* shared)
      : p(params), weights(reinterpret_cast<Accum*>(shared)) {}

  __device__ __forceinline__ void run() {
    BlockIndex block;
    const int lanes = p.plan.lanes;
    const int lane = p.plan.by_lanes.remainder(threadIdx.x), any_slot = p.plan.by_lanes.quotient(threadIdx.x);
    const int slot = p.plan.by_slots_w.quotient(any_slot), slot_w = p.plan.by_slots_w.remainder(any_slot);
    const int inner = (block.take(p.plan.by_blocks_inner) * lanes + lane) * kVector;
    const int first_q = (block.take(p.plan.by_blocks_w) * p.plan.slots_w + slot_w) * kStrip;
    row_phase = block.take(p.plan.by_row_phases);
    const int first_row = block.take(p.plan.by_blocks_h) * p.plan.rows * p.plan.slots_h + slot;
    const int n = block.rest();
    phase = p.by_channels.quotient(inner);
    c = inner - phase * p.channels;
    weight_pitch = lanes * kVector;
    const int step_w = p.axis[1].result_step();
    const bool has_channels = phase < p.axis[1].phases();
    if (slot < p.plan.slots_h && has_channels) stage_weights(any_slot, lane * kVector);
    __syncthreads();
    if (slot >= p.plan.slots_h || !has_channels || first_q * step_w + phase >= p.axis[1].result_size) return;

    Accum bias[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) bias[v] = p.bias != nullptr ? widen(p.bias[c + v]) : Accum(0);
    const T* source = p.source + n * p.source_stride.n;
    T* result = p.result + n * p.result_stride.n + c * p.result_stride.c;
    for (int r = 0; r < p.plan.rows; ++r) {
      const int q = first_row + r * p.plan.slots_h, row = q * p.axis[0].result_step() + row_phase;
      if (row >= p.axis[0].result_size) break;
#pragma unroll
      for (int i = 0; i < kStrip; ++i) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[i][v] = Accum(0);
      }
      for (int s = 0; s < p.sources(); ++s) {
        add_channel(source + p.source_channel(c, s) * p.source_stride.c, q, first_q,
                    weights + s * p.plan.tap_rows * p.plan.tap_columns * weight_pitch + lane * kVector);
      }
      T* to = result + row * p.result_stride.h + (first_q * step_w + phase) * p.result_stride.w;
#pragma unroll
      for (int i = 0; i < kStrip; ++i) {
        if ((first_q + i) * step_w + phase >= p.axis[1].result_size) break;
#pragma unroll
        for (int v = 0; v < kVector; ++v) sums[i][v] += bias[v];
        *reinterpret_cast<Vector*>(to) = narrow<T, kVector>(sums[i]);
        to += step_w * p.result_stride.w;
      }
    }
  }

 private:
  const DepthwiseChannelsParams<T>& p;
  Accum* weights;  // shared: [sources][tap_rows][tap_columns][lanes x kVector], of this row phase in the forward
  int weight_pitch, row_phase, phase, c;
  Accum sums[kStrip][kVector];

  // The rows of taps of a result row, planes of the source merged: how the source row and the weight's row advance.
  __device__ __forceinline__ AxisTaps tap_rows() const {
    if (p.is_forward) return p.taps[0][row_phase];
    return {p.axis[0].kernel, 0, 1, -p.axis[0].padding, p.axis[0].dilation};
  }

  __device__ __forceinline__ void stage_weights(int slot, int at) {
    const AxisTaps th = tap_rows(), tw = p.is_forward ? p.taps[1][phase] : AxisTaps{p.axis[1].kernel};
    const int rows = p.plan.tap_rows, slots = p.plan.slots_w * p.plan.slots_h;
    for (int s = 0; s < p.sources(); ++s) {
      const T* weight[kVector];
#pragma unroll
      for (int v = 0; v < kVector; ++v) weight[v] = p.weight(c + v, s);
      Accum* to = weights + s * rows * p.plan.tap_columns * weight_pitch + at;
      for (int e = slot; e < rows * p.plan.tap_columns; e += slots) {
        const int i = p.plan.by_tap_columns.quotient(e), k = p.plan.by_tap_columns.remainder(e);
        const bool is_tap = i < th.count && k < tw.count;
        const int64_t offset = (th.first_tap + i * th.tap_step) * p.other_stride.h +
                               (tw.first_tap + k * tw.tap_step) * p.other_stride.w;
#pragma unroll
        for (int v = 0; v < kVector; ++v) to[e * weight_pitch + v] = is_tap ? widen(weight[v][offset]) : Accum(0);
      }
    }
  }

  __device__ __forceinline__ void add_channel(const T* source, int q, int first_q, const Accum* weight) {
    const AxisTaps th = tap_rows();
    const int sections = p.is_forward ? 1 : p.axis[1].planes(), step = p.axis[1].source_step();
    for (int i = 0; i < th.count; ++i) {
      const int row = q * p.axis[0].source_step() + th.first_shift + i * th.shift_step;
      if (row < 0 || row >= p.axis[0].source_size) continue;
      const T* pixels = source + row * p.source_stride.h;
      const Accum* weight_row = weight + i * p.plan.tap_columns * weight_pitch;
      for (int section = 0; section < sections; ++section) {
        const AxisTaps& tw = p.taps[1][p.is_forward ? phase : section];
        const int first_tap = p.is_forward ? 0 : tw.first_tap, tap_step = p.is_forward ? 1 : tw.tap_step;
        for (int k = 0; k < tw.count; k += p.plan.chunk_w) {
          const int column = (first_q + tw.first_shift + k * tw.shift_step) * step + section;
          dispatch<kDepthwiseTapColumnsInner>(min(p.plan.chunk_w, tw.count - k), [&](auto taps) {
            add_taps<taps.value>(pixels, column, step, weight_row + (first_tap + k * tap_step) * weight_pitch,
                                 tap_step * weight_pitch);
          });
        }
      }
    }
  }

  template <int kTaps>
  __device__ __forceinline__ void add_taps(const T* row, int column, int step, const Accum* weight, int tap_step) {
    Vector pixels[kStrip + kTaps - 1];
    load_pixels<kVector>(pixels, row, column, step, p.axis[1].source_size, p.source_stride.w);
    Accum taps[kTaps][kVector];
    constexpr int kPack = kVector < kPackSize<Accum> ? kVector : kPackSize<Accum>;
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
#pragma unroll
      for (int v = 0; v < kVector; v += kPack) {
        const auto pack = *reinterpret_cast<const Pack<Accum, kPack>*>(weight + k * tap_step + v);
#pragma unroll
        for (int u = 0; u < kPack; ++u) taps[k][v + u] = pack.value[u];
      }
    }
#pragma unroll
    for (int j = 0; j < kStrip + kTaps - 1; ++j) {
      Accum pixel[kVector];
      widen<T, kVector>(pixel, pixels[j]);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
          if (j >= k && j - k < kStrip) sums[j - k][v] += pixel[v] * taps[k][v];
        }
      }
    }
  }
};

template <class T, int kVector, int kStrip>
__global__ void __launch_bounds__(kDepthwiseThreads, kVector * sizeof(AccumulatorOf<T>) > 16 ? 2 : 3)
    depthwise_channels_kernel(const __grid_constant__ DepthwiseChannelsParams<T> p) {
  extern __shared__ __align__(16) unsigned char shared[];
  DepthwiseChannelsBlock<T, kVector, kStrip>(p, shared).run();
}

// grad_weight: what a thread adds up for kVector pairs of channels and one chunk of taps. It walks down a strip of the
// input, so that each row of grad_output is read once for all rows of taps: those rows of the input that still meet one
// stay in registers.
template <class T, int kVector, int kStrip>
class DepthwiseChannelsSums {
  using Accum = AccumulatorOf<T>;
  using Vector = RawPack<T, kVector>;
  static constexpr int kRows = kDepthwiseTapRows;

 public:
  Accum sums[kRows][kDepthwiseTapColumnsInner][kVector] = {};

  // The first tap reads, for pixel q of the input, pixel q + shift of the plane of grad_output from `plane` on.
  struct Axis {
    int taps, shift, plane;
  };
  __device__ __forceinline__ DepthwiseChannelsSums(const DepthwiseChannelsParams<T>& params, const Axis& h,
                                                   const Axis& w)
      : p(params), h_(h), w_(w) {}

  // `lines` lines from line `first` of all images on.
  __device__ __forceinline__ void add(const T* input, const T* grad, int first, int lines, int column) {
    const int height = p.axis[0].result_size;
    while (lines > 0) {
      const int n = p.plan.by_height.quotient(first), h = first - n * height, rows = min(lines, height - h);
      dispatch<kDepthwiseTapColumnsInner>(w_.taps, [&](auto columns) {
        add_rows<columns.value>(input + n * p.other_stride.n + h * p.other_stride.h, grad + n * p.source_stride.n, h,
                                rows, column);
      });
      first += rows;
      lines -= rows;
    }
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void add_rows(const T* input, const T* grad, int h, int rows, int column) {
    Vector x[kRows][kStrip];
    const int steps = rows + h_.taps - 1;
    for (int first = 0; first < steps; first += kRows) {
#pragma unroll
      for (int slot = 0; slot < kRows; ++slot) {
        const int step = first + slot;  // row `step` of the input comes, with the row that the first tap reads for it
        if (step >= steps) break;
        if (step < rows) {
          load_pixels<kVector>(x[slot], input + step * p.other_stride.h, column, 1, p.axis[1].result_size,
                               p.other_stride.w);
        }
        const int row = (h + step + h_.shift) * p.axis[0].stride + h_.plane;
        if (row < 0 || row >= p.axis[0].source_size) continue;
        Vector y[kStrip + kColumns - 1];
        load_pixels<kVector>(y, grad + row * p.source_stride.h, (column + w_.shift) * p.axis[1].stride + w_.plane,
                             p.axis[1].stride, p.axis[1].source_size, p.source_stride.w);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (i < h_.taps && step >= i && step - i < rows)
            multiply<kColumns>(sums[i], x[(slot - i + kRows) % kRows], y);
        }
      }
    }
  }

  template <int kColumns>
  __device__ __forceinline__ static void multiply(Accum (&sums)[kDepthwiseTapColumnsInner][kVector],
                                                  const Vector (&raw)[kStrip],
                                                  const Vector (&y)[kStrip + kColumns - 1]) {
    Accum x[kStrip][kVector];
#pragma unroll
    for (int i = 0; i < kStrip; ++i) widen<T, kVector>(x[i], raw[i]);
#pragma unroll
    for (int j = 0; j < kStrip + kColumns - 1; ++j) {
      Accum pixel[kVector];
      widen<T, kVector>(pixel, y[j]);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          if (j >= k && j - k < kStrip) sums[k][v] += pixel[v] * x[j - k][v];
        }
      }
    }
  }

  const DepthwiseChannelsParams<T>& p;
  Axis h_, w_;
};

// A block takes lanes x kVector pairs of channels, one chunk of taps and one split of the lines. Its slots share the
// strips of each plan.rows lines; their sums are added in order.
template <class T, int kVector, int kStrip>
__global__ void __launch_bounds__(kDepthwiseThreads, 2)
    depthwise_channels_weight_kernel(const __grid_constant__ DepthwiseChannelsParams<T> p) {
  using Accum = AccumulatorOf<T>;
  __shared__ Accum slot_sums[kDepthwiseThreads * kVector];
  BlockIndex block;
  const int lanes = p.plan.lanes, slots = p.plan.slots_w;
  const int lane = p.plan.by_lanes.remainder(threadIdx.x), slot = p.plan.by_lanes.quotient(threadIdx.x);
  const int pass_w = block.take(p.plan.by_passes_w), pass_h = block.take(p.plan.by_passes_h);
  const int first_pair = block.take(p.plan.by_blocks_inner) * lanes * kVector, pair = first_pair + lane * kVector;
  const int64_t split = block.rest();

  const int plane_h = p.plan.by_chunks_h.quotient(pass_h), plane_w = p.plan.by_chunks_w.quotient(pass_w);
  const int first_h = p.plan.by_chunks_h.remainder(pass_h) * p.plan.chunk_h;
  const int first_w = p.plan.by_chunks_w.remainder(pass_w) * p.plan.chunk_w;
  const AxisTaps &th = p.taps[0][plane_h], &tw = p.taps[1][plane_w];
  const int tap_rows = min(p.plan.chunk_h, th.count - first_h), tap_columns = min(p.plan.chunk_w, tw.count - first_w);
  if (tap_rows <= 0 || tap_columns <= 0) return;
  DepthwiseChannelsSums<T, kVector, kStrip> of_thread(p, {tap_rows, th.first_shift + first_h * th.shift_step, plane_h},
                                                      {tap_columns, tw.first_shift + first_w * tw.shift_step, plane_w});
  if (slot < slots && pair < p.channels) {
    const int strips = static_cast<int>(p.plan.by_strips.divisor);
    const int64_t first_line = split * p.plan.lines_per_split;
    const int64_t all_lines = static_cast<int64_t>(p.batch) * p.axis[0].result_size;
    const int lines = static_cast<int>(min(p.plan.lines_per_split, all_lines - first_line));
    const T* input = p.other + p.pair_input(pair) * p.other_stride.c;
    const T* grad = p.source + p.pair_output(pair) * p.source_stride.c;
    for (int unit = slot;; unit += slots) {
      const int run = p.plan.by_strips.quotient(unit);
      const int64_t first = static_cast<int64_t>(run) * p.plan.rows;
      if (first >= lines) break;
      of_thread.add(input, grad, static_cast<int>(first_line + first),
                    min(p.plan.rows, lines - static_cast<int>(first)), (unit - run * strips) * kStrip);
    }
  }

  const int inner = lanes * kVector;  // pairs of a block
#pragma unroll
  for (int e = 0; e < kDepthwiseTapRows * kDepthwiseTapColumnsInner; ++e) {
    const int i = e / kDepthwiseTapColumnsInner, k = e % kDepthwiseTapColumnsInner;
    if (i >= tap_rows || k >= tap_columns) continue;
    __syncthreads();  // the previous tap's readers are done
#pragma unroll
    for (int v = 0; v < kVector; ++v) slot_sums[threadIdx.x * kVector + v] = of_thread.sums[i][k][v];
    __syncthreads();
    for (int of_block = threadIdx.x; of_block < min(inner, p.channels - first_pair); of_block += kDepthwiseThreads) {
      Accum sum = 0;
      for (int other = 0; other < slots; ++other) sum += slot_sums[other * inner + of_block];
      p.store_weight(split, first_pair + of_block, th.first_tap + (first_h + i) * th.tap_step,
                     tw.first_tap + (first_w + k) * tw.tap_step, sum);
    }
  }
}

}  // namespace deconv
