// simt, forward and grad_input: every problem, every dtype, without tensor cores.
//
//   result[n, m, q] = bias[m] + sum over c, taps of  source[n, c, q + shift] * w        for one phase of the result
//
//   block    one phase (core/taps.h), kThreadM * warps_m channels m, units_h units below each other in units_n images
//   unit     kThreadRows rows x kLaneColumns pixels
//   warp     channels m, units;   lane   a column of a unit (and a unit, where units are narrower than a warp)
//   thread   kThreadM channels x kThreadRows pixels of a unit's column, in registers
//
// Source channels pass through shared memory in k_blocks: the tile with the halo of a group of taps, and the group's
// weights, widened to the accumulator's type. Every tap reads the tile at a shift; up to three taps below each other
// share rows in registers. Source offsets are found once a tap group.
#pragma once

#include "core/taps.h"
#include "device/primitives.cuh"
#include "families/simt/plan.h"

namespace deconv {

template <class T>
struct SimtConvParams {
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
  AxisGeometry axis[2];
  SimtConvPlan plan;
};

template <class T, int kColumns>
struct SimtConvConfig {
  using Element = T;
  using Accum = AccumulatorOf<T>;
  static constexpr int kLaneColumns = kColumns;
  static constexpr int kThreads = kSimtThreads;
  static constexpr int kThreadM = simt_thread_m(sizeof(Accum));
  static constexpr int kThreadRows = kSimtThreadRows;
  static constexpr int kPitch = simt_pitch(kColumns);
  static constexpr int kWarps = kThreads / 32;
  static_assert(kColumns == 8 || kColumns == 16 || kColumns == 32, "a unit column is one lane");
  static_assert(kThreadM * sizeof(T) % 4 == 0, "a thread's channels store as packs");
};

// The taps of one phase and source phase that are staged at once.
struct TapGroup {
  int count_h, count_w;  // taps
  int first_tap_h, first_tap_w;
  int tap_step_h, tap_step_w;
  int shift_h, shift_w;  // of the first tap
  int shift_step_h, shift_step_w;
  int plane_h, plane_w;
};

template <class Config>
class SimtConvBlock {
  using T = typename Config::Element;
  using Accum = typename Config::Accum;
  static constexpr int kM = Config::kThreadM;
  static constexpr int kRows = Config::kThreadRows;
  static constexpr int kPitch = Config::kPitch;
  static constexpr int kKnownPlanes = kSimtKnownPlanes;

