// wgrad_sm90's ss, grad_weight of 16-bit types in channels_last by wgmma, both operands in shared memory:
//
//   gw[m, n, kh, kw] = sum over images and pixels i of  x[m, i] * gy[n, i * s - p + k * d]
//
//   operand A   64 input channels m of 16 pixels, MN-major: a row of 128 bytes is 64 channels of a pixel
//   operand B   the same pixels of a *run*: up to four blocks of 64 output channels n, each as seen from one tap
//   K           16 pixels an instruction, 64 to 256 a stage
//
// In a source phase of grad_output (core/taps.h) a tap is a shift by rows. The blocks of a run are a uniform distance
// apart in shared memory, so one instruction takes them all. One thread produces by TMA the pixels of the input and the
// halos of the source phases, zeros outside the image. Two or three warpgroups multiply.
//
// Blocks are persistent: TMA loads the next work tile while the sums of one are stored. Splits, slices of the images,
// and results with adjacent taps go through partial sums; lowerings/split_k_reduce.cuh adds them in order.
#pragma once

#include "device/wgmma_sm90.cuh"
#include "families/wgrad_sm90/load_tma_nhwc.cuh"
#include "families/wgrad_sm90/plan_ss.h"

namespace deconv::sm90 {

template <class T>
using WeightTensorParams = WeightCopiesParams<T, WgradSsPlan>;

template <class T, int kWarpgroups_, int kFirst_, int kSecond_>
struct WeightTensorConfig {
  using Element = T;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kFirst = kFirst_, kSecond = kSecond_;  // blocks of 64 columns
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
};

template <class Config>
class WeightTensorBlock {
  using T = typename Config::Element;
  static constexpr int kFirst = Config::kFirst, kSecond = Config::kSecond, kRuns = kSecond > 0 ? 2 : 1;
  static constexpr int kMultiplyWarps = 4 * Config::kWarpgroups;
  static constexpr int kAtOnce = kWgradAtOnce;
  static constexpr int kSecondCount = kSecond > 0 ? 32 * kSecond : 1;

