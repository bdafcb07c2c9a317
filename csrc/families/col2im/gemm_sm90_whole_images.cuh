// Hopper family, forward of contiguous layers that double the size of small images, kernels of 4 x 4, in 16 bits: all
// products of weights and pixels, and then their sums.
//
// The weights of four channels, all taps, are the 64 rows of operand A, the pixels of whole images operand B; both lie
// along rows as tensor copies bring them, so neither is rewritten before. A warp has all products of one channel, and
// in registers those that a row of the result adds up of two rows of pixels. These sums go through shared memory to
// another warp, which adds up columns while the next item is multiplied; images leave by bulk copies. The two blocks of
// a cluster have neighbouring channels, and each brings half of the pixels for both.
#pragma once

#include "core/divisor.h"
#include "device/mma_sm80.cuh"
#include "device/predicated_store.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/col2im/plan_whole_images.h"

namespace deconv::hopper {

template <class T>
struct FoldedParams {
  CUtensorMap source_map, weight_map;
  const T* bias;
  T* result;
  int64_t result_n, result_m;
  int batch, result_channels;  // of a group
  int height;  // of the source
  Divisor columns, m_tiles;
  Divisor result_rows;  // of an image
  HopperFoldedPlan plan;
};

template <class T, int kPixels, int kQuads>
class FoldedBlock {
  static constexpr int kMultiplyWarps = 4 * kFoldedWarpgroups;
  static constexpr int kWidth = 4 * kQuads;  // of an image
  static constexpr int kProducts = kFoldedChunk / 16;  // of a chunk
  static constexpr int kRowBytes = (kPixels + kFoldedPitch) * 4;  // of sums
  static constexpr int kBlockBytes = kFoldedChunk * 128;  // of a chunk of 64 rows of operand A, or 64 pixels
  static constexpr int kBiasAt = kPixels * 4 + 16;  // behind the first row of sums
  static constexpr int kOctets = kPixels / 8;
  static constexpr int kAtOnce = 8;  // rows of the result whose columns a lane adds up
  static constexpr int kMeetingBarriers = 1;  // one for each warpgroup
  static constexpr int kOtherRegisters = 88, kMultiplyRegisters = 208;  // of a thread

