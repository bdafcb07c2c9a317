// wgrad_sm90's rs_nchw, grad_weight of NCHW operands, all dtypes by wgmma:
//
//   gw[m, n, kh, kw] = sum over images and pixels i of  x[m, i] * gy[n, i * s - p + k * d]
//
//   operand A   64 output channels n of a tap, gathered into registers from rows of grad_output in shared memory
//   operand B   kN columns: input channels m, a tile for each kernel row that reads the same row of grad_output
//   K           pixels: a stage has 128 bytes of each input channel, in one or two rows
//
// NCHW is K-major, so nothing is transposed. Two or three warpgroups multiply, on other taps of a kernel row or other
// output channels; separate threads produce input and grad_output by TMA.
//
// TMA begins at multiples of 16 bytes, rows of grad_output anywhere. So the map sees an image as one line, a box begins
// with the 16 bytes that hold the row's first pixel, and channels with equal offset share a box. What is outside the
// image's columns is zeroed in registers. lowerings/split_k_reduce.cuh adds the blocks' partial sums in order.
#pragma once

#include "core/divisor.h"
#include "device/primitives.cuh"
#include "device/tf32_split.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/wgrad_sm90/plan_rs_nchw.h"

namespace deconv::sm90 {

template <class T>
struct WgradRsNchwParams {
  CUtensorMap x_map;  // (width, channel, height, image)
  CUtensorMap y_map;  // (element, every channel_kinds-th channel, image)
  T* result;  // written by lowerings/split_k_reduce.cuh
  float* partial;  // (splits, groups, taps, m, n), m and n padded
  int64_t result_m, result_n, result_h, result_w;
  int channels_m, channels_n, groups, kernel_h, kernel_w;
  int y_c, y_h;  // strides of grad_output
  int width, out_height, out_width, stride_h, stride_w, padding_w, dilation_w;
  Divisor tiles_w, runs;
  WgradRsNchwPlan plan;
};

template <class T, int kWarpgroups_, int kTaps_, int kN_, int kParts_>
struct WgradRsNchwConfig {
  using Element = T;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kTaps = kTaps_;
  static constexpr int kN = kN_;
  static constexpr int kParts = kParts_;  // 2: tf32x3
  static constexpr int kThreads = 128 * kWarpgroups + 128;
  // Registers of a thread that multiplies, and of one that produces.
  static constexpr int kMultiplyRegisters = kWarpgroups == 3 ? 152 : 224;
  static constexpr int kBringRegisters = 56;
  static_assert(kParts == 1 || sizeof(T) == 4, "only float32 is split");
};

template <class Config>
class WgradRsNchwBlock {
  using T = typename Config::Element;
  using Params = WgradRsNchwParams<T>;
  static constexpr int kTaps = Config::kTaps, kN = Config::kN, kParts = Config::kParts, kSize = sizeof(T);
  static constexpr int kMultiplyWarps = 4 * Config::kWarpgroups;
  static constexpr int kSplitWarps = 2;  // warps that write the input's low parts
  static constexpr int kProducts = kSm90RowBytes / 32;  // instructions of a tile, 32 bytes of pixels each
  static constexpr int kPixels = 32 / kSize;
  static constexpr int kUnit = 16 / kSize;  // elements
  using Product = WgmmaRs<T, kN, false>;

