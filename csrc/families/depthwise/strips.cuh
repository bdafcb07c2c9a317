// strips: depthwise layers of any kernel, stride, dilation and multiplier, either layout.
//
// A thread has a strip: kStrip pixels of one phase along axis 1, each with a vector of neighbours in memory. A row of
// taps meets a window of source pixels in registers:
//
//   forward, grad_input: sums[i] += source[i + k] * weight[k]
//   grad_weight:         sums[k] += source[i + k] * input[i]
//
// Adjacent threads are adjacent in memory, and windows of adjacent rows meet in L1:
//
//   channels innermost   axis 0 = height, axis 1 = width; vectors of channels; lanes: channels, of all phases of the
//                        width one after the other; then strips
//   width innermost      axis 0 = width, axis 1 = height; vectors of phases of the width, which share their source
//                        pixel (forward) or their sum (grad_input); lanes: phases of the width (grad_weight: source
//                        phases); then columns
#pragma once

#include "families/depthwise/params.cuh"

namespace deconv {

template <class T>
using DepthwiseStripsParams = DepthwiseParams<T, DepthwiseStripsPlan>;

// Loads pixels of one row from `column` on, `step` apart; zeros outside the image.
template <int kVector, int kCount, class T>
__device__ __forceinline__ void load_pixels(RawPack<T, kVector> (&pixels)[kCount], const T* row, int column, int step,
                                            int width, int64_t stride) {
  const auto load = [&](auto all_exist) {
    const T* at = row + column * stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i, at += step * stride) {
      const bool exists = all_exist.value || (column + i * step >= 0 && column + i * step < width);
      pixels[i] = exists ? *reinterpret_cast<const RawPack<T, kVector>*>(at) : RawPack<T, kVector>{};
    }
  };
  if (column >= 0 && column + (kCount - 1) * step < width) return load(std::true_type());
  load(std::false_type());
}

// Calls meet(i, k, v, pixel) for element v of pixel i + k of a window, where the i-th pixel of a strip meets tap k.
template <class T, int kVector, int kStrip, int kTaps, int kPixel, class Meet>
__device__ __forceinline__ void slide(const RawPack<T, kPixel> (&window)[kStrip + kTaps - 1], Meet&& meet) {
#pragma unroll
  for (int j = 0; j < kStrip + kTaps - 1; ++j) {
    AccumulatorOf<T> pixel[kPixel];
    widen<T, kPixel>(pixel, window[j]);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        if (j >= k && j - k < kStrip) meet(j - k, k, v, pixel[v % kPixel]);
      }
    }
  }
}

// kPixel, kResult: neighbours that a thread loads and stores at once. With vectors of phases one of them is 1.
template <class T, int kPixel, int kResult>
class DepthwiseStripsConv {
  using Accum = AccumulatorOf<T>;
  static constexpr int kVector = kPixel > kResult ? kPixel : kResult;
  static constexpr bool kPhases = kPixel != kResult;
  static constexpr int kStrip = depthwise_strip(kPhases ? 1 : kVector);

 public:
  __device__ __forceinline__ DepthwiseStripsConv(const DepthwiseStripsParams<T>& params, unsigned char* shared)
      : p(params), weights(reinterpret_cast<Accum*>(shared)) {}

