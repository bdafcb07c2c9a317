// Hopper family, grad_weight on tensor cores:
//   gw[m, n, kh, kw] = sum over images and pixels i of  x[m, i] * gy[n, i * s - p + k * d].
//
// wgmma's operand A (64 output channels n) are pixels of grad_output in registers, gathered from a ring of its rows in
// shared memory wherever a tap finds them; B (input channels m) is a tile of the input; K are pixels. A warpgroup
// accumulates plan.tile.taps taps of one tile of n (plan.fold times as many, each on fewer of the 64 rows, where there
// are few n); all warpgroups of a block share the input, and either grad_output (each takes other taps) or the taps
// (each takes other n). A block walks down the rows of its strips, so that a row of grad_output is loaded once for all
// taps. The last warpgroup, or the last two, bring the operands (weight_source.cuh).
//
// Splits write partial sums; add_splits.cuh adds them in order, so the result never changes from run to run.
#pragma once

#include "weight_source.cuh"
#include "wgmma.cuh"

namespace deconv::hopper {

template <class T, int kWarpgroups_, int kTaps_, int kN_, int kParts_, bool kAdjacent_>
struct WeightConfig {
  using Element = T;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kTaps = kTaps_;
  static constexpr int kN = kN_;
  static constexpr int kParts = kParts_;
  // The input's channels are adjacent: then pixels are its rows in shared memory, or, of float32, are turned there.
  static constexpr bool kAdjacent = kAdjacent_;
  static constexpr bool kChannels = kAdjacent && sizeof(T) == 2;
  static constexpr HopperWeightTile kTile{kWarpgroups, kTaps, kN};
  static constexpr int kStepWarps = hopper_weight_step_warps(sizeof(T), kParts, kTile);
  static constexpr int kThreads = 128 * (kWarpgroups + kStepWarps);
  // Registers of a thread that multiplies and of one that brings.
  static constexpr int kMultiplyRegisters = kWarpgroups == 3 ? 152 : kStepWarps == 2 ? 200 : 216;
  static constexpr int kBringRegisters = kWarpgroups == 3 || kStepWarps == 2 ? 56 : 72;
  static_assert(kParts == 1 || sizeof(T) == 4, "only float32 is split");
};

template <class Config>
class WeightBlock {
  using T = typename Config::Element;
  static constexpr int kTaps = Config::kTaps, kN = Config::kN, kParts = Config::kParts;
  static constexpr int kTurns = kHopperWeightTurns;
  static constexpr int kMultiplyWarps = 4 * Config::kWarpgroups;
  static constexpr int kOctets = sizeof(T) == 4 ? 1 : 2;  // of pixels in one instruction
  using Product = MmaFromRegisters<T, kN, Config::kChannels>;

