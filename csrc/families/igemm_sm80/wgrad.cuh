// igemm_sm80, grad_weight: mma.sync, from compute capability 8.0 on.
//
//   gw[m, n, kh, kw] = sum over images and pixels i of  x[m, i] * gy[n, i * s - p + k * d]
//
//   M = input channels    operand A   a warp has 16 * kRows of them
//   N = output channels   operand B   a warp has kUnits units: 16 output channels of one tap each
//   K = pixels            a step: any tile of images x rows x columns
//
// In shared memory a pixel is a row of channels, for all layouts, strides and dilations. A block stages the grad_output
// pixels of all its taps once; along each axis lines that are a stride apart are adjacent (WgradSm80Tap). So adjacent
// pixels are adjacent rows for every tap, and a tap is an offset. Each lane names the rows of its fragments.
//
// Splits of the steps write partial sums; lowerings/split_k_reduce.cuh adds them in order: same bits in every run.
#pragma once

#include "families/igemm_sm80/load_wgrad.cuh"
#include "families/igemm_sm80/tf32x3.cuh"

namespace deconv::sm80 {

template <class T, int kRows_, int kUnits_, bool kSplit_>
struct WeightConfig {
  using Element = T;
  static constexpr int kRows = kRows_;
  static constexpr int kUnits = kUnits_;
  static constexpr bool kSplit = kSplit_;  // tf32x3
  static constexpr int kThreads = 32 * wgrad_sm80_warps({kRows, kUnits}, kSplit);
  static_assert(!kSplit || sizeof(T) == 4, "only float32 is split");
  static_assert(kRows % 2 == 0, "two rows of matrices share 32 channels");
};

// A block's work: a tile of channels and a group of taps, over a range of steps.
struct WeightTile {
  int group, m, n;  // first channels within the group
  int first_h, first_w, count_h, count_w;  // taps along each axis, in the order of the tables
  int split, begin, end;  // steps
};
template <class T>
__device__ __forceinline__ WeightTile find_weight_tile(const WeightParams<T>& p) {
  const WgradSm80Plan& plan = p.plan;
  unsigned rest = blockIdx.x;
  const auto take = [&](unsigned count) {
    const unsigned quotient = rest / count, digit = rest - quotient * count;
    rest = quotient;
    return static_cast<int>(digit);
  };
  WeightTile tile;
  tile.first_w = take(plan.groups_w) * plan.taps_w;
  tile.first_h = take(plan.groups_h) * plan.taps_h;
  tile.count_w = min(plan.taps_w, p.kernel_w - tile.first_w);
  tile.count_h = min(plan.taps_h, p.kernel_h - tile.first_h);
  tile.n = take(plan.blocks_n) * plan.channels_n();
  tile.m = take(plan.blocks_m) * plan.channels_m();
  tile.group = take(p.groups);
  tile.split = static_cast<int>(rest);
  const int64_t begin = tile.split * plan.steps_per_split;
  tile.begin = static_cast<int>(begin);
  tile.end = static_cast<int>(min(begin + plan.steps_per_split, plan.steps));
  return tile;
}

template <class Config>
class WeightBlock {
  using T = typename Config::Element;
  static constexpr int kRows = Config::kRows, kUnits = Config::kUnits, kColumns = 2 * kUnits;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPixels = kStepBytes / kSize;  // of one product

