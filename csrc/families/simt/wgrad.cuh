// simt, grad_weight: every problem, every dtype, without tensor cores.
//
//   gw[m, n, kh, kw] = sum over images and pixels i of  x[m, i] * gy[n, i * s - p + k * d]
//
//   block   warps_m * Tile::m() input channels m, warps_n * Tile::n() output channels n, warps_tap taps of a row kh,
//           one split of the pixels
//   warp    one tap, one tile of (m, n)
//   lane    a part of the tile; the lanes left over take every kLanesK-th pixel
//   stage   `rows` rows of `pixels` columns of x, and the columns of grad_output that their taps need; channels first
//
// Every tap reads the stage at a shift. lowerings/split_k_reduce.cuh adds the partial sums of splits in order: same
// bits in every run.
#pragma once

#include "device/primitives.cuh"
#include "families/simt/plan.h"

namespace deconv {

template <class T>
struct SimtWgradParams {
  const T* x;  // (batch, groups * m, height, width), any strides
  const T* y;  // grad_output (batch, groups * n, out height, out width)
  T* result;  // (groups * m, n, kernel height, kernel width)
  AccumulatorOf<T>* partial;  // (splits, groups, taps, m, n), or null without splits
  int64_t x_n, x_c, x_h, x_w;
  int64_t y_n, y_c, y_h, y_w;
  int64_t result_m, result_n, result_h, result_w;
  int batch, height, width, out_height, out_width;
  int channels_m, channels_n, groups;
  int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  SimtWgradPlan plan;
};

template <class T, int kTile>
struct SimtWgradConfig {
  using Element = T;
  using Accum = AccumulatorOf<T>;
  static constexpr SimtWgradTile kShape = sizeof(Accum) == 8 ? kSimtWgradTilesDouble[kTile] : kSimtWgradTiles[kTile];
  static constexpr int kTileM = kShape.m(), kTileN = kShape.n();
  static constexpr int kLanesK = 32 / (kShape.lanes_m * kShape.lanes_n);
  static_assert(kShape.lanes_m * kShape.lanes_n * kLanesK == 32, "the lanes fill a warp");
};

template <class Config>
class SimtWgradBlock {
  using T = typename Config::Element;
  using Accum = typename Config::Accum;
  static constexpr int kM = Config::kShape.thread_m;
  static constexpr int kN = Config::kShape.thread_n;
  static constexpr int kLanesM = Config::kShape.lanes_m;
  static constexpr int kLanesN = Config::kShape.lanes_n;
  static constexpr int kLanesK = Config::kLanesK;
  static constexpr int kPackM = kM < kPackSize<Accum> ? kM : kPackSize<Accum>;
  static constexpr int kPackN = kN < kPackSize<Accum> ? kN : kPackSize<Accum>;