 public:
  __device__ __forceinline__ WeightBlock(const WeightParams<T>& params, unsigned char* shared)
      : p(params),
        plan(params.plan),
        tile_(find_weight_tile(params)),
        rows_(find_rows(params, tile_)),
        shared_(shared_address(shared)),
        full_(shared_ + plan.barriers_at),
        empty_(full_ + 8 * plan.x_slots) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.x_slots; ++i) {
        barrier_init(full_ + 8 * i, 32 * Config::kStepWarps);
        barrier_init(empty_ + 8 * i, 32 * kMultiplyWarps);
      }
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // known to be the same in all lanes
    if (warp < kMultiplyWarps) {
      take_registers<Config::kMultiplyRegisters>();
      multiply(warp / 4, warp % 4);
    } else {
      leave_registers<Config::kBringRegisters>();
      bring(warp - kMultiplyWarps, threadIdx.x % 32);
    }
  }

 private:
  // The steps of this block and where their rows of grad_output lie in the ring; both sides walk the same way.
  struct Walk {
    int left;  // steps
    int row;  // of the input
    int slot = 0, parity = 0;  // of the input's ring
    int first = 0;  // the ring's row with the step's first row of grad_output
    bool fresh = true;  // a strip begins: no row is there yet
  };
  __device__ __forceinline__ Walk begin() const {
    Walk walk;
    walk.left = static_cast<int>(tile_.end - tile_.begin);
    walk.row = find_step(p, static_cast<int>(tile_.begin)).row;
    return walk;
  }
  __device__ __forceinline__ void next(Walk& walk) const {
    --walk.left;
    walk.fresh = ++walk.row == p.height;
    if (walk.fresh) walk.row = 0;
    walk.first += walk.fresh ? rows_.span : rows_.advance;
    if (walk.first >= plan.y_rows) walk.first -= plan.y_rows;
    if (++walk.slot == plan.x_slots) {
      walk.slot = 0;
      walk.parity ^= 1;
    }
  }

  // Warps bring steps in turn: while some wait for their loads to land, others ask for theirs. No more turns than
  // slots: of a slot's barrier nobody may wait for a round before the last.
  __device__ __forceinline__ void bring(int warp, int lane) const {
    const WeightSource<T, kN, kParts, Config::kAdjacent, Config::kStepWarps> source(p, tile_, rows_, warp / kTurns,
                                                                                    lane);
    const int turns = min(kTurns, plan.x_slots);
    int step = static_cast<int>(tile_.begin), turn = 0;
    for (Walk walk = begin(); walk.left > 0; next(walk), ++step, turn = turn + 1 == turns ? 0 : turn + 1) {
      if (turn != warp % kTurns) continue;
      const WeightStep at = find_step(p, step);
      const uint32_t input = shared_ + walk.slot * plan.x_slot_bytes;
      const int kept = walk.fresh ? 0 : rows_.span - rows_.advance;
      int slot = walk.first + kept;
      if (slot >= plan.y_rows) slot -= plan.y_rows;
      barrier_wait(empty_ + 8 * walk.slot, walk.parity ^ 1);
      source.load_rows(at, kept, slot, shared_ + plan.y_at);
      source.load_input(at, input);
      __pipeline_commit();
      __pipeline_wait_prior(0);
      source.finish_input(at, input);
      fence_to_async_proxy();
      barrier_arrive(full_ + 8 * walk.slot);  // each lane for what it brought
    }
  }

  // Operand A of one tap: this lane's words, whose first lies at `at`; `octet`: bytes to the octet(s) of pixels.
  __device__ __forceinline__ void gather(uint32_t (&a)[4], uint32_t at, const int (&octet)[kOctets], bool pairs) const {
    if constexpr (sizeof(T) == 4) {
      const uint32_t first = at + octet[0], next = first + 4 * p.pixel_pitch;
      a[0] = load_shared(first);
      a[1] = load_shared(first + 8 * plan.y_channel_pitch);
      a[2] = load_shared(next);
      a[3] = load_shared(next + 8 * plan.y_channel_pitch);
    } else if constexpr (Config::kChannels) {
      const uint32_t row = at + ((threadIdx.x & 16) != 0 ? octet[1] : octet[0]);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                   : "r"(row)
                   : "memory");
    } else if (pairs) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = load_shared(at + octet[i / 2] + i % 2 * 8 * plan.y_channel_pitch);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t from = at + octet[i / 2] + i % 2 * 8 * plan.y_channel_pitch;
        a[i] = load_short(from) | load_short(from + 2 * p.stride_w) << 16;
      }
    }
  }
  __device__ __forceinline__ static uint32_t load_short(uint32_t address) {
    unsigned short value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
    return value;
  }

  // From a staged row to this lane's first word of operand A, taps aside.
  __device__ __forceinline__ int lane_offset(int channel, int lane) const {
    if constexpr (Config::kChannels) {  // the address of a row of ldmatrix
      return (channel + (lane & 8)) * plan.y_channel_pitch + lane % 8 * p.pixel_pitch;
    }
    const int pixel = sizeof(T) == 4 ? lane % 4 : 2 * (lane % 4);
    return (channel + lane / 4) * plan.y_channel_pitch + pixel * p.pixel_pitch;
  }

  __device__ __forceinline__ void multiply(int warpgroup, int warp) {
    const int lane = threadIdx.x % 32, taps = p.kernel_h * p.kernel_w;
    // The taps of a warp are plan.fold apart; warps that share a tap take 16 channels each.
    const int tap_warps = 4 / plan.fold;
    const int first_tap = tile_.first_tap + (plan.spread ? 0 : warpgroup * kTaps * plan.fold) + warp / tap_warps;
    const int channel = (plan.spread ? kHopperWeightTileM * warpgroup : 0) + 16 * (warp % tap_warps);
    const int of_lane = lane_offset(channel, lane);
    int tap_row[kTaps], tap_at[kTaps];  // of a step's rows; bytes from such a row to this lane's first word
    bool pairs[kTaps];  // both pixels of a word lie in one
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const int tap = min(first_tap + t * plan.fold, taps - 1);  // those past the last compute what nobody stores
      const int kh = tap / p.kernel_w, shift = (tap - kh * p.kernel_w) * p.dilation_w;
      const int column = plan.channels ? shift % p.stride_w * plan.y_phase_columns + shift / p.stride_w
                                       : plan.y_lead + shift;
      tap_row[t] = (max(kh, rows_.first_kh) - rows_.first_kh) * p.dilation_h;
      tap_at[t] = plan.y_at + column * plan.y_column_pitch + of_lane;
      pairs[t] = p.stride_w == 1 && column % 2 == 0;
    }
    const uint64_t x_base = Config::kChannels ? tile_descriptor_mn(shared_, plan.x_rows_bytes)
                                              : tile_descriptor(shared_, 8 * kHopperRowBytes);
    float acc[kTaps][kN / 2];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[t][i] = 0;
      mma_pin(acc[t]);
    }
    for (Walk walk = begin(); walk.left > 0; next(walk)) {
      barrier_wait(full_ + 8 * walk.slot, walk.parity);
      const uint64_t x = x_base + (walk.slot * plan.x_slot_bytes >> 4);
      uint32_t at[kTaps];
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        int row = walk.first + tap_row[t];
        if (row >= plan.y_rows) row -= plan.y_rows;
        at[t] = shared_ + tap_at[t] + row * plan.y_row_bytes;
      }
      if constexpr (kParts == 1) {
        add(acc, at, pairs, x);
      } else {
        add_split(acc, at, x);
      }
      barrier_arrive(empty_ + 8 * walk.slot);  // each lane for what it read
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) mma_pin(acc[t]);
    store(acc, channel, lane, first_tap, taps);
  }

  // Descriptor of the input's pixels of one instruction.
  __device__ __forceinline__ uint64_t operand(uint64_t x, int k) const {
    if constexpr (Config::kChannels) return x + (k * 16 * kHopperRowBytes >> 4);
    return x + (k / 4 * plan.x_rows_bytes + k % 4 * 32 >> 4);
  }
  __device__ __forceinline__ void octets_of(int (&octet)[kOctets], int k) const {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) octet[i] = p.octet_at[kOctets * k + i];
  }

  // Operands A of all taps for one instruction each; float32 rounded to TF32.
  __device__ __forceinline__ void gather_taps(uint32_t (&a)[kTaps][4], const uint32_t (&at)[kTaps],
                                              const bool (&pairs)[kTaps], int k) const {
    int octet[kOctets];
    octets_of(octet, k);
#pragma unroll
    for (int t = 0; t < kTaps; ++t) gather(a[t], at[t], octet, pairs[t]);
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[t][i] = operand_tf32(a[t][i]);
      }
    }
  }

  __device__ __forceinline__ void issue_taps(float (&acc)[kTaps][kN / 2], const uint32_t (&a)[kTaps][4],
                                             uint64_t operand_b) const {
    mma_fence();
#pragma unroll
    for (int t = 0; t < kTaps; ++t) Product::issue(acc[t], a[t], operand_b, 1);
    mma_commit();
  }

  // One step. While the tensor cores work on one set of operands, the next is gathered.
  __device__ __forceinline__ void add(float (&acc)[kTaps][kN / 2], const uint32_t (&at)[kTaps],
                                      const bool (&pairs)[kTaps], uint64_t x) const {
    const int count = plan.octets / kOctets;
    uint32_t even[kTaps][4], odd[kTaps][4];
    gather_taps(even, at, pairs, 0);
#pragma unroll 1
    for (int k = 0; k + 1 < count; k += 2) {
      issue_taps(acc, even, operand(x, k));
      mma_wait<1>();
      gather_taps(odd, at, pairs, k + 1);
      issue_taps(acc, odd, operand(x, k + 1));
      mma_wait<1>();
      gather_taps(even, at, pairs, min(k + 2, count - 1));
    }
    if (count % 2 == 1) issue_taps(acc, even, operand(x, count - 1));
    mma_wait<0>();
  }

  // Operand A of one tap in two parts.
  struct SplitOperand {
    uint32_t high[4], low[4];
  };
  __device__ __forceinline__ void gather_split(SplitOperand& a, uint32_t at, int k) const {
    int octet[kOctets];
    octets_of(octet, k);
    gather(a.high, at, octet, false);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const SplitFloat value = split_float(a.high[i]);
      a.high[i] = value.high;
      a.low[i] = value.low;
    }
  }
  __device__ __forceinline__ void issue_split(float (&low)[kN / 2], float (&high)[kN / 2], const SplitOperand& a,
                                              uint64_t operand_b) const {
    mma_fence();
    Product::issue(low, a.high, operand_b + (plan.x_slot_bytes / 2 >> 4), 1);
    Product::issue(low, a.low, operand_b, 1);
    Product::issue(high, a.high, operand_b, 1);
    mma_commit();
  }

  // One step of float32 as three TF32 products. Tensor cores cut their running sum off instead of rounding it, so each
  // step starts from zero and is added here. Inf and NaN come from the product of the high parts alone, where the
  // operands still are whole.
  __device__ __forceinline__ void add_split(float (&total)[kTaps][kN / 2], const uint32_t (&at)[kTaps],
                                            uint64_t x) const {
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      float low[kN / 2], high[kN / 2];
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) low[i] = high[i] = 0;
      mma_pin(low);
      mma_pin(high);
      SplitOperand even, odd;
      gather_split(even, at[t], 0);