 public:
  __device__ __forceinline__ SimtConvBlock(const SimtConvParams<T>& params, unsigned char* shared) : p(params) {
    offsets = reinterpret_cast<int64_t*>(shared);
    weights = reinterpret_cast<Accum*>(shared + p.plan.weights_at);
    tile = reinterpret_cast<Accum*>(shared + p.plan.tile_at);
    known_taps = reinterpret_cast<AxisTaps*>(shared + p.plan.taps_at);
    locate();
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) acc[i][r] = Accum(0);
    }
  }

  __device__ __forceinline__ bool has_work() const { return tile_h < p.axis[0].phase_size(phase_h); }

  __device__ __forceinline__ void run() {
    if (!row_has_taps()) {
      if (phase_w == 0) fill_rows();
      return;
    }
    remember_taps();
    // Channels outermost: source phases of grad_output share sectors, which the caches then still hold.
    for (int c = 0; c < p.source_channels; c += p.plan.chunk) {
      for (int plane_h = 0; plane_h < p.axis[0].planes(); ++plane_h) {
        const AxisTaps h = taps_of(0, plane_h);
        if (h.count == 0) continue;
        for (int plane_w = 0; plane_w < p.axis[1].planes(); ++plane_w) {
          accumulate_plane(c, h, taps_of(1, plane_w), plane_h, plane_w);
        }
      }
    }
    store();
  }

 private:
  const SimtConvParams<T>& p;
  int64_t* offsets;  // shared: source offset of each tile position, -1 outside the image
  Accum* weights;  // shared: [chunk][taps of the group][m, padded]
  Accum* tile;  // shared: [chunk][units_n images][halo rows][kPitch]
  AxisTaps* known_taps;  // shared: [height, width][kKnownPlanes]
  int group, phase_h, phase_w;
  int tile_n, tile_h, tile_w, tile_m;  // first image, phase row, phase column, channel of the block
  int unit_n, unit_row, column, thread_m;  // this thread's place in the tile
  Accum acc[kM][kRows];

  __device__ __forceinline__ void locate() {
    unsigned block = blockIdx.x;
    const auto take = [&block](int count) {
      const int index = static_cast<int>(block % count);
      block /= count;
      return index;
    };
    phase_w = take(p.axis[1].phases());
    phase_h = take(p.axis[0].phases());
    tile_m = take(p.plan.blocks_m) * kM * p.plan.warps_m;
    tile_w = take(p.plan.blocks_w) * Config::kLaneColumns;
    tile_h = take(p.plan.blocks_h) * kRows * p.plan.units_h;
    tile_n = take(p.plan.blocks_n) * p.plan.units_n;
    group = static_cast<int>(block);

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int unit = warp / p.plan.warps_m * (32 / Config::kLaneColumns) + lane / Config::kLaneColumns;
    column = lane % Config::kLaneColumns;
    thread_m = warp % p.plan.warps_m * kM;
    unit_n = unit / p.plan.units_h;
    unit_row = unit % p.plan.units_h * kRows;
  }

  // Every k_block walks over the source phases again, so the taps of the first ones are computed once.
  __device__ __forceinline__ void remember_taps() {
    for (int i = threadIdx.x; i < 2 * kKnownPlanes; i += Config::kThreads) {
      const int a = i / kKnownPlanes, plane = i % kKnownPlanes;
      if (plane < p.axis[a].planes()) known_taps[i] = axis_taps(p.axis[a], a == 0 ? phase_h : phase_w, plane);
    }
    __syncthreads();
  }

  __device__ __forceinline__ AxisTaps taps_of(int axis, int plane) const {
    if (plane < kKnownPlanes) return known_taps[axis * kKnownPlanes + plane];
    return axis_taps(p.axis[axis], axis == 0 ? phase_h : phase_w, plane);
  }

  __device__ __forceinline__ bool row_has_taps() const {
    bool any = false;
    for (int plane = 0; plane < p.axis[0].planes(); ++plane) any |= axis_taps(p.axis[0], phase_h, plane).count > 0;
    return any;
  }

  __device__ __forceinline__ void accumulate_plane(int c, const AxisTaps& h, const AxisTaps& w, int plane_h,
                                                   int plane_w) {
    for (int i = 0; i < h.count; i += p.plan.taps_h) {
      for (int j = 0; j < w.count; j += p.plan.taps_w) {
        const TapGroup taps{min(p.plan.taps_h, h.count - i),
                            min(p.plan.taps_w, w.count - j),
                            h.first_tap + i * h.tap_step,
                            w.first_tap + j * w.tap_step,
                            h.tap_step,
                            w.tap_step,
                            h.first_shift + i * h.shift_step,
                            w.first_shift + j * w.shift_step,
                            h.shift_step,
                            w.shift_step,
                            plane_h,
                            plane_w};
        const bool only_group = p.axis[0].planes() * p.axis[1].planes() == 1 && taps.count_h == h.count &&
                                taps.count_w == w.count;
        __syncthreads();  // the previous stage's readers are done
        if (c == 0 || !only_group) {
          find_offsets(taps);
          __syncthreads();
        }
        accumulate(c, taps);
      }
    }
  }

  __device__ __forceinline__ void accumulate(int c, const TapGroup& taps) {
    const int channels = min(p.plan.chunk, p.source_channels - c);
    const int64_t channel = static_cast<int64_t>(group) * p.source_channels + c;
    if (p.plan.vector_source) {
      stage_source_packs(p.source + channel, channels);
    } else {
      stage_source(p.source + channel * p.source_c, channels);
    }
    stage_weights(p.weight + group * p.weight_group + c * p.weight_c, channels, taps);
    __syncthreads();
    multiply(channels, taps);
  }

  __device__ __forceinline__ void find_offsets(const TapGroup& taps) {
    const int rows = p.plan.units_h * kRows + (taps.count_h - 1) * taps.shift_step_h;
    const int columns = Config::kLaneColumns + (taps.count_w - 1) * taps.shift_step_w;
    const SmallDivisor by_image(p.plan.image_pitch);
    for (int e = threadIdx.x; e < p.plan.positions; e += Config::kThreads) {
      const int n = by_image.quotient(e), in_image = e - n * p.plan.image_pitch;
      const int row = in_image / kPitch, col = in_image - row * kPitch;
      const int h = (tile_h + row + taps.shift_h) * p.axis[0].source_step() + taps.plane_h;
      const int w = (tile_w + col + taps.shift_w) * p.axis[1].source_step() + taps.plane_w;
      const bool inside = row < rows && col < columns && tile_n + n < p.batch && h >= 0 && h < p.axis[0].source_size &&
                          w >= 0 && w < p.axis[1].source_size;
      offsets[e] = inside ? (tile_n + n) * p.source_n + h * p.source_h + w * p.source_w : -1;
    }
  }

  __device__ __forceinline__ void stage_source(const T* source, int channels) {
    for (int e = threadIdx.x; e < p.plan.positions; e += Config::kThreads) {
      const int64_t offset = offsets[e];
      copy_channels(offset >= 0, source + offset, p.source_c, tile + e, p.plan.channel_pitch, channels);
    }
  }

  // Channels are adjacent (channels_last); the plan proved the alignment.
  __device__ __forceinline__ void stage_source_packs(const T* source, int channels) {
    constexpr int kPack = kPackSize<T>;
    for (int e = threadIdx.x; e < p.plan.positions; e += Config::kThreads) {
      const int64_t offset = offsets[e];
      for (int c = 0; c < channels; c += kPack) {
        Pack<T, kPack> pack{};
        if (offset >= 0) pack = *reinterpret_cast<const Pack<T, kPack>*>(source + offset + c);
#pragma unroll
        for (int i = 0; i < kPack; ++i) tile[(c + i) * p.plan.channel_pitch + e] = widen(pack.value[i]);
      }
    }
  }

  __device__ __forceinline__ void stage_weights(const T* weight, int channels, const TapGroup& taps) {
    const SmallDivisor by_taps(taps.count_h * taps.count_w), by_width(taps.count_w);
    const int block_m = kM * p.plan.warps_m;
    for (int e = threadIdx.x; e < block_m * static_cast<int>(by_taps.divisor()); e += Config::kThreads) {
      const int m = by_taps.quotient(e), tap = e - m * by_taps.divisor();
      const int i = by_width.quotient(tap), j = tap - i * by_width.divisor();
      const bool inside = tile_m + m < p.result_channels;
      const T* from = weight + (tile_m + m) * p.weight_m + (taps.first_tap_h + i * taps.tap_step_h) * p.weight_h +
                      (taps.first_tap_w + j * taps.tap_step_w) * p.weight_w;
      copy_channels(inside, from, p.weight_c, weights + tap * p.plan.weight_pitch + m,
                    by_taps.divisor() * p.plan.weight_pitch, channels);
    }
  }

  // One element of each staged channel, widened; zeros where `inside` is false.
  __device__ __forceinline__ static void copy_channels(bool inside, const T* from, int64_t from_step, Accum* to,
                                                       int to_step, int channels) {
    constexpr int kBatch = 8;  // loads in flight before the first use
    for (int c = 0; c < channels; c += kBatch) {
      T value[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        value[i] = inside && c + i < channels ? *from : T{};
        from += from_step;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (c + i < channels) *to = widen(value[i]);
        to += to_step;
      }
    }
  }

  __device__ __forceinline__ void multiply(int channels, const TapGroup& taps) {
    int i = 0;
    if (taps.shift_step_h == 1) {
      for (; taps.count_h - i >= 3 && taps.count_h - i != 4; i += 3) multiply_group<3>(i, channels, taps);
      for (; taps.count_h - i >= 2; i += 2) multiply_group<2>(i, channels, taps);
    }
    for (; i < taps.count_h; ++i) multiply_group<1>(i, channels, taps);
  }

  // Tap rows i .. i + kTaps - 1: all their columns, all staged channels.
  template <int kTaps>
  __device__ __forceinline__ void multiply_group(int i, int channels, const TapGroup& taps) {
    const int weight_row = taps.count_w * p.plan.weight_pitch;
    const int weight_channel = taps.count_h * weight_row;
    const Accum* x = tile + unit_n * p.plan.image_pitch + (unit_row + i * taps.shift_step_h) * kPitch + column;
    const Accum* w = weights + i * weight_row + thread_m;
    for (int c = 0; c < channels; ++c) {
      const Accum* xj = x;
      const Accum* wj = w;
      for (int j = 0; j < taps.count_w; ++j) {
        multiply_rows<kTaps>(xj, wj, weight_row);
        xj += taps.shift_step_w;
        wj += p.plan.weight_pitch;
      }
      x += p.plan.channel_pitch;
      w += weight_channel;
    }
  }

  // kTaps taps below each other share the source rows in registers.
  template <int kTaps>
  __device__ __forceinline__ void multiply_rows(const Accum* x, const Accum* w, int weight_row) {
    Accum rows[kRows + kTaps - 1];
#pragma unroll
    for (int r = 0; r < kRows + kTaps - 1; ++r) rows[r] = x[r * kPitch];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      constexpr int kPack = kPackSize<Accum>;
#pragma unroll
      for (int i = 0; i < kM; i += kPack) {
        const auto pack = *reinterpret_cast<const Pack<Accum, kPack>*>(w + t * weight_row + i);
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) acc[i + k][r] += pack.value[k] * rows[r + t];
        }
      }
    }
  }

  // Rows that no tap reaches hold the bias in every column, so one block stores them for all phases of the width.
  __device__ __forceinline__ void fill_rows() {
    const int step_w = p.axis[1].result_step();
    const int first_w = tile_w * step_w, last_w = min(first_w + Config::kLaneColumns * step_w, p.axis[1].result_size);
    const int channels = min(kM * p.plan.warps_m, p.result_channels - tile_m);
    const bool channels_innermost = p.result_m == 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int n = tile_n; n < min(tile_n + p.plan.units_n, p.batch); ++n) {
      for (int r = 0; r < kRows * p.plan.units_h; ++r) {
        const int h = (tile_h + r) * p.axis[0].result_step() + phase_h;
        if (h >= p.axis[0].result_size) break;
        T* row = p.result + n * p.result_n + h * p.result_h;
        for (int a = warp; a < (channels_innermost ? last_w - first_w : channels); a += Config::kWarps) {
          for (int b = lane; b < (channels_innermost ? channels : last_w - first_w); b += 32) {
            const int m = group * p.result_channels + tile_m + (channels_innermost ? b : a);
            const int w = first_w + (channels_innermost ? a : b);
            row[m * p.result_m + w * p.result_w] = p.bias != nullptr ? p.bias[m] : T{};
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store() {
    const int n = tile_n + unit_n, q_w = tile_w + column, m = tile_m + thread_m;
    if (n >= p.batch || q_w >= p.axis[1].phase_size(phase_w)) return;
    const int valid_m = min(kM, p.result_channels - m);
    const int64_t channel = static_cast<int64_t>(group) * p.result_channels + m;
    T* at = p.result + n * p.result_n + channel * p.result_m +
            static_cast<int64_t>(q_w * p.axis[1].result_step() + phase_w) * p.result_w;
    Accum bias[kM];
#pragma unroll
    for (int i = 0; i < kM; ++i) bias[i] = p.bias != nullptr && i < valid_m ? widen(p.bias[channel + i]) : Accum(0);
    const int rows = p.axis[0].phase_size(phase_h);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int q_h = tile_h + unit_row + r;
      if (q_h >= rows) break;
      T* row = at + static_cast<int64_t>(q_h * p.axis[0].result_step() + phase_h) * p.result_h;
      if (p.plan.vector_result) {
        constexpr int kPack = kM < kPackSize<T> ? kM : kPackSize<T>;
#pragma unroll
        for (int i = 0; i < kM; i += kPack) {
          Pack<T, kPack> pack;
#pragma unroll
          for (int k = 0; k < kPack; ++k) pack.value[k] = narrow<T>(acc[i + k][r] + bias[i + k]);
          if (i < valid_m) *reinterpret_cast<Pack<T, kPack>*>(row + i) = pack;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          if (i < valid_m) row[i * p.result_m] = narrow<T>(acc[i][r] + bias[i]);
        }
      }
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 2)
    simt_conv_kernel(const __grid_constant__ SimtConvParams<typename Config::Element> params) {
  extern __shared__ __align__(16) unsigned char shared[];
  SimtConvBlock<Config> block(params, shared);
  if (block.has_work()) block.run();
}

}  // namespace deconv