 public:
  __device__ __forceinline__ FoldedBlock(const FoldedParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)), rank_(cluster_rank()) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      const Ring stages = ring();
      for (int slot = 0; slot < plan.slots; ++slot) {
        barrier_init(stages.full + 8 * slot, 1);
        barrier_init(stages.empty + 8 * slot, kFoldedCluster * kMultiplyWarps);
      }
      for (int warp = 0; warp < kMultiplyWarps; ++warp) {
        for (int i = 0; i < kFoldedSumsBarriers; ++i) barrier_init(sums_of(warp).full[0] + 8 * i, 1);
      }
      barrier_init_fence();
    }
    cluster_sync();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // known to be the same in all lanes
    if (warp < kMultiplyWarps) {
      take_registers<kMultiplyRegisters>();
      multiply(warp / 4, warp % 4);
    } else {
      leave_registers<kOtherRegisters>();
      if (warp > kMultiplyWarps) {
        fold(warp - kMultiplyWarps - 1);
      } else if (threadIdx.x % 32 == 0) {
        bring();
      }
    }
    cluster_sync();  // the other one no longer writes here
  }

 private:
  __device__ __forceinline__ Ring ring() const {
    const uint32_t barriers = shared_ + plan.barriers_at;
    return {barriers, barriers + 8 * plan.slots, plan.slots};
  }
  __device__ __forceinline__ uint32_t stage_address(int slot) const { return shared_ + slot * plan.stage_bytes; }
  // Barriers of the sums of a warp that multiplies. Full has one for even rounds and one for odd ones, for a warp that
  // folds may ask for a round's before those of the round before are there; but not before those of two rounds ago: it
  // has met some of each warpgroup in the round before, and the warps of a warpgroup meet in each.
  struct Sums {
    uint32_t full[2], empty;

    __device__ __forceinline__ void wait_full(int round) const {
      barrier_wait(round % 2 != 0 ? full[1] : full[0], round / 2 & 1);
    }
    __device__ __forceinline__ void wait_empty(int round) const { barrier_wait(empty, (round & 1) ^ 1); }
    __device__ __forceinline__ void fill(int round) const { barrier_arrive(round % 2 != 0 ? full[1] : full[0]); }
  };
  __device__ __forceinline__ Sums sums_of(int warp) const {
    const uint32_t barriers = shared_ + plan.barriers_at + 16 * plan.slots + 8 * kFoldedSumsBarriers * warp;
    return {{barriers, barriers + 8}, barriers + 16};
  }
  __device__ __forceinline__ uint32_t sums_address(int warp) const {
    return shared_ + plan.sums_at + warp * kFoldedRows * kRowBytes;
  }

  // Items, of a cluster: a tile of pixels and a column.
  __device__ __forceinline__ int first_item() const { return blockIdx.x / kFoldedCluster; }
  __device__ __forceinline__ int item_step() const { return gridDim.x / kFoldedCluster; }
  struct Item {
    int image, group, channel;  // the first image; the block's first channel, of the group
  };
  __device__ __forceinline__ Item item_at(int index) const {
    const int tile = p.columns.quotient(index), column = index - tile * plan.columns;
    const int group = p.m_tiles.quotient(column), m_tile = column - group * plan.m_tiles;
    return {tile * plan.images, group, (m_tile * kFoldedCluster + rank_) * kFoldedChannels};
  }

  __device__ __forceinline__ void bring() const {
    Ring stages = ring();
    const int image_pieces = max(plan.image_pixels / 64, 1), piece_images = max(64 / plan.image_pixels, 1);
    for (int index = first_item(); index < plan.items; index += item_step()) {
      const Item item = item_at(index);
      for (int chunk = 0; chunk < plan.chunks; ++chunk, stages.advance()) {
        stages.wait_empty();
        const uint32_t stage = stage_address(stages.slot), full = stages.full_barrier();
        barrier_arrive_expecting(full, plan.stage_bytes);
#pragma unroll
        for (int i = 0; i < kFoldedWarpgroups; ++i) {
          copy_tensor(stage + i * kBlockBytes, &p.weight_map, full, (item.channel + 4 * i) * kFoldedTaps,
                      chunk * kFoldedChunk, item.group, 0);
        }
        for (int piece = rank_; piece < kPixels / 64; piece += kFoldedCluster) {
          const int image = piece / image_pieces;
          copy_tensor_to_all(stage + kFoldedWeightBytes + piece * kBlockBytes, &p.source_map, full,
                             (piece - image * image_pieces) * 64, chunk * kFoldedChunk, item.group,
                             item.image + image * piece_images, (1 << kFoldedCluster) - 1);
        }
      }
    }
  }

  // warp: of the warpgroup.
  __device__ __forceinline__ void multiply(int warpgroup, int warp) const {
    const int lane = threadIdx.x % 32, of_block = 4 * warpgroup + warp;
    const int run_bytes = plan.run * 2;
    const uint32_t meeting = octets_that_meet(lane);
    Ring stages = ring();
    const Sums sums = sums_of(of_block);
    int last = -1, round = 0;  // item
    float acc[kPixels / 2] = {};
    for (int index = first_item(); index < plan.items; index += item_step()) {
      const float bias = bias_of(channel_of(item_at(index), of_block));  // on its way meanwhile
      int held = -1;  // the slot whose products may be under way
      mma_pin(acc);
#pragma unroll 1
      for (int chunk = 0; chunk < plan.chunks; ++chunk) {
        stages.wait_full();
        const uint32_t stage = stage_address(stages.slot);
        const uint64_t weights = tile_descriptor_mn(stage + warpgroup * kBlockBytes, kBlockBytes);
        const uint64_t source = tile_descriptor_mn(stage + kFoldedWeightBytes, kFoldedChunk * run_bytes, 8 * run_bytes,
                                                   run_bytes);
        mma_fence();
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          MmaMajorN<T, kPixels>::issue(acc, weights + (k * 16 * 128 >> 4), source + (k * 16 * run_bytes >> 4),
                                       k > 0 || chunk > 0);
        }
        mma_commit();
        mma_wait<1>();
        release(stages, lane, held);
        held = stages.slot;
        stages.advance();
      }
      mma_wait<0>();
      release(stages, lane, held);
      mma_pin(acc);
      add_rows(lane, meeting, acc);
      named_barrier_sync(kMeetingBarriers + warpgroup, 128);
      sums.wait_empty(round);
      const uint32_t to = sums_address(of_block) + lane / 4 * kRowBytes + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
        const float left = lane < 16 ? acc[4 * j + 2] : acc[4 * j], right = lane < 16 ? acc[4 * j + 3] : acc[4 * j + 1];
        store_shared(to + j * 32, make_uint2(__float_as_uint(left), __float_as_uint(right)));
      }
      if (lane == 0) store_shared(sums_address(of_block) + kBiasAt, __float_as_uint(bias));
      __syncwarp();
      last = index;
      if (index + item_step() < plan.items && lane == 0) sums.fill(round);
      ++round;
    }
    if (last >= 0) {  // nothing else to do: the warp adds up the columns of its last item itself
      const Item item = item_at(last);
      const Channel channel = channel_of(item, of_block);
      T* const result = p.result + item.image * p.result_n + channel.m * p.result_m;
      const int rows = images_of(item, channel) * p.height;
      add_columns(sums_address(of_block), rows, lane, [&](bool exists, int row, int x, uint32_t pair) {
        const int image = p.result_rows.quotient(row), of_image = p.result_rows.remainder(row);
        store_if(exists, result + image * p.result_n + of_image * 2 * kWidth + 2 * x, pair);
      });
    }
  }

  // In both blocks, which write to each other's slots. Without branches.
  __device__ __forceinline__ void release(const Ring& stages, int lane, int slot) const {
    barrier_arrive_cluster_if(lane < kFoldedCluster && slot >= 0, stages.empty + 8 * max(slot, 0), lane);
  }

  // A row of the result adds up products of two rows of pixels, with a row of the kernel and with the one two further
  // on. A lane has both for some pixels: lanes from 16 on those of the kernel's odd rows, 1 and 3, which meet where row
  // 3 belongs to the pixels above; the others those of rows 0 and 2, which meet where row 0 belongs to the pixels
  // below. The sums are where the lower ones of 1 and 3, and the upper ones of 0 and 2 were.
  __device__ __forceinline__ static void add_rows(int lane, uint32_t meeting, float (&acc)[kPixels / 2]) {
    const bool odd = lane >= 16;
    if constexpr (kQuads % 2 == 0) {
      constexpr int kStep = kQuads / 2;  // octets of a row of pixels
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (j >= kStep && odd && (meeting >> j & 1)) acc[4 * j + e] += acc[4 * max(j - kStep, 0) + 2 + e];
          if (j + kStep < kOctets && !odd && (meeting >> j & 1)) {
            acc[4 * j + 2 + e] += acc[4 * min(j + kStep, kOctets - 1) + e];
          }
        }
      }
    } else {
      constexpr int kStep = kQuads / 2;
      const bool late = lane % 4 >= 2;  // has the second quad of an octet
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto upper = [&](int octet) { return octet >= 0 ? acc[4 * max(octet, 0) + 2 + e] : 0.0f; };
          const auto lower = [&](int octet) { return octet < kOctets ? acc[4 * min(octet, kOctets - 1) + e] : 0.0f; };
          const float for_odd = late ? upper(j - kStep - 1) : upper(j - kStep);
          const float for_even = late ? lower(j + kStep) : lower(j + kStep + 1);
          const float other = __shfl_xor_sync(~0u, odd ? for_odd : for_even, 2);
          if (odd && (meeting >> j & 1)) acc[4 * j + e] += other;
          if (!odd && (meeting >> j & 1)) acc[4 * j + 2 + e] += other;
        }
      }
    }
  }
  // Of the octets of a tile's pixels as bits: whether the lane's are in a row that is not an image's first, or last.
  __device__ __forceinline__ uint32_t octets_that_meet(int lane) const {
    uint32_t octets = 0;
    for (int j = 0; j < kOctets; ++j) {
      const int row = (2 * j + (lane % 4 >= 2 ? 1 : 0)) / kQuads + (lane < 16 ? 1 : 0);
      if (row % p.height != 0) octets |= 1u << j;
    }
    return octets;
  }

  // A channel of an item, by the warp that multiplies for it; m: of all groups.
  struct Channel {
    int m;
    bool exists;
  };
  __device__ __forceinline__ Channel channel_of(const Item& item, int warp) const {
    return {item.group * p.result_channels + item.channel + warp, item.channel + warp < p.result_channels};
  }
  __device__ __forceinline__ int images_of(const Item& item, const Channel& channel) const {
    return channel.exists ? min(plan.images, p.batch - item.image) : 0;
  }
  __device__ __forceinline__ float bias_of(const Channel& channel) const {
    return channel.exists && p.bias != nullptr ? widen(p.bias[channel.m]) : 0.0f;
  }

  // Sums of rows to the result, channel by channel, which these warps take in turns, but for a block's last item.
  __device__ __forceinline__ void fold(int warp) const {
    const int lane = threadIdx.x % 32;
    const int rounds = (plan.items - 1 - first_item()) / item_step(), turns = rounds * kFoldedChannels;
    int half = 0;  // of the warp's room for results
    for (int turn = warp; turn < turns; turn += kFoldedFoldWarps, half ^= 1) {
      const int round = turn / kFoldedChannels, of_block = turn % kFoldedChannels;
      const Item item = item_at(first_item() + round * item_step());
      const Channel channel = channel_of(item, of_block);
      const Sums sums = sums_of(of_block);
      sums.wait_full(round);
      __syncwarp();
      const int images = images_of(item, channel);
      const uint32_t results = shared_ + plan.results_at + (2 * warp + half) * plan.images * plan.plane_bytes;
      wait_copies_out_but<1>();  // the half has been read
      __syncwarp();
      add_columns(sums_address(of_block), images * p.height, lane, [&](bool exists, int row, int x, uint32_t pair) {
        store_shared_if(exists, results + (row * kWidth + x) * 4, pair);
      });
      fence_to_async_proxy();
      __syncwarp();
      if (lane == 0) barrier_arrive(sums.empty);
      for (int image = lane; image < images; image += 32) {
        copy_bulk_out(p.result + (item.image + image) * p.result_n + channel.m * p.result_m,
                      results + image * plan.plane_bytes, plan.plane_bytes);
      }
      commit_copies_out();
    }
    wait_copies_out();
  }

  // So many rows of pixels: store(exists, row, x, pair) for each pair of columns of the result. Even columns add up
  // tap 1 and tap 3 of the pixel before, odd ones tap 2 and tap 0 of the pixel behind.
  template <class Store>
  __device__ __forceinline__ static void add_columns(uint32_t sums, int rows, int lane, const Store& store) {
    const float bias = __uint_as_float(load_shared(sums + kBiasAt));
    constexpr int kRows = 32 / kWidth;  // of pixels, of a warp
    const int of_lane = lane / kWidth, x = lane % kWidth;
    const bool has_before = x > 0, has_behind = x + 1 < kWidth;
    if (of_lane >= kRows) return;
#pragma unroll 1
    for (int first = of_lane; first < rows; first += kRows * kAtOnce / 2) {
      float taps[kAtOnce][4];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {  // two rows of the result, of each row of pixels
        const int row = min(first + u / 2 * kRows, rows - 1);
        const uint32_t at = sums + (1 - u % 2) * 4 * kRowBytes + (row * kWidth + x) * 4;
#pragma unroll
        for (int tap = 0; tap < 4; ++tap) {
          const int column = tap == 0 ? 1 : tap == 3 ? -1 : 0;
          taps[u][tap] = __uint_as_float(load_shared(at + tap * kRowBytes + column * 4));
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int row = first + u / 2 * kRows;
        const float even = bias + (taps[u][1] + (has_before ? taps[u][3] : 0.0f));
        const float odd = bias + (taps[u][2] + (has_behind ? taps[u][0] : 0.0f));
        store(row < rows, 2 * row + u % 2, x, pack_pair<T>(even, odd));
      }
    }
  }

  const FoldedParams<T>& p;
  const HopperFoldedPlan& plan;
  uint32_t shared_;
  int rank_;
};

template <class T, int kPixels, int kQuads>
__global__ void __launch_bounds__(kFoldedThreads, 1) folded_kernel(const __grid_constant__ FoldedParams<T> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  FoldedBlock<T, kPixels, kQuads>(params, shared).run();
#endif
}

}  // namespace deconv::hopper