 public:
  __device__ __forceinline__ SimtWgradBlock(const SimtWgradParams<T>& params, unsigned char* shared) : p(params) {
    xs = reinterpret_cast<Accum*>(shared);
    ys = reinterpret_cast<Accum*>(shared + p.plan.y_at);
    locate();
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < kN; ++j) acc[i][j] = Accum(0);
    }
  }

  __device__ __forceinline__ void run() {
    const int64_t begin = split * p.plan.segments_per_split;
    const int64_t end = min(begin + p.plan.segments_per_split, p.plan.segments);
    const int row_chunks = (p.width + p.plan.pixels - 1) / p.plan.pixels;
    for (int64_t segment = begin; segment < end; ++segment) {
      const int64_t row = segment / row_chunks * p.plan.rows;
      const int column = static_cast<int>(segment % row_chunks) * p.plan.pixels;
      __syncthreads();  // the previous stage's readers are done
      for (int r = 0; r < p.plan.rows; ++r) stage_row(r, row + r, column);
      __syncthreads();
      if (warp_tap < taps) multiply();
    }
    add_lanes();
    if (warp_tap < taps && lane_k == 0) store();
  }

 private:
  const SimtWgradParams<T>& p;
  Accum* xs;  // shared: [rows][pixels][m, padded]
  Accum* ys;  // shared: [rows][span][n, padded]
  int64_t split;
  int group, tap_h, first_tap, taps, tile_m, tile_n;
  int warp_tap, warp_m, warp_n, lane_m, lane_n, lane_k;
  Accum acc[kM][kN];

  __device__ __forceinline__ void locate() {
    unsigned block = blockIdx.x;
    const auto take = [&block](int count) {
      const int index = static_cast<int>(block % count);
      block /= count;
      return index;
    };
    first_tap = take(p.plan.blocks_tap) * p.plan.warps_tap;
    taps = min(p.plan.warps_tap, p.kernel_w - first_tap);
    tap_h = take(p.kernel_h);
    tile_n = take(p.plan.blocks_n) * p.plan.warps_n * Config::kTileN;
    tile_m = take(p.plan.blocks_m) * p.plan.warps_m * Config::kTileM;
    group = take(p.groups);
    split = block;

    const int lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    warp_n = warp % p.plan.warps_n * Config::kTileN;
    warp /= p.plan.warps_n;
    warp_m = warp % p.plan.warps_m * Config::kTileM;
    warp_tap = warp / p.plan.warps_m;
    lane_n = lane % kLanesN;
    lane_m = lane / kLanesN % kLanesM;
    lane_k = lane / (kLanesN * kLanesM);
  }

  // `row` counts over images and rows. Rows past the last, and taps outside the image, are zeros.
  __device__ __forceinline__ void stage_row(int r, int64_t row, int column) {
    const int n = static_cast<int>(row / p.height), h = static_cast<int>(row % p.height);
    const int out_h = h * p.stride_h - p.padding_h + tap_h * p.dilation_h;
    const bool inside = n < p.batch && out_h >= 0 && out_h < p.out_height;
    const Row x{p.x + n * p.x_n + h * p.x_h + static_cast<int64_t>(group * p.channels_m + tile_m) * p.x_c, p.x_c, p.x_w,
                inside ? p.channels_m - tile_m : 0, p.width};
    stage(xs + r * p.plan.pixels * p.plan.x_pitch, p.plan.x_pitch, p.plan.warps_m * Config::kTileM, p.plan.pixels, x,
          column, 1);
    const Row y{p.y + n * p.y_n + out_h * p.y_h + static_cast<int64_t>(group * p.channels_n + tile_n) * p.y_c, p.y_c,
                p.y_w, inside ? p.channels_n - tile_n : 0, p.out_width};
    Accum* to = ys + r * p.plan.span * p.plan.y_pitch;
    const int channels = p.plan.warps_n * Config::kTileN;
    const int first = column * p.stride_w - p.padding_w + first_tap * p.dilation_w;
    if (p.plan.shared_span) {
      stage(to, p.plan.y_pitch, channels, p.plan.span, y, first, 1);
    } else {
      for (int t = 0; t < taps; ++t) {
        stage(to + t * p.plan.tap_step * p.plan.y_pitch, p.plan.y_pitch, channels, p.plan.pixels, y,
              first + t * p.dilation_w, p.stride_w);
      }
    }
  }

  // One row of an operand from this block's first channel on; channels past `valid` are zeros.
  struct Row {
    const T* data;
    int64_t step_c, step_w;
    int valid, width;
  };

  // Copies every `step`-th column from `first` on, `count` of them, channels innermost; zeros past the row's ends.
  __device__ __forceinline__ void stage(Accum* to, int pitch, int channels, int count, const Row& row, int first,
                                        int step) {
    constexpr int kBatch = 4;  // loads in flight before the first use
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    // Lanes along the channels where those are adjacent, else 8 columns of 4 channels: whole sectors from memory, all
    // banks of shared memory. Warps and lanes that exceed the channels take further columns.
    const int channel_lanes = row.step_c == 1 ? min(32, channels) : min(4, channels);  // powers of two
    const int channel_warps = min(warps, max(1, channels / channel_lanes));
    const int column_lanes = 32 / channel_lanes, column_warps = warps / channel_warps;
    const int channel = warp % channel_warps * channel_lanes + lane % channel_lanes;
    const int channel_step = channel_warps * channel_lanes;
    const int column = warp / channel_warps * column_lanes + lane / channel_lanes;
    const int column_step = column_warps * column_lanes;
    if (warp >= channel_warps * column_warps) return;
    const int64_t jump = static_cast<int64_t>(column_step) * step * row.step_w;
    for (int c = channel; c < channels; c += channel_step) {
      const T* from = row.data + c * row.step_c + (first + static_cast<int64_t>(column) * step) * row.step_w;
      Accum* at = to + column * pitch + c;
      for (int e = column; e < count; e += column_step * kBatch) {
        T value[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int w = first + (e + i * column_step) * step;
          const bool inside = c < row.valid && e + i * column_step < count && w >= 0 && w < row.width;
          value[i] = inside ? *from : T{};
          from += jump;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (e + i * column_step < count) *at = widen(value[i]);
          at += column_step * pitch;
        }
      }
    }
  }

  __device__ __forceinline__ void multiply() {
    for (int r = 0; r < p.plan.rows; ++r) {
      const Accum* x = xs + (r * p.plan.pixels + lane_k) * p.plan.x_pitch + warp_m + lane_m * kPackM;
      const Accum* y = ys +
                       (r * p.plan.span + lane_k * p.plan.pixel_step + warp_tap * p.plan.tap_step) * p.plan.y_pitch +
                       warp_n + lane_n * kPackN;
#pragma unroll 2
      for (int i = lane_k; i < p.plan.pixels; i += kLanesK) {
        Accum a[kM], b[kN];
        load<kM, kPackM>(a, x, kLanesM);
        load<kN, kPackN>(b, y, kLanesN);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int n = 0; n < kN; ++n) acc[m][n] += a[m] * b[n];
        }
        x += kLanesK * p.plan.x_pitch;
        y += kLanesK * p.plan.pixel_step * p.plan.y_pitch;
      }
    }
  }

  // A thread reads packs of channels that are `lanes` packs apart, so that adjacent lanes read adjacent banks.
  template <int kCount, int kPack>
  __device__ __forceinline__ static void load(Accum (&values)[kCount], const Accum* from, int lanes) {
#pragma unroll
    for (int i = 0; i < kCount; i += kPack) {
      const auto pack = *reinterpret_cast<const Pack<Accum, kPack>*>(from + i * lanes);
#pragma unroll
      for (int k = 0; k < kPack; ++k) values[i + k] = pack.value[k];
    }
  }

  __device__ __forceinline__ void add_lanes() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int other = 16; other >= kLanesM * kLanesN; other /= 2) {
          acc[m][n] += __shfl_xor_sync(0xffffffffu, acc[m][n], other);
        }
      }
    }
  }

  __device__ __forceinline__ void store() const {
    const int kw = first_tap + warp_tap;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const int m = tile_m + warp_m + (i / kPackM * kLanesM + lane_m) * kPackM + i % kPackM;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int n = tile_n + warp_n + (j / kPackN * kLanesN + lane_n) * kPackN + j % kPackN;
        if (m >= p.channels_m || n >= p.channels_n) continue;
        const int64_t row = group * p.channels_m + m;
        if (p.partial == nullptr) {
          p.result[row * p.result_m + n * p.result_n + tap_h * p.result_h + kw * p.result_w] = narrow<T>(acc[i][j]);
        } else {
          const int64_t tap = (split * p.groups + group) * p.kernel_h * p.kernel_w + tap_h * p.kernel_w + kw;
          p.partial[(tap * p.channels_m + m) * p.channels_n + n] = acc[i][j];
        }
      }
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(kSimtThreads, 2)
    simt_wgrad_kernel(const __grid_constant__ SimtWgradParams<typename Config::Element> params) {
  extern __shared__ __align__(16) unsigned char shared[];
  SimtWgradBlock<Config>(params, shared).run();
}

}  // namespace deconv
