// Direct family, forward and grad_input of few channels: sources straight from memory and its caches, weights from
// shared memory.
//
// A thread has kM result channels of one result column in kDirectRows rows of one phase of the height, one below the
// other, so that these share taps and weights. It walks over rows of taps and chunks of kDirectChannels source
// channels, and asks for all that up to four taps of a row read before it multiplies. Neighbouring threads have
// neighbouring columns; no source is staged, so no tile ends at the edges of an image. Where there are few results,
// `splits` threads share the rows and chunks of each, and the first of them adds their sums in order.
#pragma once

#include "../../direct_plan.h"
#include "../../taps.h"
#include "../primitives.cuh"

namespace deconv {

template <class T>
struct DirectConvParams {
  const T* source;  // (batch, source channels, source height, source width), any strides
  const T* weight;
  const T* bias;  // (result channels) or null
  T* result;  // (batch, result channels, result height, result width)
  int64_t source_n, source_c, source_h, source_w;  // strides in elements
  int64_t weight_m, weight_c, weight_h, weight_w;  // m: result channel, c: source channel, within a group
  int64_t weight_group;
  int64_t result_n, result_m, result_h, result_w;
  int batch;
  int source_channels;  // per group
  int result_channels;  // per group
  bool vector_source;  // source channels that a thread loads at once lie on their own boundary
  bool vector_result;  // so do its result channels
  AxisGeometry axis[2];
  AxisTaps taps[2][kDirectPhases];  // of each phase
  Divisor by_taps, by_kernel_w, by_source_channels;
  DirectConvPlan plan;
};

template <class T, int kM>
class DirectConvThread {
  using Accum = AccumulatorOf<T>;
  static constexpr int kRows = kDirectRows, kChannels = kDirectChannels;
  static constexpr int kTaps = sizeof(Accum) == 8 ? 2 : 4;  // whose sources a thread's registers hold