  __device__ __forceinline__ void run() {
    const DepthwiseStripsPlan& plan = p.plan;
    Digits thread(threadIdx.x), block(blockIdx.x);
    const int lane = thread.take(plan.by_lanes), first_slot = thread.take(plan.by_first_slots);
    const int second_slot = thread.take(plan.by_second_slots), channel_slot = thread.rest();
    const int inner = block.take(plan.by_blocks_inner);
    const int first = block.take(plan.by_blocks_first) * plan.first_slots + first_slot;
    int second = block.take(plan.by_blocks_second) * plan.rows * plan.second_slots + second_slot;
    const int phase = block.take(plan.by_block_phases), n = block.rest();
    bool exists = channel_slot < plan.channel_slots;
    if (plan.channels_inner) {
      const int of_line = (inner * plan.lanes + lane) * kVector;
      phases[0] = phase;
      phases[1] = p.by_channels.quotient(of_line);
      c = p.by_channels.remainder(of_line);
      exists = exists && phases[1] < p.axis[1].phases();
    } else {
      phases[0] = lane * kResult;
      phases[1] = phase;
      c = inner * plan.channel_slots + channel_slot;
      exists = exists && c < p.channels;
    }
    weight_pitch = plan.channel_slots * plan.lanes * kVector;
    weights += (channel_slot * plan.lanes + lane) * kVector;
    if (exists) stage_weights(second_slot * plan.first_slots + first_slot);
    __syncthreads();
    if (!exists) return;

    const T* source = p.source + n * p.source_stride.n;
    T* result = p.result + n * p.result_stride.n + c * p.result_stride.c;
    const int steps[] = {p.axis[0].result_step(), p.axis[1].result_step()};
    for (int r = 0; r < plan.rows; ++r, second += plan.second_slots) {
      const int q = plan.channels_inner ? second : first, first_q = (plan.channels_inner ? first : second) * kStrip;
      const int row = q * steps[0] + phases[0];
      if (row >= p.axis[0].result_size || first_q * steps[1] + phases[1] >= p.axis[1].result_size) break;
#pragma unroll
      for (int v = 0; v < kResult; ++v) {
        const Accum bias = p.bias != nullptr ? widen(p.bias[kPhases ? c : c + v]) : Accum(0);
#pragma unroll
        for (int i = 0; i < kStrip; ++i) sums[i][v] = bias;
      }
      for (int s = 0; s < p.sources(); ++s) {
        add_channel(source + p.source_channel(c, s) * p.source_stride.c, q, first_q,
                    weights + s * plan.tap_rows * plan.tap_columns * weight_pitch);
      }
      T* to = result + row * p.result_stride.h + (first_q * steps[1] + phases[1]) * p.result_stride.w;
#pragma unroll
      for (int i = 0; i < kStrip; ++i) {
        if ((first_q + i) * steps[1] + phases[1] >= p.axis[1].result_size) break;
        *reinterpret_cast<RawPack<T, kResult>*>(to) = narrow<T, kResult>(sums[i]);
        to += steps[1] * p.result_stride.w;
      }
    }
  }

 private:
  const DepthwiseStripsParams<T>& p;
  Accum* weights;  // shared: [sources][tap_rows][tap_columns][weight_pitch], at this thread's channels and phases
  int weight_pitch, c, phases[2];
  Accum sums[kStrip][kResult];

  // Rows of taps of a result row, source phases merged; for a vector of phases, of the first.
  __device__ __forceinline__ AxisTaps tap_rows() const {
    if (p.is_forward) return p.taps[0][phases[0]];
    constexpr int kRows = kPhases ? kPixel : 1;
    return {p.axis[0].kernel / kRows, 0, kRows, -p.axis[0].padding, kRows * p.axis[0].dilation};
  }