 public:
  __device__ __forceinline__ WeightBlock(const WeightParams<T>& params, unsigned char* shared)
      : p(params),
        plan(params.plan),
        tile_(find_weight_tile(params)),
        lines_h_(p.taps[0][tile_.first_h + tile_.count_h - 1].line + plan.pixels.h),
        lines_w_(p.taps[1][tile_.first_w + tile_.count_w - 1].line + plan.pixels.w),
        x_(p.x, plan, p.batch, tile_.group, tile_.m, plan.channels_m(), plan.x_pitch, plan.step_pixels,
           plan.pixels.h * plan.pixels.w, reinterpret_cast<Place*>(shared + plan.x_places_at)),
        y_(p.y, plan, p.batch, tile_.group, tile_.n, plan.channels_n(), plan.y_pitch, plan.pixels.n * image_lines(),
           image_lines(), reinterpret_cast<Place*>(shared + plan.y_places_at)),
        shared_(shared_address(shared)) {
    fill_tables(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row_ = warp % plan.warps_m * kRows;
    unit_ = warp / plan.warps_m * kUnits;
    units_ = tile_.count_h * tile_.count_w * plan.chunks_n;
    // What a lane reads of a product's pixels. 16-bit: the address of a row for ldmatrix. float32: adjacent channels of
    // pixels t and t + 4 (t: lane % 4).
    x_lane_ = kSize == 2 ? (lane / 16 * 8 + lane % 8) * plan.x_pitch + row_ * 32 + lane / 8 % 2 * 16
                         : lane % 4 * plan.x_pitch + row_ * 64 + lane / 4 * 16;
    rows_lane_ = plan.rows_at + (kSize == 2 ? lane % 16 : lane % 4) * 4;
    const int y_lane = kSize == 2 ? lane / 16 * 16 : lane / 4 * 8;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const Unit unit = find_unit(min(unit_ + u, units_ - 1));  // those past the last compute sums that nobody stores
      const int rows = p.taps[0][tile_.first_h + unit.tap_h].line * lines_w_ +
                       p.taps[1][tile_.first_w + unit.tap_w].line;
      y_lane_[u] = plan.y_at + rows * plan.y_pitch + unit.chunk * 16 * kSize + y_lane;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sums_[i][j][e] = 0;
      }
    }
  }

  __device__ __forceinline__ void run() {
    __syncthreads();  // the tables are complete
    uint32_t slot = shared_, next = shared_ + plan.slot_bytes;
    const WeightStep first = find_step(p, tile_.begin);
    copy(first, slot);
    load_units(0, loaded_units(), first, slot);
    for (int step = tile_.begin; step < tile_.end; ++step) {
      copy_wait_all();
      __syncthreads();  // this step has landed, the one before is read
      const bool more = step + 1 < tile_.end;
      const WeightStep ahead = find_step(p, step + 1);
      if (more) copy(ahead, next);
      multiply_and_load(slot, ahead, next, more ? loaded_units() : 0);
      const uint32_t used = slot;
      slot = next;
      next = used;
    }
    store();
  }

 private:
  // A unit's tap within the group of taps along each axis, and its 16 channels n.
  struct Unit {
    int tap_h, tap_w, chunk;
  };
  __device__ __forceinline__ Unit find_unit(int unit) const {
    const int tap = unit / plan.chunks_n, h = tap / tile_.count_w;
    return {h, tap - h * tile_.count_w, unit - tap * plan.chunks_n};
  }
  __device__ __forceinline__ int image_lines() const { return lines_h_ * lines_w_; }

  // The line of grad_output that a staged line holds, for pixel 0.
  __device__ __forceinline__ static int reach_of(const WgradSm80Tap* taps, int count, int line, int stride) {
    int i = count - 1;
    while (taps[i].segment > line) --i;
    return taps[i].reach + (line - taps[i].segment) * stride;
  }

  // Finds the places of both operands' staged pixels, and the staged row that the first tap reads at each pixel.
  __device__ __forceinline__ void fill_tables(unsigned char* shared) const {
    const int width = plan.pixels.w, image_pixels = plan.pixels.h * width, pixels = plan.pixels.n * image_pixels;
    auto* const x_places = reinterpret_cast<Place*>(shared + plan.x_places_at);
    auto* const rows = reinterpret_cast<int*>(shared + plan.rows_at);
    for (int i = threadIdx.x; i < plan.step_pixels; i += blockDim.x) {
      const int image = i / image_pixels, pixel = i - image * image_pixels, h = pixel / width, w = pixel - h * width;
      x_places[i] = {image * p.x.n + h * p.x.h + w * p.x.w, h, w};
      rows[i] = i < pixels ? ((image * lines_h_ + h) * lines_w_ + w) * plan.y_pitch : 0;
    }
    auto* const y_places = reinterpret_cast<Place*>(shared + plan.y_places_at);
    for (int i = threadIdx.x; i < plan.pixels.n * image_lines(); i += blockDim.x) {
      const int image = i / image_lines(), rest = i - image * image_lines(), line = rest / lines_w_;
      const int h = reach_of(p.taps[0] + tile_.first_h, tile_.count_h, line, p.y.step_h);
      const int w = reach_of(p.taps[1] + tile_.first_w, tile_.count_w, rest - line * lines_w_, p.y.step_w);
      y_places[i] = {image * p.y.n + h * p.y.h + w * p.y.w, h, w};
    }
  }