 public:
  __device__ __forceinline__ DirectConvThread(const DirectConvParams<T>& params, Accum* shared,
                                              const AxisTaps* taps_of_phases)
      : p(params), weights(shared), taps(taps_of_phases) {
    const int of_pixels = p.plan.by_blocks_m.quotient(static_cast<int>(blockIdx.x));
    first_m = p.plan.by_blocks_m.remainder(static_cast<int>(blockIdx.x)) * kM;
    group = p.plan.by_groups.remainder(of_pixels);
    place = static_cast<int>(threadIdx.x) & (p.plan.pixels - 1);
    split = static_cast<int>(threadIdx.x) * p.plan.splits / kDirectThreads;
    const int pixel = p.plan.by_groups.quotient(of_pixels) * p.plan.pixels + place;
    const int line = p.plan.by_width.quotient(pixel);
    column = p.plan.by_width.remainder(pixel);
    image = p.plan.by_row_units.quotient(line);
    const int unit = p.plan.by_row_units.remainder(line);
    phase_h = p.plan.by_row_phases.remainder(unit);
    first_q = p.plan.by_row_phases.quotient(unit) * kRows;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int m = 0; m < kM; ++m) acc[r][m] = Accum(0);
    }
  }

  // [tap][source channel][m], zeros for result channels that the group does not have.
  __device__ __forceinline__ void stage_weights() {
    const T* const from = p.weight + group * p.weight_group + first_m * p.weight_m;
    const int count = static_cast<int>(p.by_taps.divisor) * p.source_channels * kM;
    for (int e = static_cast<int>(threadIdx.x); e < count; e += kDirectThreads) {
      const int channels = p.by_taps.quotient(e), tap = p.by_taps.remainder(e);
      const int m = p.by_source_channels.quotient(channels), c = p.by_source_channels.remainder(channels);
      const int h = p.by_kernel_w.quotient(tap), w = p.by_kernel_w.remainder(tap);
      const bool exists = first_m + m < p.result_channels;
      const T* const at = from + m * p.weight_m + c * p.weight_c + h * p.weight_h + w * p.weight_w;
      weights[(tap * p.source_channels + c) * kM + m] = exists ? widen(*at) : Accum(0);
    }
  }

  __device__ __forceinline__ void multiply() {
    if (image >= p.batch) return;
    const AxisTaps h = taps[phase_h];
    for (int item = split; item < h.count * p.plan.chunks; item += p.plan.splits) {
      const int i = p.plan.by_chunks.quotient(item), chunk = p.plan.by_chunks.remainder(item);
      const int c = chunk * kChannels, rest = p.source_channels - c;
      if (rest >= kChannels) {
        multiply_row<kChannels>(h, i, c);
      } else {
        if (rest & 2) multiply_row<2>(h, i, c);
        if (rest & 1) multiply_row<1>(h, i, c + (rest & 2));
      }
    }
  }

  // After all threads have multiplied.
  __device__ __forceinline__ void add_splits(Accum* sums) {
    const int pixels = p.plan.pixels;
    if (split > 0) {
      Accum* const to = sums + (split - 1) * kRows * kM * pixels + place;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int m = 0; m < kM; ++m) to[(r * kM + m) * pixels] = acc[r][m];
      }
    }
    __syncthreads();
    if (split > 0) return;
    for (int s = 1; s < p.plan.splits; ++s, sums += kRows * kM * pixels) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int m = 0; m < kM; ++m) acc[r][m] += sums[(r * kM + m) * pixels + place];
      }
    }
  }

  __device__ __forceinline__ void store() const {
    if (split > 0 || image >= p.batch) return;
    const int64_t channel = int64_t{group} * p.result_channels + first_m;
    T* const at = p.result + image * p.result_n + channel * p.result_m + column * p.result_w;
    const int channels = min(kM, p.result_channels - first_m);
    Accum bias[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) bias[m] = p.bias != nullptr && m < channels ? widen(p.bias[channel + m]) : Accum(0);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = (first_q + r) * p.axis[0].result_step() + phase_h;
      if (row >= p.axis[0].result_size) break;
      T* const to = at + row * p.result_h;
      if (p.vector_result) {
        constexpr int kPack = kM < kPackSize<T> ? kM : kPackSize<T>;
#pragma unroll
        for (int i = 0; i < kM; i += kPack) {
          Pack<T, kPack> pack;
#pragma unroll
          for (int k = 0; k < kPack; ++k) pack.value[k] = narrow<T>(acc[r][i + k] + bias[i + k]);
          if (i < channels) *reinterpret_cast<Pack<T, kPack>*>(to + i) = pack;
        }
      } else {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          if (m < channels) to[m * p.result_m] = narrow<T>(acc[r][m] + bias[m]);
        }
      }
    }
  }

 private:
  const DirectConvParams<T>& p;
  Accum* weights;  // shared: [tap][source channel][kM]
  const AxisTaps* taps;  // shared: [height, width][phase]
  int group, first_m, image, phase_h;
  int first_q;  // of the phase: the first row
  int column, place, split;
  Accum acc[kRows][kM];

  // A row of taps, of source channels from c on.
  template <int kCount>
  __device__ __forceinline__ void multiply_row(const AxisTaps& h, int i, int c) {
    const AxisTaps w = taps[kDirectPhases + p.plan.by_column_phases.remainder(column)];
    const T* const source = p.source + image * p.source_n + (int64_t{group} * p.source_channels + c) * p.source_c;
    const T* from[kRows];
    bool is_row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = (first_q + r) * p.axis[0].source_step() + h.first_shift + i * h.shift_step;
      is_row[r] = static_cast<unsigned>(row) < static_cast<unsigned>(p.axis[0].source_size);
      from[r] = source + (is_row[r] ? row * static_cast<int>(p.source_h) : 0);
    }
    const Accum* weight = weights +
                          (((h.first_tap + i * h.tap_step) * p.axis[1].kernel + w.first_tap) * p.source_channels + c) *
                              kM;
    int at = p.plan.by_column_phases.quotient(column) * p.axis[1].source_step() + w.first_shift;
    const int tap_step = w.tap_step * p.source_channels * kM;
    int j = 0;
    for (; j + kTaps <= w.count; j += kTaps) {
      multiply_taps<kCount, kTaps>(from, is_row, at + j * w.shift_step, w.shift_step, weight + j * tap_step, tap_step);
    }
    const int rest = w.count - j;
    if (kTaps > 2 && (rest & 2)) {
      multiply_taps<kCount, 2>(from, is_row, at + j * w.shift_step, w.shift_step, weight + j * tap_step, tap_step);
      j += 2;
    }
    if (rest & 1) {
      multiply_taps<kCount, 1>(from, is_row, at + j * w.shift_step, w.shift_step, weight + j * tap_step, tap_step);
    }
  }

  // Taps side by side, the first at source column `at`: all loads, then the products.
  template <int kCount, int kTaps>
  __device__ __forceinline__ void multiply_taps(const T* const (&from)[kRows], const bool (&is_row)[kRows], int at,
                                                int shift_step, const Accum* weight, int tap_step) {
    Accum x[kTaps][kRows][kCount];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const int column = at + t * shift_step;
      const bool is_column = static_cast<unsigned>(column) < static_cast<unsigned>(p.axis[1].source_size);
      const int offset = is_column ? column * static_cast<int>(p.source_w) : 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) load_channels<kCount>(x[t][r], from[r] + offset, is_row[r] && is_column);
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        constexpr int kPack = kM < kPackSize<Accum> ? kM : kPackSize<Accum>;
#pragma unroll
        for (int m = 0; m < kM; m += kPack) {
          const auto pack = *reinterpret_cast<const Pack<Accum, kPack>*>(weight + t * tap_step + c * kM + m);
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) acc[r][m + k] += pack.value[k] * x[t][r][c];
          }
        }
      }
    }
  }

  // pixel: in the image, whether or not it is the one wanted.
  template <int kCount>
  __device__ __forceinline__ void load_channels(Accum (&x)[kCount], const T* pixel, bool exists) const {
    Pack<T, kCount * sizeof(T) <= 16 ? kCount : 1> pack;
    if (kCount == kChannels && sizeof(pack) == kCount * sizeof(T) && p.vector_source) {
      pack = *reinterpret_cast<const decltype(pack)*>(pixel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = exists ? widen(pack.value[i]) : Accum(0);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const T value = pixel[i * static_cast<int>(p.source_c)];
        x[i] = exists ? widen(value) : Accum(0);
      }
    }
  }
};

template <class T, int kM>
__global__ void __launch_bounds__(kDirectThreads, 3)
    direct_conv_kernel(const __grid_constant__ DirectConvParams<T> params) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ AxisTaps taps[2 * kDirectPhases];
  auto* const accums = reinterpret_cast<AccumulatorOf<T>*>(shared);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kDirectPhases; i += kDirectThreads) {
    taps[i] = params.taps[i / kDirectPhases][i % kDirectPhases];
  }
  DirectConvThread<T, kM> thread(params, accums, taps);
  thread.stage_weights();
  __syncthreads();
  thread.multiply();
  if (params.plan.splits > 1) {
    __syncthreads();  // the weights have been read
    thread.add_splits(accums);
  }
  thread.store();
}

}  // namespace deconv