  __device__ __forceinline__ void stage_weights(int slot) {
    const AxisTaps th = tap_rows(), tw = p.is_forward ? p.taps[1][phases[1]] : AxisTaps{p.axis[1].kernel};
    const int taps = p.plan.tap_rows * p.plan.tap_columns, slots = p.plan.first_slots * p.plan.second_slots;
    for (int s = 0; s < p.sources(); ++s) {
      const T* weight[kVector];
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        weight[v] = kPhases ? p.weight(c, s) + v * p.other_stride.h : p.weight(c + v, s);
      }
      for (int e = slot; e < taps; e += slots) {
        const int i = p.plan.by_tap_columns.quotient(e), k = p.plan.by_tap_columns.remainder(e);
        const bool is_tap = i < th.count && k < tw.count;
        const int64_t offset = (th.first_tap + i * th.tap_step) * p.other_stride.h +
                               (tw.first_tap + k * tw.tap_step) * p.other_stride.w;
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          weights[(s * taps + e) * weight_pitch + v] = is_tap ? widen(weight[v][offset]) : Accum(0);
        }
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
        const AxisTaps& tw = p.taps[1][p.is_forward ? phases[1] : section];
        const int first_tap = p.is_forward ? 0 : tw.first_tap, tap_step = p.is_forward ? 1 : tw.tap_step;
        for (int k = 0; k < tw.count; k += p.plan.chunk[1]) {
          const int column = (first_q + tw.first_shift + k * tw.shift_step) * step + section;
          dispatch<kDepthwiseTapColumns>(min(p.plan.chunk[1], tw.count - k), [&](auto taps) {
            add_taps<taps.value>(pixels, column, step, weight_row + (first_tap + k * tap_step) * weight_pitch,
                                 tap_step * weight_pitch);
          });
        }
      }
    }
  }

  template <int kTaps>
  __device__ __forceinline__ void add_taps(const T* row, int column, int step, const Accum* weight, int tap_step) {
    RawPack<T, kPixel> pixels[kStrip + kTaps - 1];
    load_pixels<kPixel>(pixels, row, column, step, p.axis[1].source_size, p.source_stride.w);
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
    slide<T, kVector, kStrip, kTaps, kPixel>(
        pixels, [&](int i, int k, int v, Accum pixel) { sums[i][v % kResult] += pixel * taps[k][v]; });
  }
};

// A block has one chunk of taps and one split of the strips, for some pairs of channels (channels innermost), or for
// one pair and all source phases of the width. Its slots share the strips; their sums are added in a fixed order.
template <class T, int kVector>
class DepthwiseStripsWeight {
  using Accum = AccumulatorOf<T>;
  static constexpr int kStrip = depthwise_strip(kVector);
  using Vector = RawPack<T, kVector>;

 public:
  __device__ __forceinline__ explicit DepthwiseStripsWeight(const DepthwiseStripsParams<T>& params) : p(params) {}