  __device__ __forceinline__ void copy(const WeightStep& step, uint32_t slot) const {
    x_.copy(step, slot);
    y_.copy(step, slot + plan.y_at);
  }

  // Through registers: units begin + thread, begin + thread + threads, ... below end, first of the input.
  using Loaded = typename WeightSource<T>::Unit;
  __device__ __forceinline__ int loaded_units() const { return x_.units() + y_.units(); }
  __device__ __forceinline__ Loaded load_unit(int index, const WeightStep& step, uint32_t slot) const {
    const int of_x = x_.units();
    return index < of_x ? x_.load(index, step, slot) : y_.load(index - of_x, step, slot + plan.y_at);
  }
  __device__ __forceinline__ void load_units(int begin, int end, const WeightStep& step, uint32_t slot) const {
    if constexpr (kSize == 2) {
      for (int i = begin + threadIdx.x; i < end; i += blockDim.x) {
        WeightSource<T>::store(load_unit(i, step, slot));
      }
    }
  }

  // Multiplies a step and loads the units of the next; a share's first loads are in flight while tensor cores work.
  __device__ __forceinline__ void multiply_and_load(uint32_t slot, const WeightStep& ahead, uint32_t next, int units) {
    const int products = plan.step_pixels / kPixels, threads = blockDim.x;
    const int share = units == 0 ? 0 : (units + products * threads - 1) / (products * threads) * threads;
    const bool works = unit_ < units_;
    uint32_t x = slot + x_lane_;
#pragma unroll 1
    for (int k = 0; k < products; ++k, x += kPixels * plan.x_pitch) {
      if constexpr (kSize == 2) {
        if (share > 0) {
          const int end = min((k + 1) * share, units), index = k * share + threadIdx.x;
          Loaded unit;
          if (index < end) unit = load_unit(index, ahead, next);
          if (works) multiply(slot, x, k);
          if (index < end) WeightSource<T>::store(unit);
          load_units(k * share + threads, end, ahead, next);
          continue;
        }
      }
      if (works) multiply(slot, x, k);
    }
  }

  // Bytes from a slot's first row of grad_output to the row of a product's pixel.
  __device__ __forceinline__ uint32_t row_of(int k, int pixel) const {
    return load_shared(shared_ + rows_lane_ + (k * kPixels + pixel) * 4);
  }

