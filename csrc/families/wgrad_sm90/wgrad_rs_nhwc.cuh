// wgrad_sm90's rs_nhwc, grad_weight of float32 in channels_last by wgmma, TF32 or tf32x3:
//
//   gw[m, n, kh, kw] = sum over images and pixels i of  x[m, i] * gy[n, i * s - p + k * d]
//
//   operand A   64 output channels n of a tap, gathered into registers from rows of grad_output; taps differ by warp
//   operand B   kN input channels m, transposed in shared memory: wgmma takes 32-bit operands there only K-major
//   K           32 pixels a stage, in an order (rs_nhwc_pixel) that lets transposing and gathering meet all banks
//
// One thread produces by TMA (load_tma_nhwc.cuh): a row of 128 bytes is 32 channels of a pixel, of the input or a
// source phase of grad_output. Three warps transpose the input in place, 32 pixels x 32 channels at a time. Two or
// three warpgroups multiply.
//
// Blocks are persistent: TMA loads the next work tile while the sums of one are stored. Splits and slices of the images
// write partial sums; lowerings/split_k_reduce.cuh adds them in order: same bits in every run.
#pragma once

#include "device/tf32_split.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/wgrad_sm90/load_tma_nhwc.cuh"
#include "families/wgrad_sm90/plan_rs_nhwc.h"

namespace deconv::sm90 {

using WgradRsNhwcParams = WeightCopiesParams<float, WgradRsNhwcPlan>;

template <int kWarpgroups_, int kTaps_, int kN_, int kParts_>
struct WgradRsNhwcConfig {
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kTaps = kTaps_;
  static constexpr int kN = kN_;
  static constexpr int kParts = kParts_;
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
  // Registers of a thread that multiplies, and of one that produces or transposes.
  static constexpr int kMultiplyRegisters = kWarpgroups == 3 ? 144 : 208;
  // Sets of operand A: with two, one is gathered while tensor cores read the other, where registers suffice.
  static constexpr int kOperandSets = kWarpgroups == 3 && kTaps == 3 ? 1 : 2;
  static constexpr int kTurnRegisters = kWarpgroups == 3 ? 72 : 88;
};

// The pixel of a tile that is number 4 * quad + index of the sum.
__device__ __forceinline__ int rs_nhwc_pixel(int quad, int index) {
  return quad / 2 * 8 + (quad + index) % 4 * 2 + quad % 2;
}

template <class Config>
class WgradRsNhwcBlock {
  static constexpr int kTaps = Config::kTaps, kN = Config::kN, kParts = Config::kParts;
  static constexpr int kMultiplyWarps = 4 * Config::kWarpgroups;
  static constexpr int kProducts = kRsNhwcPixels / 8;
  static constexpr int kBlockBytes = kRsNhwcPixels * kSm90RowBytes;  // a block of 32 pixels x 32 channels
  using Product = WgmmaRs<float, kN, false>;

