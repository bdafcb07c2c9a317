// col2im of whole small images on sm_90: NCHW forward, kernel 4, stride 2, padding 1, in 16 bits.
//
//   operand A   64 rows: all 16 taps of four channels        operand B   pixels of whole images
//
// Both are MN-major as TMA loads them, so nothing is packed. A warp has all products of one channel. It adds those of
// two rows of pixels in registers (add_rows) and hands the sums through shared memory to another warp, which adds
// columns and stores (add_columns) while the next work tile is multiplied. The two blocks of a cluster have adjacent
// channels; each multicasts half of the pixels to both.
#pragma once

#include "core/divisor.h"
#include "device/memory.cuh"
#include "device/mma_sm80.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/col2im/plan_whole_images.h"

namespace deconv::sm90 {

template <class T>
struct WholeImagesParams {
  CUtensorMap source_map, weight_map;
  const T* bias;
  T* result;
  int64_t result_n, result_m;
  int batch, result_channels;  // of a group
  Divisor height;  // of the source
  Divisor columns, m_tiles;
  WholeImagesPlan plan;
};

template <class T, int kPixels>
class WholeImagesBlock {
  static constexpr int kMultiplyWarps = 4 * kWholeImagesWarpgroups;
  static constexpr int kProducts = kWholeImagesChunk / 16;  // of a k_block
  static constexpr int kRowBytes = (kPixels + kWholeImagesPitch) * 4;  // of sums
  static constexpr int kBlockBytes = kWholeImagesChunk * 128;  // of a k_block: 64 rows of operand A, or 64 pixels
  static constexpr int kBiasAt = kPixels * 4 + 16;  // behind the first row of sums
  static constexpr int kOctets = kPixels / 8;
  static constexpr int kAtOnce = 8;  // rows of the result that a lane adds up at once
  static constexpr int kMeetingBarriers = 1;  // one for each warpgroup
  static constexpr int kOtherRegisters = 88, kMultiplyRegisters = 208;  // of a thread