  // One product of all rows and units: kPixels pixels.
  __device__ __forceinline__ void multiply(uint32_t slot, uint32_t x, int k) {
    if constexpr (kSize == 2) {
      const uint32_t y = slot + row_of(k, 0);
      uint4 a[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        uint32_t v[4];
        load_transposed_matrices(v, x + i * 32);
        a[i] = make_uint4(v[0], v[1], v[2], v[3]);
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        uint32_t b[4];
        load_transposed_matrices(b, y + y_lane_[u]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          multiply_add<T>(sums_[i][2 * u], a[i], b[0], b[1]);
          multiply_add<T>(sums_[i][2 * u + 1], a[i], b[2], b[3]);
        }
      }
    } else {
      const uint32_t y = slot + row_of(k, 0), y4 = slot + row_of(k, 4);
      uint32_t b[kColumns][2];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const uint2 v = load_shared_8(y + y_lane_[u]), v4 = load_shared_8(y4 + y_lane_[u]);
        b[2 * u][0] = v.x, b[2 * u][1] = v4.x, b[2 * u + 1][0] = v.y, b[2 * u + 1][1] = v4.y;
      }
      if constexpr (Config::kSplit) {
        multiply_float(
            x, [&, low_b = LowParts<kColumns>(b)](int i, uint4 a) { multiply_add_split<2>(sums_[i], a, b, low_b); });
      } else {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) b[j][0] = round_to_tf32(b[j][0]), b[j][1] = round_to_tf32(b[j][1]);
        multiply_float(x, [&](int i, uint4 a) {
          a = make_uint4(round_to_tf32(a.x), round_to_tf32(a.y), round_to_tf32(a.z), round_to_tf32(a.w));
#pragma unroll
          for (int j = 0; j < kColumns; ++j) multiply_add<T>(sums_[i][j], a, b[j][0], b[j][1]);
        });
      }
    }
  }

  // Operand A: a lane reads four adjacent channels of a pixel, for two matrices of 16 rows.
  template <class Multiply>
  __device__ __forceinline__ void multiply_float(uint32_t x, Multiply multiply) const {
#pragma unroll
    for (int i = 0; i < kRows; i += 2) {
      const uint4 v = load_shared_16(x + i * 64), v4 = load_shared_16(x + 4 * plan.x_pitch + i * 64);
      multiply(i, make_uint4(v.x, v.y, v4.x, v4.y));
      multiply(i + 1, make_uint4(v.z, v.w, v4.z, v4.w));
    }
  }

  // A lane's four sums of one channel m and one unit, and their channels n: four adjacent ones (float32), or twice two
  // (16-bit).
  __device__ __forceinline__ float sum_of(int i, int half, int u, int e) const {
    return kSize == 4 ? sums_[i][2 * u + e % 2][2 * half + e / 2] : sums_[i][2 * u + e / 2][2 * half + e % 2];
  }
  __device__ __forceinline__ static int channel_of_sum(int lane, int e) {
    return kSize == 4 ? lane % 4 * 4 + e : lane % 4 * 2 + e % 2 + e / 2 * 8;
  }
  // The channel m of half a matrix of 16 rows.
  __device__ __forceinline__ static int channel_of_row(int lane, int i, int half) {
    return kSize == 4 ? i / 2 * 32 + lane / 4 * 4 + i % 2 * 2 + half : i * 16 + half * 8 + lane / 4;
  }

  __device__ __forceinline__ void store() const {
    const int lane = threadIdx.x % 32, taps = p.kernel_h * p.kernel_w;
    const int padded_m = plan.blocks_m * plan.channels_m(), padded_n = plan.blocks_n * plan.channels_n();
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (unit_ + u >= units_) break;
      const Unit unit = find_unit(unit_ + u);
      const int tap_h = p.taps[0][tile_.first_h + unit.tap_h].tap, tap_w = p.taps[1][tile_.first_w + unit.tap_w].tap;
      const int first_n = tile_.n + unit.chunk * 16, first_m = tile_.m + row_ * 16;
      if (p.partial != nullptr) {
        const int64_t plane = static_cast<int64_t>(tile_.split * p.groups + tile_.group) * taps + tap_h * p.kernel_w +
                              tap_w;
        float* const to = p.partial + (plane * padded_m + first_m) * padded_n + first_n + channel_of_sum(lane, 0);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float* const at = to + static_cast<int64_t>(channel_of_row(lane, i, half)) * padded_n;
            const float4 s{sum_of(i, half, u, 0), sum_of(i, half, u, 1), sum_of(i, half, u, 2), sum_of(i, half, u, 3)};
            if constexpr (kSize == 4) {
              *reinterpret_cast<float4*>(at) = s;
            } else {
              *reinterpret_cast<float2*>(at) = make_float2(s.x, s.y);
              *reinterpret_cast<float2*>(at + 8) = make_float2(s.z, s.w);
            }
          }
        }
      } else {
        T* const to = p.result + static_cast<int64_t>(tile_.group) * p.channels_m * p.result_m + tap_h * p.result_h +
                      tap_w * p.result_w;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int m = first_m + channel_of_row(lane, i, half);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int n = first_n + channel_of_sum(lane, e);
              if (m < p.channels_m && n < p.channels_n) {
                to[m * p.result_m + n * p.result_n] = narrow<T>(sum_of(i, half, u, e));
              }
            }
          }
        }
      }
    }
  }

  const WeightParams<T>& p;
  const WgradSm80Plan& plan;
  const WeightTile tile_;
  const int lines_h_, lines_w_;  // lines of grad_output staged for an image
  const WeightSource<T> x_, y_;
  uint32_t shared_;
  int row_, unit_, units_;  // the warp's first row of 16 channels, its first unit; all units
  int x_lane_, rows_lane_, y_lane_[kUnits];  // bytes
  float sums_[kRows][kColumns][4];
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    weight_kernel(const __grid_constant__ WeightParams<typename Config::Element> params) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  WeightBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::sm80