 public:
  __device__ __forceinline__ WgradRsNchwBlock(const Params& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)) {
    unsigned index = blockIdx.x;
    const auto take = [&](unsigned count) {
      const unsigned quotient = index / count, digit = index - quotient * count;
      index = quotient;
      return static_cast<int>(digit);
    };
    first_tap_ = take(plan.tap_groups) * plan.block_taps;
    row_group_ = take(plan.row_groups);
    n_ = take(plan.blocks_n) * plan.y_channels;
    m_ = take(plan.blocks_m) * plan.block_m;
    group_ = take(p.groups);
    split_ = static_cast<int>(index);
    const RsNchwGroup group = plan.groups[row_group_];
    first_row_ = group.first * p.stride_h + group.plane;
    const uint32_t barriers = shared_ + plan.barriers_at;
    ring_ = {barriers, barriers + 8 * plan.stages, plan.stages};
    split_done_ = barriers + 16 * plan.stages;
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.stages; ++i) {
        barrier_init(ring_.full + 8 * i, kParts == 1 ? 2 * plan.rows : 2);
        barrier_init(split_done_ + 8 * i, kSplitWarps);
        barrier_init(ring_.empty + 8 * i, kMultiplyWarps);
      }
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that all lanes agree
    if (warp < kMultiplyWarps) {
      take_registers<Config::kMultiplyRegisters>();
      multiply(warp / 4, warp % 4, threadIdx.x % 32);
    } else {
      leave_registers<Config::kBringRegisters>();
      const int bringer = warp - kMultiplyWarps;
      if constexpr (kParts == 1) {
        if (bringer < 2 * plan.rows && threadIdx.x % 32 == 0) {
          bringer % 2 == 0 ? bring_input(bringer / 2, 1) : bring_grad_output(bringer / 2, 1);
        }
      } else if (bringer >= kSplitWarps) {
        split_input(bringer - kSplitWarps, threadIdx.x % 32);
      } else if (threadIdx.x % 32 == 0) {
        bringer == 0 ? bring_input(0, plan.rows) : bring_grad_output(0, plan.rows);
      }
    }
    start_dependents();
  }

 private:
  // A block's tiles of pixels: down each of its runs, which are plan.splits apart. Blocks that work at the same time
  // then read adjacent columns of the same rows, and share tiles through L2.
  struct Tile {
    int run, left;  // tiles of this run that are left
    int row, column, image;
  };
  __device__ __forceinline__ void begin_run(Tile& tile, int run) const {
    tile.run = run;
    tile.left = 0;
    if (run >= plan.all_runs) return;
    const int of_column = p.tiles_w.quotient(run), image = p.runs.quotient(of_column);
    const int first = (of_column - image * plan.runs) * plan.run;
    tile.left = min(plan.run, plan.tiles_h - first);
    tile.row = first * plan.rows;
    tile.column = (run - of_column * plan.tiles_w) * plan.columns;
    tile.image = image;
  }
  __device__ __forceinline__ Tile first_tile() const {
    Tile tile;
    begin_run(tile, split_);
    return tile;
  }
  __device__ __forceinline__ void next(Tile& tile) const {
    tile.row += plan.rows;
    if (--tile.left == 0) begin_run(tile, tile.run + plan.splits);
  }
  // The row of grad_output that a tile's row reads; may be outside the image.
  __device__ __forceinline__ int row_of(int tile_row) const { return tile_row * p.stride_h + first_row_; }
  __device__ __forceinline__ bool is_inside(int row) const {
    return static_cast<unsigned>(row) < static_cast<unsigned>(p.out_height);
  }
  // The column of grad_output that a tile's first pixel meets at the block's first tap.
  __device__ __forceinline__ int first_column(const Tile& tile) const {
    return tile.column * p.stride_w - p.padding_w + first_tap_ * p.dilation_w;
  }

  // One thread issues the TMA loads of the input and one those of grad_output, as soon as a stage is free: `count` rows
  // of each tile from `first` on. More rows would keep a thread too busy. TMA fills with zeros outside the input.
  __device__ __forceinline__ void bring_input(int first, int count) const {
    Ring ring = ring_;
    const int m = group_ * p.channels_m + m_, block_rows = plan.block_rows, row_step = plan.row_step;
    const uint32_t box_bytes = plan.block_m * plan.columns * kSize, row_bytes = block_rows * box_bytes;
    for (Tile tile = first_tile(); tile.left > 0; next(tile)) {
      const uint32_t full = ring.full_barrier();
      uint32_t to = shared_ + ring.slot * plan.stage_bytes + first * row_bytes;
      ring.wait_empty();
      barrier_arrive_expecting(full, count * row_bytes);
      for (int row = first; row < first + count; ++row) {
        int x_row = tile.row + row;
        for (int i = 0; i < block_rows; ++i) {
          copy_tensor(to, &p.x_map, full, tile.column, m, x_row, tile.image);
          to += box_bytes;
          x_row -= row_step;
        }
      }
      ring.advance();
    }
  }
  __device__ __forceinline__ void bring_grad_output(int first, int count) const {
    Ring ring = ring_;
    const int kinds = plan.channel_kinds, n = (group_ * p.channels_n + n_) / kinds;
    const uint32_t box_bytes = plan.y_channels / kinds * plan.y_pitch;
    for (Tile tile = first_tile(); tile.left > 0; next(tile)) {
      const uint32_t full = ring.full_barrier(), stage = shared_ + ring.slot * plan.stage_bytes + plan.y_at;
      uint32_t bytes = 0;
      for (int row = first; row < first + count; ++row) {
        bytes += is_inside(row_of(tile.row + row)) ? kinds * box_bytes : 0;
      }
      ring.wait_empty();
      barrier_arrive_expecting(full, bytes);
      for (int row = first; row < first + count; ++row) {
        const int y_row = row_of(tile.row + row);
        if (!is_inside(y_row)) continue;
        int element = y_row * p.y_h + first_column(tile);
        uint32_t to = stage + row * plan.y_row_bytes;
        for (int kind = 0; kind < kinds; ++kind) {
          copy_tensor(to, &p.y_map, full, element & ~(kUnit - 1), n, tile.image, 0);
          to += plan.y_box_bytes;
          element += p.y_c;
        }
      }
      ring.advance();
    }
  }

  // Writes the low parts of the input behind it. Tensor cores read the upper 19 bits alone, so the input itself is the
  // high part. Only NaN is rewritten: truncated, it might become Inf.
  __device__ __forceinline__ void split_input(int warp, int lane) const {
    Ring ring = ring_;
    const uint32_t bytes = plan.block_rows * plan.block_m * kSm90RowBytes;
    for (Tile tile = first_tile(); tile.left > 0; next(tile)) {
      const uint32_t stage = shared_ + ring.slot * plan.stage_bytes;
      ring.wait_full();
#pragma unroll 4
      for (uint32_t at = 16 * (32 * warp + lane); at < bytes; at += 16 * 32 * kSplitWarps) {
        const uint4 v = load_shared_16(stage + at);
        const SplitFloat x = split_float(v.x), y = split_float(v.y), z = split_float(v.z), w = split_float(v.w);
        store_shared(stage + bytes + at, make_uint4(x.low, y.low, z.low, w.low));
        const bool whole = x.high == v.x && y.high == v.y && z.high == v.z && w.high == v.w;
        if (!whole) store_shared(stage + at, make_uint4(x.high, y.high, z.high, w.high));
      }
      fence_to_async_proxy();
      __syncwarp();
      if (lane == 0) barrier_arrive(split_done_ + 8 * ring.slot);
      ring.advance();
    }
  }

  // Operand A of one instruction: this lane's words of two channels, from `at` on and `half` bytes further on.
  __device__ __forceinline__ void gather(uint32_t (&a)[4], const uint32_t (&at)[2], uint32_t half) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t from = at[i % 2] + (i < 2 ? 0 : half);
      if constexpr (kSize == 4) {
        a[i] = load_shared(from);
      } else {
        a[i] = load_shared_short(from) | static_cast<uint32_t>(load_shared_short(from + p.stride_w * kSize)) << 16;
      }
    }
  }
  // Zeroes what is outside the image. column: of grad_output, at the first word's first pixel; left: pixels of the
  // input from there on.
  __device__ __forceinline__ void mask(uint32_t (&a)[4], int column, int left) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int further = i / 2 * kUnit;
      const auto exists = [&](int pixel) {
        return static_cast<unsigned>(column + pixel * p.stride_w) < static_cast<unsigned>(p.out_width) && pixel < left;
      };
      if constexpr (kSize == 4) {
        if (!exists(further)) a[i] = 0;
      } else {
        if (!exists(further)) a[i] &= 0xFFFF0000u;
        if (!exists(further + 1)) a[i] &= 0xFFFFu;
      }
    }
  }

  __device__ __forceinline__ void multiply(int warpgroup, int warp, int lane) const {
    // A warp's taps are plan.fold apart; warps that share a tap take 16 channels each.
    const int fold_warps = 4 / plan.fold;
    const int tile_n = warpgroup % plan.spread;
    const int tap = warpgroup / plan.spread * kTaps * plan.fold + warp / fold_warps;  // of the block
    const int channel = tile_n * kWgradTileM + 16 * (warp % fold_warps) + lane / 4;
    const int pixel = lane % 4 * (4 / kSize);
    // The kind of each of this lane's two channels, and where its line begins in a stage.
    const int of_kind = plan.y_channels / plan.channel_kinds;
    const int kind[2] = {channel / of_kind, (channel + 8) / of_kind};
    uint32_t line[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      line[i] = plan.y_at + kind[i] * plan.y_box_bytes + (channel + 8 * i - kind[i] * of_kind) * plan.y_pitch +
                pixel * p.stride_w * kSize + tap * p.dilation_w * kSize;
    }
    const uint32_t tap_step = plan.fold * p.dilation_w * kSize;
    const uint32_t half = 16 * p.stride_w, product_step = 2 * half;
    const uint32_t row_bytes = plan.columns * kSize, x_row_bytes = plan.block_rows * plan.block_m * row_bytes;
    float acc[kTaps][kN / 2];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[t][i] = 0;
      wgmma_pin(acc[t]);
    }
    const bool idle = warpgroup / plan.spread * kTaps * plan.fold >= min(plan.block_taps, p.kernel_w - first_tap_);
    const int last_column = (plan.columns - 1) * p.stride_w + (plan.block_taps - 1) * p.dilation_w;
    if (idle) {  // releases the stages unread
      Ring ring = ring_;
      for (Tile tile = first_tile(); tile.left > 0; next(tile), ring.advance()) {
        ring.wait_full();
        __syncwarp();
        if (lane == 0) ring.release(ring.slot);
      }
      return;
    }
    Ring ring = ring_;
    int before = -1;  // stage that instructions in flight read
    for (Tile tile = first_tile(); tile.left > 0; next(tile)) {
      const int column = first_column(tile), left = p.width - tile.column;
      const bool masked = column < 0 || column + last_column >= p.out_width || left < plan.columns;
      const uint32_t stage = shared_ + ring.slot * plan.stage_bytes;
      uint64_t b = tile_descriptor(stage, 8 * row_bytes, row_bytes);
      uint32_t at[kTaps][2];
      bool exists;
      const auto begin_row = [&](int of_tile) {
        const int row = row_of(tile.row + of_tile);
        exists = is_inside(row);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // Modulo 2^32: rows outside the image may lie far from it.
          const uint32_t element = static_cast<uint32_t>(kind[i]) * p.y_c + static_cast<uint32_t>(row) * p.y_h + column;
          const uint32_t ahead = element & (kUnit - 1);
          const uint32_t first = stage + line[i] + of_tile * plan.y_row_bytes + ahead * kSize;
#pragma unroll
          for (int t = 0; t < kTaps; ++t) at[t][i] = first + t * tap_step;
        }
      };
      // Operand A of instruction k for one tap; advances to the next instruction.
      const auto take = [&](uint32_t (&a)[4], int t, int k) {
        gather(a, at[t], half);
        if (masked) {
          const int first = pixel + (plan.rows == 2 ? k % (kProducts / 2) : k) * kPixels;
          mask(a, column + (tap + t * plan.fold) * p.dilation_w + first * p.stride_w, left - first);
        }
        if (!exists) {
#pragma unroll
          for (int i = 0; i < 4; ++i) a[i] = 0;
        }
        at[t][0] += product_step;
        at[t][1] += product_step;
      };
      ring.wait_full();
      begin_row(0);
      if constexpr (kParts == 1) {
        // Gathers one set of operands while tensor cores work on the other.
        uint32_t a[2][kTaps][4];
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          if (k == kProducts / 2 && plan.rows == 2) {
            begin_row(1);
            b += (x_row_bytes >> 4) - (row_bytes >> 4);
          }
#pragma unroll
          for (int t = 0; t < kTaps; ++t) take(a[k % 2][t], t, k);
          wgmma_fence();
#pragma unroll
          for (int t = 0; t < kTaps; ++t) Product::issue(acc[t], a[k % 2][t], b + (k * 32 >> 4), 1);
          wgmma_commit();
          wgmma_wait<1>();
          if (k == 0 && before >= 0 && lane == 0) ring.release(before);
        }
        before = ring.slot;
      } else {
        // tf32x3. Tensor cores truncate their running sum, so each stage starts from zero and is added in float32. Inf
        // and NaN come from the product of the high parts alone, where the operands are whole.
        const uint64_t low_part = plan.block_rows * plan.block_m * kSm90RowBytes >> 4;
        barrier_wait(split_done_ + 8 * ring.slot, ring.parity);
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          float low[kN / 2], high[kN / 2];
          uint32_t a_high[2][4], a_low[2][4];
          uint64_t of_row = b;
          if (t > 0 && plan.rows == 2) begin_row(0);
#pragma unroll
          for (int k = 0; k < kProducts; ++k) {
            if (k == kProducts / 2 && plan.rows == 2) {
              begin_row(1);
              of_row += (x_row_bytes >> 4) - (row_bytes >> 4);
            }
            uint32_t whole[4];
            take(whole, t, k);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const SplitFloat value = split_float(whole[i]);
              a_high[k % 2][i] = value.high;
              a_low[k % 2][i] = value.low;
            }
            const uint64_t operand_b = of_row + (k * 32 >> 4);
            wgmma_fence();
            Product::issue(low, a_high[k % 2], operand_b + low_part, k > 0);
            Product::issue(low, a_low[k % 2], operand_b, 1);
            Product::issue(high, a_high[k % 2], operand_b, k > 0);
            wgmma_commit();
            wgmma_wait<1>();
          }
          wgmma_wait<0>();
          wgmma_pin(low);
          wgmma_pin(high);
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) acc[t][i] += (is_finite(low[i]) ? low[i] : 0.0f) + high[i];
        }
        if (lane == 0) ring.release(ring.slot);
      }
      ring.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      wgmma_pin(acc[t]);
      const int kw = first_tap_ + tap + t * plan.fold;
      if (tap + t * plan.fold < plan.block_taps && kw < p.kernel_w) store(acc[t], kw, channel, lane);
    }
  }

  // A lane has columns 2 * (lane % 4) and the next one of every 8, for staged channels n and n + 8. A column is a
  // kernel row and an input channel.
  __device__ __forceinline__ void store(const float (&acc)[kN / 2], int kw, int channel, int lane) const {
    const int16_t* const rows = plan.kernel_rows.data() + row_group_ * plan.block_rows;
    const int taps = p.kernel_h * p.kernel_w, of_kind = plan.y_channels / plan.channel_kinds;
    float* const of_group = p.partial +
                            static_cast<int64_t>(split_ * p.groups + group_) * taps * plan.padded_m * plan.padded_n;
    int n[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int of_channel = channel + 8 * i, kind = of_channel / of_kind;
      n[i] = n_ + (of_channel - kind * of_kind) * plan.channel_kinds + kind;
    }
    int m = 0, row = 0;
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      const int kh = row < plan.block_rows ? rows[row] : -1;
      if (kh >= 0) {
        float* const to = of_group +
                          (static_cast<int64_t>(kh * p.kernel_w + kw) * plan.padded_m + m_ + m + 2 * (lane % 4)) *
                              plan.padded_n;
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j % 2 * plan.padded_n + n[j / 2]] = acc[4 * i + j];
      }
      m += 8;
      if (m < plan.block_m) continue;
      m = 0;
      ++row;
    }
  }

  const Params& p;
  const WgradRsNchwPlan& plan;
  uint32_t shared_, split_done_;  // split_done_: barriers of stages, passed once low parts are written
  Ring ring_;
  int first_tap_, row_group_, n_, m_, group_, split_;
  int first_row_;  // of grad_output, that the group's first kernel row meets at row 0 of the input
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    wgrad_rs_nchw_kernel(const __grid_constant__ WgradRsNchwParams<typename Config::Element> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  WgradRsNchwBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::sm90