#pragma unroll 1
      for (int k = 0; k + 1 < plan.octets; k += 2) {
        issue_split(low, high, even, operand(x, k));
        mma_wait<1>();
        gather_split(odd, at[t], k + 1);
        issue_split(low, high, odd, operand(x, k + 1));
        mma_wait<1>();
        gather_split(even, at[t], min(k + 2, plan.octets - 1));
      }
      if (plan.octets % 2 == 1) issue_split(low, high, even, operand(x, plan.octets - 1));
      mma_wait<0>();
      mma_pin(low);
      mma_pin(high);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) total[t][i] += (is_finite(low[i]) ? low[i] : 0.0f) + high[i];
    }
  }

  // A lane holds the neighbouring channels m, m + 1 of n = channel + lane / 4 and n + 8, every 8 channels m.
  __device__ __forceinline__ void store(float (&acc)[kTaps][kN / 2], int channel, int lane, int first_tap,
                                        int taps) const {
    const int n = tile_.n + channel + lane / 4;
    const int m = tile_.m + 2 * (lane % 4);
    const int padded_m = plan.blocks_m * kN, padded_n = plan.blocks_n * plan.y_channels;
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const int tap = first_tap + t * plan.fold;
      if (tap >= taps) break;
      if (p.partial != nullptr) {
        const int64_t row = (static_cast<int64_t>(tile_.split * p.groups + tile_.group) * taps + tap) * padded_n + n;
        float* const to = p.partial + row * padded_m + m;
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
          *reinterpret_cast<float2*>(to + 8 * j) = make_float2(acc[t][4 * j], acc[t][4 * j + 1]);
          *reinterpret_cast<float2*>(to + 8 * padded_m + 8 * j) = make_float2(acc[t][4 * j + 2], acc[t][4 * j + 3]);
        }
      } else {
        const int kh = tap / p.kernel_w;
        T* const to = p.result + static_cast<int64_t>(tile_.group) * p.channels_m * p.result_m + kh * p.result_h +
                      (tap - kh * p.kernel_w) * p.result_w;
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) {
          const int of_m = m + i / 4 * 8 + i % 2, of_n = n + i % 4 / 2 * 8;
          if (of_m < p.channels_m && of_n < p.channels_n) {
            to[of_m * p.result_m + of_n * p.result_n] = narrow<T>(acc[t][i]);
          }
        }
      }
    }
  }

  const WeightParams<T>& p;
  const HopperWeightPlan& plan;
  WeightTile tile_;
  RowWalk rows_;
  uint32_t shared_, full_, empty_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    weight_kernel(const __grid_constant__ WeightParams<typename Config::Element> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  WeightBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::hopper