 public:
  __device__ __forceinline__ WholeImagesBlock(const WholeImagesParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)), rank_(cluster_rank()), lane_(threadIdx.x % 32) {
    const uint32_t barriers = shared_ + plan.barriers_at;
    stages_ = {barriers, barriers + 8 * plan.slots, plan.slots};
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < plan.slots; ++slot) {
        barrier_init(stages_.full + 8 * slot, 1);
        barrier_init(stages_.empty + 8 * slot, kWholeImagesCluster * kMultiplyWarps);
      }
      for (int i = 0; i < kWholeImagesSumsBarriers * kMultiplyWarps; ++i) barrier_init(sums_of(0).full[0] + 8 * i, 1);
      barrier_init_fence();
    }
    cluster_sync();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // tells the compiler that all lanes agree
    if (warp < kMultiplyWarps) {
      take_registers<kMultiplyRegisters>();
      multiply(warp);
    } else {
      leave_registers<kOtherRegisters>();
      if (warp > kMultiplyWarps) {
        fold(warp - kMultiplyWarps - 1);
      } else if (lane_ == 0) {
        bring();
      }
    }
    cluster_sync();  // the other block has stopped writing here
  }

 private:
  __device__ __forceinline__ uint32_t stage_address(int slot) const { return shared_ + slot * plan.stage_bytes; }
  // Barriers of a multiplying warp's sums. Two full ones, for even and odd rounds: a warp that folds may wait for a
  // round before the sums of the round before are complete. It is never two rounds ahead, because it met some of each
  // warpgroup in the round before, and the warps of a warpgroup meet in each.
  struct Sums {
    uint32_t full[2], empty;

    __device__ __forceinline__ void wait_full(int round) const {
      barrier_wait(round % 2 != 0 ? full[1] : full[0], round / 2 & 1);
    }
    __device__ __forceinline__ void wait_empty(int round) const { barrier_wait(empty, (round & 1) ^ 1); }
    __device__ __forceinline__ void fill(int round) const { barrier_arrive(round % 2 != 0 ? full[1] : full[0]); }
  };
  __device__ __forceinline__ Sums sums_of(int warp) const {
    const uint32_t barriers = shared_ + plan.barriers_at + 16 * plan.slots + 8 * kWholeImagesSumsBarriers * warp;
    return {{barriers, barriers + 8}, barriers + 16};
  }
  __device__ __forceinline__ uint32_t sums_address(int warp) const {
    return shared_ + plan.sums_at + warp * kWholeImagesRows * kRowBytes;
  }

  // A cluster's work tiles: a tile of pixels and a column each.
  __device__ __forceinline__ int first_item() const { return blockIdx.x / kWholeImagesCluster; }
  __device__ __forceinline__ int item_step() const { return gridDim.x / kWholeImagesCluster; }
  struct Item {
    int image, group, channel;  // the first image; the block's first channel, of the group
  };
  __device__ __forceinline__ Item item_at(int index) const {
    const int tile = p.columns.quotient(index), column = p.columns.remainder(index);
    const int group = p.m_tiles.quotient(column), m_tile = p.m_tiles.remainder(column);
    return {tile * plan.images, group, (m_tile * kWholeImagesCluster + rank_) * kWholeImagesChannels};
  }

  __device__ __forceinline__ void bring() const {
    Ring stages = stages_;
    const int image_pieces = max(plan.image_pixels / 64, 1), piece_images = max(64 / plan.image_pixels, 1);
    for (int index = first_item(); index < plan.items; index += item_step()) {
      const Item item = item_at(index);
      for (int chunk = 0; chunk < plan.chunks; ++chunk, stages.advance()) {
        stages.wait_empty();
        const uint32_t stage = stage_address(stages.slot), full = stages.full_barrier();
        barrier_arrive_expecting(full, plan.stage_bytes);
#pragma unroll
        for (int i = 0; i < kWholeImagesWarpgroups; ++i) {
          copy_tensor(stage + i * kBlockBytes, &p.weight_map, full, (item.channel + 4 * i) * kWholeImagesTaps,
                      chunk * kWholeImagesChunk, item.group, 0);
        }
        for (int piece = rank_; piece < kPixels / 64; piece += kWholeImagesCluster) {
          const int image = piece / image_pieces;
          copy_tensor_to_all(stage + kWholeImagesWeightBytes + piece * kBlockBytes, &p.source_map, full,
                             (piece - image * image_pieces) * 64, chunk * kWholeImagesChunk, item.group,
                             item.image + image * piece_images, (1 << kWholeImagesCluster) - 1);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(int warp) const {
    const int warpgroup = warp / 4, run_bytes = plan.run * 2;
    const uint32_t meeting = octets_that_meet();
    Ring stages = stages_;
    const Sums sums = sums_of(warp);
    int last = -1, round = 0;  // last: work tile
    float acc[kPixels / 2] = {};
    for (int index = first_item(); index < plan.items; index += item_step()) {
      const Item item = item_at(index);
      const bool exists = p.bias != nullptr && item.channel + warp < p.result_channels;
      const float bias = exists ? widen(p.bias[item.group * p.result_channels + item.channel + warp]) : 0.0f;
      int held = -1;  // the slot that instructions in flight read
      wgmma_pin(acc);
#pragma unroll 1
      for (int chunk = 0; chunk < plan.chunks; ++chunk) {
        stages.wait_full();
        const uint32_t stage = stage_address(stages.slot);
        const uint64_t weights = tile_descriptor_mn(stage + warpgroup * kBlockBytes, kBlockBytes);
        const uint64_t source = tile_descriptor_mn(stage + kWholeImagesWeightBytes, kWholeImagesChunk * run_bytes,
                                                   8 * run_bytes, run_bytes);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          WgmmaMajorN<T, kPixels>::issue(acc, weights + (k * 16 * 128 >> 4), source + (k * 16 * run_bytes >> 4),
                                         k > 0 || chunk > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        release(stages, held);
        held = stages.slot;
        stages.advance();
      }
      wgmma_wait<0>();
      release(stages, held);
      wgmma_pin(acc);
      static_assert(kWholeImagesMostQuads == 4);
      switch (plan.quads) {
        case 1: add_rows<1>(meeting, acc); break;
        case 2: add_rows<2>(meeting, acc); break;
        case 3: add_rows<3>(meeting, acc); break;
        default: add_rows<4>(meeting, acc);
      }
      named_barrier_sync(kMeetingBarriers + warpgroup, 128);
      sums.wait_empty(round);
      const uint32_t to = sums_address(warp) + lane_ / 4 * kRowBytes + lane_ % 4 * 8;
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
        const float left = lane_ < 16 ? acc[4 * j + 2] : acc[4 * j];
        const float right = lane_ < 16 ? acc[4 * j + 3] : acc[4 * j + 1];
        store_shared(to + j * 32, make_uint2(__float_as_uint(left), __float_as_uint(right)));
      }
      if (lane_ == 0) store_shared(sums_address(warp) + kBiasAt, __float_as_uint(bias));
      __syncwarp();
      last = index;
      if (index + item_step() < plan.items && lane_ == 0) sums.fill(round);
      ++round;
    }
    if (last >= 0) add_columns(item_at(last), warp);  // nothing left to multiply
  }

  // Arrives in both blocks, because they write to each other's slots. Without branches.
  __device__ __forceinline__ void release(const Ring& stages, int slot) const {
    barrier_arrive_cluster_if(lane_ < kWholeImagesCluster && slot >= 0, stages.empty + 8 * max(slot, 0), lane_);
  }

  // A row of the result adds products of two rows of pixels, by two kernel rows. A lane has both for some pixels. Lanes
  // from 16 on add the products of kernel row 3 at the pixels above to those of row 1. The others add the products of
  // kernel row 0 at the pixels below to those of row 2.
  template <int kQuads>
  __device__ __forceinline__ void add_rows(uint32_t meeting, float (&acc)[kPixels / 2]) const {
    constexpr int kStep = kQuads / 2;  // octets of a row of pixels, rounded down
    const bool odd = lane_ >= 16, late = lane_ % 4 >= 2;  // late: has the second quad of an octet
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
      const bool meets = (meeting >> j & 1) != 0;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto upper = [&](int octet) { return octet >= 0 ? acc[4 * max(octet, 0) + 2 + e] : 0.0f; };
        const auto lower = [&](int octet) { return octet < kOctets ? acc[4 * min(octet, kOctets - 1) + e] : 0.0f; };
        float above = upper(j - kStep), below = lower(j + kStep);
        if constexpr (kQuads % 2 != 0) {  // a neighbour has the other half of a lane's row
          if (late) above = upper(j - kStep - 1);
          if (!late) below = lower(j + kStep + 1);
          above = below = __shfl_xor_sync(~0u, odd ? above : below, 2);
        }
        if (odd && meets) acc[4 * j + e] += above;
        if (!odd && meets) acc[4 * j + 2 + e] += below;
      }
    }
  }
  // A bit for each octet of the tile's pixels: set if the row above (lanes below 16: below) is in the same image.
  __device__ __forceinline__ uint32_t octets_that_meet() const {
    uint32_t octets = 0;
    for (int j = 0; j < kOctets; ++j) {
      const int row = (2 * j + (lane_ % 4 >= 2 ? 1 : 0)) / plan.quads + (lane_ < 16 ? 1 : 0);
      if (p.height.remainder(row) != 0) octets |= 1u << j;
    }
    return octets;
  }

  // Channel by channel, warps in turns, of all work tiles except a block's last.
  __device__ __forceinline__ void fold(int warp) const {
    const int rounds = (plan.items - 1 - first_item()) / item_step(), turns = rounds * kWholeImagesChannels;
    for (int turn = warp; turn < turns; turn += kWholeImagesFoldWarps) {
      const int round = turn / kWholeImagesChannels, of_block = turn % kWholeImagesChannels;
      const Sums sums = sums_of(of_block);
      sums.wait_full(round);
      add_columns(item_at(first_item() + round * item_step()), of_block);
      __syncwarp();
      if (lane_ == 0) barrier_arrive(sums.empty);
    }
  }

  // Adds sums of rows to the result of a channel. Even columns add tap 1 and the previous pixel's tap 3; odd ones add
  // tap 2 and the next pixel's tap 0.
  __device__ __forceinline__ void add_columns(const Item& item, int of_block) const {
    const int width = 4 * plan.quads, lane_rows = 32 / width;  // of pixels, of a warp
    const int of_lane = lane_ / width, x = lane_ - of_lane * width, m = item.channel + of_block;
    const int rows = m < p.result_channels ? min(plan.images, p.batch - item.image) * static_cast<int>(p.height.divisor)
                                           : 0;
    const bool has_before = x > 0, has_behind = x + 1 < width;
    const uint32_t sums = sums_address(of_block);
    const float bias = __uint_as_float(load_shared(sums + kBiasAt));
    T* const result = p.result + item.image * p.result_n + (item.group * p.result_channels + m) * p.result_m + 2 * x;
    if (of_lane >= lane_rows) return;
#pragma unroll 1
    for (int first = of_lane; first < rows; first += lane_rows * kAtOnce / 2) {
      float taps[kAtOnce][4];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {  // two rows of the result for each row of pixels
        const int row = min(first + u / 2 * lane_rows, rows - 1);
        const uint32_t at = sums + (1 - u % 2) * 4 * kRowBytes + (row * width + x) * 4;
#pragma unroll
        for (int tap = 0; tap < 4; ++tap) {
          const int column = tap == 0 ? 1 : tap == 3 ? -1 : 0;
          taps[u][tap] = __uint_as_float(load_shared(at + tap * kRowBytes + column * 4));
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int row = first + u / 2 * lane_rows, image = p.height.quotient(row);
        const int line = 2 * p.height.remainder(row) + u % 2;
        const float even = bias + (taps[u][1] + (has_before ? taps[u][3] : 0.0f));
        const float odd = bias + (taps[u][2] + (has_behind ? taps[u][0] : 0.0f));
        store_if(row < rows, result + image * p.result_n + line * 2 * width, pack_pair<T>(even, odd));
      }
    }
  }

  const WholeImagesParams<T>& p;
  const WholeImagesPlan& plan;
  const uint32_t shared_;
  const int rank_, lane_;
  Ring stages_;
};

template <class T, int kPixels>
__global__ void __launch_bounds__(kWholeImagesThreads, 1)
    whole_images_kernel(const __grid_constant__ WholeImagesParams<T> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  WholeImagesBlock<T, kPixels>(params, shared).run();
#endif
}

}  // namespace deconv::sm90