 public:
  __device__ __forceinline__ WeightTensorBlock(const WeightTensorParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)) {
    const uint32_t barriers = shared_ + plan.barriers_at;
    ring_ = {barriers, barriers + 8 * plan.slots, plan.slots};
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.slots; ++i) {
        barrier_init(ring_.full + 8 * i, 1);
        barrier_init(ring_.empty + 8 * i, kMultiplyWarps);
      }
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that all lanes agree
    if (warp < kMultiplyWarps) {
      take_registers<Config::kWarpgroups == 3 ? 160 : 240>();
      multiply(warp / 4, warp % 4);
    } else {
      leave_registers<24>();
      if (warp == kMultiplyWarps && threadIdx.x % 32 == 0) bring();
    }
  }

 private:
  using Item = WeightItem;

  __device__ __forceinline__ void bring() const {
    await_predecessors();  // a kernel before may write the operands
    Ring ring = ring_;
    for (unsigned index = blockIdx.x; index < plan.items; index += gridDim.x) {
      bring_weight_item(p, find_weight_item(p, index), ring, shared_);
    }
    start_dependents();
  }

  __device__ __forceinline__ static uint64_t join(uint32_t low, uint32_t high) {
    return static_cast<uint64_t>(high) << 32 | low;
  }
  // The lower half of a run's descriptor, in the first slot.
  __device__ __forceinline__ uint32_t operand_b(const WgradRun& run) const {
    const uint32_t address = shared_ + plan.y_boxes_at + run.row * kSm90RowBytes;
    return static_cast<uint32_t>(tile_descriptor_mn(address, run.row_step * kSm90RowBytes));
  }

  __device__ __forceinline__ void multiply(int warpgroup, int warp) const {
    Ring ring = ring_;
    for (unsigned index = blockIdx.x; index < plan.items; index += gridDim.x) {
      multiply_item(find_weight_item(p, index), ring, warpgroup, warp);
    }
  }

  __device__ __forceinline__ void multiply_item(const Item& item, Ring& ring, int warpgroup, int warp) const {
    const int lane = threadIdx.x % 32;
    const bool of_channels = plan.share == WgradShare::kInputChannels;
    const int x_box = of_channels ? warpgroup : 0;
    const WgradRun* runs = &plan.runs[item.tap_group * plan.group_runs + (of_channels ? 0 : warpgroup * kRuns)];
    const uint64_t descriptor_a = tile_descriptor_mn(shared_ + x_box * plan.x_box_bytes, 0);
    const uint32_t a_high = static_cast<uint32_t>(descriptor_a >> 32);
    const uint32_t b_high = static_cast<uint32_t>(tile_descriptor_mn(0, 0, plan.octet_step * kSm90RowBytes) >> 32);
    const uint32_t a_first = static_cast<uint32_t>(descriptor_a);
    const uint32_t b_first = operand_b(runs[0]), b_second = operand_b(runs[kRuns - 1]);
    float first[32 * kFirst], second[kSecondCount];
#pragma unroll
    for (int i = 0; i < 32 * kFirst; ++i) first[i] = 0;
#pragma unroll
    for (int i = 0; i < kSecondCount; ++i) second[i] = 0;
    wgmma_pin(first);
    wgmma_pin(second);
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < item.steps; ++step) {
      ring.wait_full();
      const uint32_t slot = ring.slot * plan.slot_bytes >> 4;
#pragma unroll 1
      for (int begin = 0; begin < plan.instructions; begin += kAtOnce) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int k = begin + i;
          const uint32_t row = slot + (plan.instruction_row[k] * kSm90RowBytes >> 4);
          const uint64_t a = join(a_first + slot + (k * 16 * kSm90RowBytes >> 4), a_high);
          WgmmaMajorN<T, 64 * kFirst>::issue(first, a, join(b_first + row, b_high), 1);
          if constexpr (kSecond > 0) WgmmaMajorN<T, 64 * kSecond>::issue(second, a, join(b_second + row, b_high), 1);
        }
        wgmma_commit();
        wgmma_wait<1>();  // earlier instructions are done, so the slot before is read
        if (begin == 0 && step > 0 && lane == 0) ring.release(before);
      }
      before = ring.slot;
      ring.advance();
    }
    wgmma_wait<0>();
    if (lane == 0) ring.release(before);
    wgmma_pin(first);
    wgmma_pin(second);
    const int m = x_box * kWgradChannels + 16 * warp + lane / 4;
    store<kFirst>(first, item, runs[0], m, lane);
    if constexpr (kSecond > 0) store<kSecond>(second, item, runs[1], m, lane);
  }

  // Where the columns of one input channel and tap go; column n is output channel first_n + n.
  struct Row {
    float* partial;
    T* result;  // one of the two is null
    int first_n, channels;

    __device__ __forceinline__ bool takes(int n) const { return first_n + n >= 0 && first_n + n < channels; }
  };
  __device__ __forceinline__ Row find_row(const Item& item, int m, int tap) const {
    const int inside = plan.fold == 1 ? 0 : m / p.channels_m;  // the group among those of this work tile
    const int group = item.group + inside, channel = item.m + m - inside * p.channels_m;
    Row row{nullptr, nullptr, item.n - inside * p.channels_n, 0};
    if (inside >= plan.fold || group >= p.groups) return row;
    if (p.partial != nullptr) {
      const int64_t index = static_cast<int64_t>(item.split * p.groups + group) * p.kernel_h * p.kernel_w + tap;
      row.partial = p.partial + (index * plan.padded_m + channel) * plan.padded_n;
      row.channels = plan.padded_n;
    } else if (channel < p.channels_m) {
      const int kh = tap / p.kernel_w;
      row.result = p.result + (static_cast<int64_t>(group) * p.channels_m + channel) * p.result_m + kh * p.result_h +
                   (tap - kh * p.kernel_w) * p.result_w;
      row.channels = p.channels_n;
    }
    return row;
  }

  // A lane has columns 2 * (lane % 4) and the next one of every 8, for rows m and m + 8. The four lanes of a row
  // exchange them, so that each stores 16 bytes.
  template <int kBlocks>
  __device__ __forceinline__ void store(const float (&acc)[32 * kBlocks], const Item& item, const WgradRun& run, int m,
                                        int lane) const {
#pragma unroll
    for (int t = 0; t < kBlocks; ++t) {
      if (t >= run.count) break;
      const int n = (run.chunk + t * run.chunk_step) * kWgradChannels;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Row row = find_row(item, m + 8 * half, run.tap + t * run.tap_step);
        if (p.partial != nullptr) {
#pragma unroll
          for (int j = 0; j < 8; j += 2) {
            const int i = 32 * t + 4 * j + 2 * half;
            store_sums(row, n + 8 * j, acc[i], acc[i + 1], acc[i + 4], acc[i + 5], lane);
          }
        } else {
#pragma unroll
          for (int j = 0; j < 8; j += 4) {
            const int i = 32 * t + 4 * j + 2 * half;
            store_results(row, n + 8 * j, round_pair(acc[i], acc[i + 1]), round_pair(acc[i + 4], acc[i + 5]),
                          round_pair(acc[i + 8], acc[i + 9]), round_pair(acc[i + 12], acc[i + 13]), lane);
          }
        }
      }
    }
  }

  // 16 columns from n on, in float32: a lane has two of the first 8 (x0, y0) and two of the next 8 (x1, y1).
  __device__ __forceinline__ void store_sums(const Row& row, int n, float x0, float y0, float x1, float y1,
                                             int lane) const {
    const bool odd = lane % 2 != 0;
    const float x = __shfl_xor_sync(~0u, odd ? x0 : x1, 1), y = __shfl_xor_sync(~0u, odd ? y0 : y1, 1);
    float4 sums = odd ? make_float4(x, y, x1, y1) : make_float4(x0, y0, x, y);
    const int column = n + (odd ? 8 : 0) + lane % 4 / 2 * 4;
    if (!row.takes(column)) return;
    auto* const partial = reinterpret_cast<float4*>(row.partial + row.first_n + column);
    if (p.adds) {
      const float4 before = *partial;
      sums = make_float4(sums.x + before.x, sums.y + before.y, sums.z + before.z, sums.w + before.w);
    }
    *partial = sums;
  }

  __device__ __forceinline__ static uint32_t round_pair(float x, float y) {
    const Pack<T, 2> rounded{{narrow<T>(x), narrow<T>(y)}};
    return reinterpret_cast<const uint32_t&>(rounded);
  }
  // 32 columns from n on, rounded: a lane has a pair of each 8.
  __device__ __forceinline__ void store_results(const Row& row, int n, uint32_t pair0, uint32_t pair1, uint32_t pair2,
                                                uint32_t pair3, int lane) const {
    const bool odd = lane % 2 != 0, high = lane % 4 >= 2;
    const uint32_t from_odd0 = __shfl_xor_sync(~0u, odd ? pair0 : pair1, 1);
    const uint32_t from_odd1 = __shfl_xor_sync(~0u, odd ? pair2 : pair3, 1);
    const uint32_t a = odd ? from_odd0 : pair0, b = odd ? pair1 : from_odd0;
    const uint32_t c = odd ? from_odd1 : pair2, d = odd ? pair3 : from_odd1;
    const uint32_t from_high0 = __shfl_xor_sync(~0u, high ? a : c, 2);
    const uint32_t from_high1 = __shfl_xor_sync(~0u, high ? b : d, 2);
    const uint4 words = high ? make_uint4(from_high0, from_high1, c, d) : make_uint4(a, b, from_high0, from_high1);
    const int column = n + 8 * (lane % 4);
    if (!row.takes(column)) return;
    T* const to = row.result + (row.first_n + column) * p.result_n;
    if (p.store_packs) {
      *reinterpret_cast<uint4*>(to) = words;
    } else {
      const auto& results = reinterpret_cast<const Pack<T, 8>&>(words);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (row.takes(column + i)) to[i * p.result_n] = results.value[i];
      }
    }
  }

  const WeightTensorParams<T>& p;
  const WgradSsPlan& plan;
  uint32_t shared_;
  Ring ring_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    wgrad_ss_kernel(const __grid_constant__ WeightTensorParams<typename Config::Element> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  WeightTensorBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::sm90