 public:
  __device__ __forceinline__ WgradRsNhwcBlock(const WgradRsNhwcParams& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)) {
    const uint32_t barriers = shared_ + plan.barriers_at;
    ring_ = {barriers, barriers + 8 * plan.slots, plan.slots};
    turned_ = barriers + 16 * plan.slots;
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.slots; ++i) {
        barrier_init(ring_.full + 8 * i, 1);
        barrier_init(ring_.empty + 8 * i, kMultiplyWarps);
        barrier_init(turned_ + 8 * i, kSm90TurnWarps);
      }
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that all lanes agree
    if (warp < kMultiplyWarps) {
      take_registers<Config::kMultiplyRegisters>();
      multiply(warp / 4, warp % 4);
    } else {
      leave_registers<Config::kTurnRegisters>();
      if (warp < kMultiplyWarps + kSm90TurnWarps) {
        turn(warp - kMultiplyWarps);
      } else if (threadIdx.x % 32 == 0) {
        bring();
      }
    }
  }

 private:
  __device__ __forceinline__ void bring() const {
    await_predecessors();  // a kernel before may write the operands
    Ring ring = ring_;
    for (unsigned index = blockIdx.x; index < plan.items; index += gridDim.x) {
      bring_weight_item(p, find_weight_item(p, index), ring, shared_);
    }
    start_dependents();
  }

  // Transposes the input's blocks; `warp`: which of kSm90TurnWarps.
  __device__ __forceinline__ void turn(int warp) const {
    Ring ring = ring_;
    const int lane = threadIdx.x % 32;
    for (unsigned index = blockIdx.x; index < plan.items; index += gridDim.x) {
      for (int steps = find_weight_item(p, index).steps; steps > 0; --steps) {
        ring.wait_full();
        const uint32_t slot = shared_ + ring.slot * plan.slot_bytes;
#pragma unroll 1
        for (int block = warp; block < kN / kRsNhwcChannels; block += kSm90TurnWarps) {
          turn_block(slot + block * kBlockBytes, lane);
        }
        fence_to_async_proxy();
        __syncwarp();
        if (lane == 0) barrier_arrive(turned_ + 8 * ring.slot);
        ring.advance();
      }
    }
  }

  // From rows of pixels to rows of channels. A lane takes 4 channels of 4 pixels, twice.
  __device__ __forceinline__ static void turn_block(uint32_t block, int lane) {
    const int piece = lane / 8 * 2 + lane % 2, quad = lane % 8 / 2;  // of 4 channels, of 4 pixels
    uint4 v[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = rs_nhwc_pixel(quad, j) + 16 * half;
        v[half][j] = load_shared_16(block + swizzled(row * kSm90RowBytes + piece * 16));
      }
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t to = block + swizzled((4 * piece + i) * kSm90RowBytes + (quad + 4 * half) * 16);
        const uint4 turned = make_uint4((&v[half][0].x)[i], (&v[half][1].x)[i], (&v[half][2].x)[i], (&v[half][3].x)[i]);
        if constexpr (kParts == 1) {
          store_shared(to, turned);
        } else {
          const SplitFloat x = split_float(turned.x), y = split_float(turned.y), z = split_float(turned.z),
                           w = split_float(turned.w);
          store_shared(to, make_uint4(x.high, y.high, z.high, w.high));
          store_shared(to + kN / kRsNhwcChannels * kBlockBytes, make_uint4(x.low, y.low, z.low, w.low));
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(int warpgroup, int warp) const {
    Ring ring = ring_;
    for (unsigned index = blockIdx.x; index < plan.items; index += gridDim.x) {
      multiply_item(find_weight_item(p, index), ring, warpgroup, warp);
    }
  }

  // Where a lane finds operand A of one tap: the tap's first row, and in a row the lane's first channel.
  struct Place {
    int row[kTaps];
    uint32_t piece, word;  // number of 16 bytes, bytes in those
  };
  // Loads channels c and c + 8 of pixels number t and t + 4 of instruction k (t: lane % 4).
  __device__ __forceinline__ void gather(uint32_t (&a)[4], uint32_t y, int row, const Place& place, int k,
                                         int lane) const {
    const int of_octet = row + plan.octet_row[k];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int of_pixel = of_octet + rs_nhwc_pixel(2 * (k % 2) + i, lane % 4) % 8;
      const uint32_t at = y + of_pixel * kSm90RowBytes + ((place.piece ^ (of_pixel & 7)) << 4) + place.word;
      a[2 * i] = load_shared(at);
      a[2 * i + 1] = load_shared(at ^ 32);  // 8 channels on
    }
  }
  __device__ __forceinline__ uint64_t operand_b(int slot, int k) const {
    return tile_descriptor(shared_ + slot * plan.slot_bytes + k * 32, 8 * kSm90RowBytes);
  }

  __device__ __forceinline__ void multiply_item(const WeightItem& item, Ring& ring, int warpgroup, int warp) const {
    const int lane = threadIdx.x % 32;
    // A warp's taps are plan.tap_fold apart; warps that share a tap take 16 channels each.
    const int tap_warps = 4 / plan.tap_fold;
    const int first_of_warpgroup = item.tap_group * plan.block_taps +
                                   (plan.spread ? 0 : warpgroup * kTaps * plan.tap_fold);
    if (plan.taps[first_of_warpgroup].tap < 0) return pass(item, ring, lane);
    const int first = first_of_warpgroup + warp / tap_warps;
    const int channel = (plan.spread ? kWgradTileM * warpgroup : 0) + 16 * (warp % tap_warps);
    const int chunk = channel / kRsNhwcChannels, of_chunk = channel % kRsNhwcChannels + lane / 4;
    Place place;
    place.piece = of_chunk / 4;
    place.word = of_chunk % 4 * 4;
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      place.row[t] = plan.taps[first + t * plan.tap_fold].row + chunk * (plan.y_box_bytes / kSm90RowBytes);
    }
    float acc[kTaps][kN / 2];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[t][i] = 0;
      wgmma_pin(acc[t]);
    }
    if constexpr (kParts == 1) {
      add(acc, item, ring, place, lane);
    } else {
      add_split(acc, item, ring, place, lane);
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) wgmma_pin(acc[t]);
    store(acc, item, channel + lane / 4, first, lane);
  }

  // The steps of a work tile in which this warpgroup has no tap.
  __device__ __forceinline__ static void pass(const WeightItem& item, Ring& ring, int lane) {
    for (int step = 0; step < item.steps; ++step) {
      ring.wait_full();
      __syncwarp();  // every lane has seen this round before lane 0 lets the next begin
      if (lane == 0) ring.release(ring.slot);
      ring.advance();
    }
  }

  __device__ __forceinline__ void await(const Ring& ring) const {
    ring.wait_full();
    barrier_wait(turned_ + 8 * ring.slot, ring.parity);
  }

  // All steps of a work tile. With two sets of operands, gathers one while tensor cores work on the other.
  __device__ __forceinline__ void add(float (&acc)[kTaps][kN / 2], const WeightItem& item, Ring& ring,
                                      const Place& place, int lane) const {
    constexpr int kSets = Config::kOperandSets;
    uint32_t a[kSets][kTaps][4];
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < item.steps; ++step) {
      await(ring);
      const uint32_t y = shared_ + ring.slot * plan.slot_bytes + plan.y_boxes_at;
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
#pragma unroll
        for (int t = 0; t < kTaps; ++t) gather(a[k % kSets][t], y, place.row[t], place, k, lane);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < kTaps; ++t) Product::issue(acc[t], a[k % kSets][t], operand_b(ring.slot, k), 1);
        wgmma_commit();
        wgmma_wait<kSets - 1>();  // earlier instructions are done, their operands free
        if (k == 0 && step > 0 && lane == 0) ring.release(before);
      }
      before = ring.slot;
      ring.advance();
    }
    wgmma_wait<0>();
    if (lane == 0) ring.release(before);
  }

  // The same in tf32x3. Tensor cores truncate their running sum, so each step starts from zero and is added in float32.
  // Inf and NaN come from the product of the high parts alone, where the operands are whole.
  __device__ __forceinline__ void add_split(float (&total)[kTaps][kN / 2], const WeightItem& item, Ring& ring,
                                            const Place& place, int lane) const {
    constexpr uint64_t kLow = kN / kRsNhwcChannels * kBlockBytes >> 4;
    float low[kN / 2], high[kN / 2];
#pragma unroll 1
    for (int step = 0; step < item.steps; ++step) {
      await(ring);
      const uint32_t y = shared_ + ring.slot * plan.slot_bytes + plan.y_boxes_at;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        uint32_t a_high[2][4], a_low[2][4];
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          uint32_t whole[4];
          gather(whole, y, place.row[t], place, k, lane);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const SplitFloat value = split_float(whole[i]);
            a_high[k % 2][i] = value.high;
            a_low[k % 2][i] = value.low;
          }
          const uint64_t b = operand_b(ring.slot, k);
          wgmma_fence();
          Product::issue(low, a_high[k % 2], b + kLow, k > 0);
          Product::issue(low, a_low[k % 2], b, 1);
          Product::issue(high, a_high[k % 2], b, k > 0);
          wgmma_commit();
          wgmma_wait<1>();
        }
        wgmma_wait<0>();
        wgmma_pin(low);
        wgmma_pin(high);
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) total[t][i] += (is_finite(low[i]) ? low[i] : 0.0f) + high[i];
      }
      if (lane == 0) ring.release(ring.slot);
      ring.advance();
    }
  }

  // A lane has channels m and m + 1 of every 8, for n = channel and n + 8; eight lanes have adjacent channels n.
  __device__ __forceinline__ void store(const float (&acc)[kTaps][kN / 2], const WeightItem& item, int channel,
                                        int first, int lane) const {
    const int n = item.n + channel, m = item.m + 2 * (lane % 4), taps = p.kernel_h * p.kernel_w;
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const int tap = plan.taps[first + t * plan.tap_fold].tap;
      if (tap < 0) break;
      if (p.partial != nullptr) {
        const int64_t index = static_cast<int64_t>(item.split * p.groups + item.group) * taps + tap;
        float* const to = p.partial + (index * plan.padded_m + m) * plan.padded_n + n;
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) {
          float* const at = to + (i / 4 * 8 + i % 2) * plan.padded_n + i % 4 / 2 * 8;
          *at = p.adds ? *at + acc[t][i] : acc[t][i];
        }
      } else {
        const int kh = tap / p.kernel_w;
        float* const to = p.result + static_cast<int64_t>(item.group) * p.channels_m * p.result_m + kh * p.result_h +
                          (tap - kh * p.kernel_w) * p.result_w;
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) {
          const int of_m = m + i / 4 * 8 + i % 2, of_n = n + i % 4 / 2 * 8;
          if (of_m < p.channels_m && of_n < p.channels_n) to[of_m * p.result_m + of_n * p.result_n] = acc[t][i];
        }
      }
    }
  }

  const WgradRsNhwcParams& p;
  const WgradRsNhwcPlan& plan;
  uint32_t shared_, turned_;  // turned_: barriers of stages, passed once the input is transposed
  Ring ring_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    wgrad_rs_nhwc_kernel(const __grid_constant__ WgradRsNhwcParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  WgradRsNhwcBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::sm90