  __device__ __forceinline__ void run(Accum* slot_sums) {
    const DepthwiseStripsPlan& plan = p.plan;
    Digits thread(threadIdx.x), block(blockIdx.x);
    const int lane = thread.take(plan.by_lanes), slot = thread.rest();
    const int pass_w = block.take(plan.by_passes[1]), pass_h = block.take(plan.by_passes[0]);
    const int inner = block.take(plan.by_blocks_inner), split = block.rest();
    const int pair = plan.channels_inner ? (inner * plan.lanes + lane) * kVector : inner;
    const int first_h = plan.by_chunks[0].remainder(pass_h) * plan.chunk[0];
    const int first_w = plan.by_chunks[1].remainder(pass_w) * plan.chunk[1];
    source_phase[0] = plan.channels_inner ? plan.by_chunks[0].quotient(pass_h) : lane;
    source_phase[1] = plan.by_chunks[1].quotient(pass_w);
    const AxisTaps &th = p.taps[0][source_phase[0]], &tw = p.taps[1][source_phase[1]];
    taps_h = min(plan.chunk[0], th.count - first_h);
    shift[0] = th.first_shift + first_h * th.shift_step;
    shift[1] = tw.first_shift + first_w * tw.shift_step;
    const int taps_w = min(plan.chunk[1], tw.count - first_w);
    if (taps_w <= 0) return;
    const bool exists = slot < plan.first_slots && pair < p.channels;
    if (exists && taps_h > 0) {
      const T* const input = p.other + p.pair_input(pair) * p.other_stride.c;
      const T* const grad = p.source + p.pair_output(pair) * p.source_stride.c;
      dispatch<kDepthwiseTapColumns>(taps_w, [&](auto columns) { add_units<columns.value>(input, grad, split, slot); });
    }

    int first_half = 1;
    while (2 * first_half < plan.first_slots) first_half *= 2;
#pragma unroll
    for (int e = 0; e < kDepthwiseTapRows * kDepthwiseTapColumns; ++e) {
      const int i = e / kDepthwiseTapColumns, k = e % kDepthwiseTapColumns;
      if (i >= plan.chunk[0] || k >= taps_w) continue;
      Accum(&sum)[kVector] = sums[i][k];
      Accum* const own = slot_sums + threadIdx.x * kVector;
#pragma unroll
      for (int v = 0; v < kVector; ++v) own[v] = sum[v];
      for (int half = first_half; half > 0; half /= 2) {
        __syncthreads();
        if (slot < half && slot + half < plan.first_slots) {
#pragma unroll
          for (int v = 0; v < kVector; ++v) own[v] = sum[v] += own[half * plan.lanes * kVector + v];
        }
      }
      __syncthreads();  // the last sums are read before the next tap's are written
      if (slot > 0 || !exists || i >= taps_h) continue;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        p.store_weight(split, pair + v, th.first_tap + (first_h + i) * th.tap_step,
                       tw.first_tap + (first_w + k) * tw.tap_step, sum[v]);
      }
    }
  }

 private:
  const DepthwiseStripsParams<T>& p;
  int source_phase[2], shift[2], taps_h;
  Accum sums[kDepthwiseTapRows][kDepthwiseTapColumns][kVector] = {};

  template <int kColumns>
  __device__ __forceinline__ void add_units(const T* input, const T* grad, int split, int slot) {
    const DepthwiseStripsPlan& plan = p.plan;
    const int begin = split * plan.units_per_split, end = begin + min(plan.units_per_split, plan.units - begin);
    for (int unit = begin + slot; unit < end; unit += plan.first_slots) {
      const int line = plan.by_first_units.quotient(unit), first = plan.by_first_units.remainder(unit);
      const int n = plan.by_second_units.quotient(line), second = plan.by_second_units.remainder(line);
      const int q = plan.channels_inner ? second : first, column = (plan.channels_inner ? first : second) * kStrip;
      Vector x[kStrip];
      load_pixels<kVector>(x, input + n * p.other_stride.n + q * p.other_stride.h, column, 1, p.axis[1].result_size,
                           p.other_stride.w);
      Accum wide_x[kStrip][kVector];
#pragma unroll
      for (int j = 0; j < kStrip; ++j) widen<T, kVector>(wide_x[j], x[j]);
      const int step = p.axis[1].stride, source_column = (column + shift[1]) * step + source_phase[1];
#pragma unroll
      for (int i = 0; i < kDepthwiseTapRows; ++i) {
        const int row = (q + shift[0] + i) * p.axis[0].stride + source_phase[0];
        if (i >= taps_h || row < 0 || row >= p.axis[0].source_size) continue;
        Vector y[kStrip + kColumns - 1];
        load_pixels<kVector>(y, grad + n * p.source_stride.n + row * p.source_stride.h, source_column, step,
                             p.axis[1].source_size, p.source_stride.w);
        slide<T, kVector, kStrip, kColumns, kVector>(
            y, [&](int j, int k, int v, Accum pixel) { sums[i][k][v] += pixel * wide_x[j][v]; });
      }
    }
  }
};

template <class T, int kPixel, int kResult>
__global__ void __launch_bounds__(kDepthwiseThreads, kPixel * sizeof(AccumulatorOf<T>) > 16 ? 2 : 3)
    depthwise_strips(const __grid_constant__ DepthwiseStripsParams<T> p) {
  extern __shared__ __align__(16) unsigned char shared[];
  DepthwiseStripsConv<T, kPixel, kResult>(p, shared).run();
}

template <class T, int kVector>
__global__ void __launch_bounds__(kDepthwiseThreads, 2)
    depthwise_strips_grad_weight(const __grid_constant__ DepthwiseStripsParams<T> p) {
  __shared__ AccumulatorOf<T> slot_sums[kDepthwiseThreads * kVector];
  DepthwiseStripsWeight<T, kVector>(p).run(slot_sums);
}

}  // namespace deconv
