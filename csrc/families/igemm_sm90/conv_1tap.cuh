// Pixels as operand A: forward of one tap from NCHW into blocks of a sub_pixel result (kernel = stride).
//
//   y[pixel q, element e of a block]  =  bias  +  sum over channels c of  x[c, q] * w[c, e]
//
//   A, registers: 64 pixels x k_block of c     B, shared memory: kN elements x k_block, lowerings/pack_weight.cuh
//
//   warpgroups 0, 1 (2)   gather A from NCHW rows, multiply, store: a lane holds adjacent elements of a block's row
//                         and eight lanes hold neighbouring pixels, so whole sectors leave from registers
//   last warpgroup        one thread for each Pipeline issues TMA: pieces of kOneTapPiece pixels, a row a channel
//
// Weight-stationary if the weights of all channels fit: each warpgroup then has work tiles and a Pipeline of its own.
// Else two share the weights of a work tile. Channel planes may begin off 16 bytes: rows then begin some pixels before
// the piece, the same for all channels of a class, and lanes shift them away.
#pragma once

#include "device/memory.cuh"
#include "device/mma_sm80.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/igemm_sm90/params.cuh"
#include "families/igemm_sm90/plan_1tap.h"

namespace deconv::sm90 {

template <class T>
struct OneTapParams {
  CUtensorMap source_map;
  // From a class's channel plane to the next: elements, and how far they reach past a multiple of 16 bytes.
  int class_step, class_skipped;
  Divisor class_groups;  // groups of 8 channels that a class has in a k_block
  const unsigned char* packed;  // lowerings/pack_weight.cuh
  const T* bias;
  T* result;
  int64_t result_n, result_m, result_h, result_w;  // from an image, channel, row of blocks, block to the next
  BlockedResult blocks;
  int pixels;  // of an image
  int images;
  int result_channels;  // of a group: elements of blocks
  bool whole;  // every element of a block exists
  bool pairs;  // adjacent elements of a block's row, from an even one on, may share a store
  Divisor columns, m_tiles, image_pieces, width;  // by the plan's numbers; by the source's width
  OneTapPlan plan;
};

// kAligned: all channel planes begin at multiples of 16 bytes.
template <class T, int kN, bool kResident, bool kAligned>
class OneTapBlock {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kWarpgroups = one_tap_warpgroups(kN, kResident);  // that multiply
  static constexpr int kMultiplyWarps = 4 * kWarpgroups;
  static constexpr int kProducts = kSm90RowBytes / 32;  // wgmma of a k_block, 32 bytes of channels each
  static constexpr int kChannels = 32 / kSize;  // of one wgmma
  static constexpr int kChunk = kSm90RowBytes / kSize;  // channels
  static constexpr int kPieceRowBytes = one_tap_row(kAligned ? 1 : 2) * kSize;
  static constexpr int kPieceBytes = kChunk * kPieceRowBytes;
  static constexpr int kPieces = (kResident ? 1 : kWarpgroups) * kOneTapPieces;  // of a work tile
  static constexpr int kTableBarriers = 1;  // one for each warpgroup
  using Product = WgmmaRs<T, kN, false>;

 public:
  static constexpr int kThreads = one_tap_threads(kN, kResident);
  // Registers of a producing and of a multiplying thread, out of those that the launch gives to all.
  static constexpr int kBringRegisters = kWarpgroups == 3 ? 56 : 40;
  static constexpr int kMultiplyRegisters = ((kThreads == 512 ? 512 : 504) - kBringRegisters) / kWarpgroups / 8 * 8;
  static_assert(kThreads == 512 || kThreads == 384, "512 or 504 registers for a thread of each warpgroup together");

  __device__ __forceinline__ OneTapBlock(const OneTapParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < plan.rings; ++i) {
        const Ring ring = ring_of(i);
        for (int slot = 0; slot < plan.slots; ++slot) {
          barrier_init(ring.full + 8 * slot, 1);
          barrier_init(ring.empty + 8 * slot, kResident ? 4 : kMultiplyWarps);
        }
      }
      barrier_init(weights_barrier(), 1);
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the shuffle tells the compiler that it is uniform
    if (warp < kMultiplyWarps) {
      take_registers<kMultiplyRegisters>();
      multiply(warp / 4, warp % 4);
    } else {
      leave_registers<kBringRegisters>();
      const int of_ring = warp - kMultiplyWarps;
      if (of_ring < plan.rings && threadIdx.x % 32 == 0) bring(of_ring);
    }
  }

 private:
  __device__ __forceinline__ Ring ring_of(int index) const {
    const uint32_t barriers = shared_ + plan.barriers_at + index * 16 * plan.slots;
    return {barriers, barriers + 8 * plan.slots, plan.slots};
  }
  __device__ __forceinline__ uint32_t weights_barrier() const {
    return shared_ + plan.barriers_at + plan.rings * 16 * plan.slots;
  }
  __device__ __forceinline__ uint32_t slot_address(int ring, int slot) const {
    return shared_ + (ring * plan.slots + slot) * plan.stage_bytes;
  }

  // A work tile is a tile of pixels and a tile of elements. Neighbouring work tiles share pixels. If weights are
  // resident, all work tiles of a warpgroup have the same elements, because plan.blocks is a multiple of plan.columns.
  __device__ __forceinline__ int first_item(int ring) const {
    if constexpr (!kResident) return blockIdx.x;
    const int tile = p.columns.quotient(blockIdx.x), column = blockIdx.x - tile * plan.columns;
    return (tile * kWarpgroups + ring) * plan.columns + column;
  }
  __device__ __forceinline__ int item_step() const { return kResident ? gridDim.x * kWarpgroups : gridDim.x; }
  struct Work {
    int group, m_tile, first_piece;
  };
  __device__ __forceinline__ Work find_work(int index) const {
    const int tile = p.columns.quotient(index), column = index - tile * plan.columns;
    const int group = p.m_tiles.quotient(column);
    return {group, column - group * plan.weights.m_tiles, tile * plan.pieces};
  }
  struct Place {
    int image, pixel;  // the first pixel
  };
  __device__ __forceinline__ Place place_of(int piece) const {
    const int image = p.image_pieces.quotient(piece);
    return {image, (piece - image * plan.image_pieces) * kOneTapPiece};
  }

  __device__ __forceinline__ const unsigned char* weights_of(const Work& work) const {
    return p.packed + (work.group * plan.weights.m_tiles + work.m_tile) * plan.weights.column_bytes;
  }
  __device__ __forceinline__ void bring_weights() const {
    const unsigned char* weights = weights_of(find_work(first_item(0)));
    const int stage_bytes = plan.weights.stage_bytes, bytes = plan.weights.chunks * stage_bytes;
    barrier_arrive_expecting(weights_barrier(), bytes);
    for (int at = 0; at < bytes; at += stage_bytes) {
      copy_bulk(shared_ + plan.weights_at + at, weights + at, stage_bytes, weights_barrier());
    }
  }

  // One thread fills one Pipeline.
  __device__ __forceinline__ void bring(int of_ring) const {
    const bool brings_weights = !kResident || of_ring == 0;
    if (brings_weights) await_predecessors();  // the packing of the weights has ended
    if (kResident && brings_weights) bring_weights();
    Ring ring = ring_of(of_ring);
    for (int index = first_item(of_ring); index < plan.items; index += item_step()) {
      const Work work = find_work(index);
      Place place[kPieces];
#pragma unroll
      for (int i = 0; i < kPieces; ++i) place[i] = place_of(work.first_piece + i);
      const unsigned char* weights = weights_of(work);
      for (int chunk = 0; chunk < plan.weights.chunks; ++chunk, ring.advance()) {
        ring.wait_empty();
        const uint32_t slot = slot_address(of_ring, ring.slot), barrier = ring.full_barrier();
        barrier_arrive_expecting(barrier, plan.stage_bytes);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          copy_piece(slot + i * kPieceBytes, barrier, work.group, place[i], chunk);
        }
        if constexpr (!kResident) {
          copy_bulk(slot + kPieces * kPieceBytes, weights, plan.weights.stage_bytes, barrier);
          weights += plan.weights.stage_bytes;
        }
      }
    }
  }
  __device__ __forceinline__ void copy_piece(uint32_t to, uint32_t barrier, int group, const Place& place,
                                             int chunk) const {
    if constexpr (kAligned) {
      copy_tensor(to, &p.source_map, barrier, place.pixel, chunk * kChunk, group, place.image, 0);
    } else {
      const int channels = static_cast<int>(p.class_groups.divisor) * 8;
      for (int c = 0; c < plan.classes; ++c) {
        copy_tensor(to + c * channels * kPieceRowBytes, &p.source_map, barrier,
                    place.pixel + c * p.class_step - skipped(c), chunk * channels, group, place.image, 0);
      }
    }
  }
  // Pixels of a row before the piece's first, in channels of a class.
  __device__ __forceinline__ int skipped(int of_class) const { return of_class * p.class_skipped % (16 / kSize); }

  // The pixel of a piece in row `row` of a warp's 16 rows of operand A; two warps share a piece. Swizzled float32:
  // every other four rows take pixels 16 further on, so that the lanes of eight rows and four channels meet all banks.
  __device__ __forceinline__ static int pixel_of_row(int warp, int row) {
    const int half = warp % 2;
    return kSize == 2 || !kAligned ? 16 * half + row : 8 * half + row / 8 * 4 + row % 8 / 4 * 16 + row % 4;
  }

  // Gathers operand A of wgmma k: this lane's words of the warp's pixels, from `piece`.
  __device__ __forceinline__ void gather(uint32_t (&a)[4], uint32_t piece, int warp, int k, int lane) const {
    if constexpr (kSize == 2 && kAligned) {
      const int channel = k * kChannels + lane % 8 + lane / 16 * 8, pixel = 16 * (warp % 2) + lane / 8 % 2 * 8;
      load_transposed_matrices(a, piece + swizzled(channel * kPieceRowBytes + pixel * kSize, kPieceRowBytes));
    } else if constexpr (kSize == 2) {
      // Two octets of pixels in both halves of the channels. If rows begin early, the pixels reach into a third octet.
      const int first = skipped_of(2 * k), second = skipped_of(2 * k + 1);
      const uint32_t rows = piece + (k * kChannels + lane % 8) * kPieceRowBytes + 32 * (warp % 2);
      const auto octet = [&](int half, int i) { return rows + half * 8 * kPieceRowBytes + i * 16; };
      load_transposed_matrices(a, octet(lane / 16, lane / 8 % 2));
      if (first == 0 && second == 0) return;
      uint32_t beyond[2];
      load_transposed_matrices(beyond, octet(lane / 8 % 2, 2));
      a[0] = turned(a[0], a[1], first, lane), a[1] = turned(a[1], beyond[0], first, lane);
      a[2] = turned(a[2], a[3], second, lane), a[3] = turned(a[3], beyond[1], second, lane);
    } else {
      const int before = kAligned ? 0 : skipped_of(k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = k * kChannels + lane % 4 + i / 2 * 4, pixel = pixel_of_row(warp, lane / 4 + i % 2 * 8);
        const int at = channel * kPieceRowBytes + (before + pixel) * kSize;
        a[i] = load_shared(piece + (kAligned ? swizzled(at) : at));
      }
    }
  }
  // The same for the class of the k_block's channels from 8 i on.
  __device__ __forceinline__ int skipped_of(int i) const { return skipped(p.class_groups.quotient(i)); }

  // warp: of the warpgroup.
  __device__ __forceinline__ void multiply(int warpgroup, int warp) const {
    const int lane = threadIdx.x % 32, chunks = plan.weights.chunks, of_ring = kResident ? warpgroup : 0;
    const int first_piece = (kResident ? 0 : warpgroup * kOneTapPieces) + warp / 2;  // this warp's, of a work tile
    Ring ring = ring_of(of_ring);
    const uint32_t tables = shared_ + plan.tables_at + warpgroup * 2 * kTableBytes;
    uint32_t of_table = 0;  // the table of this work tile
    float acc[kN / 2];
    bool knows_weights = false;
    for (int index = first_item(of_ring); index < plan.items; index += item_step()) {
      const Work work = find_work(index);
      if (!kResident || !knows_weights) write_table(work, tables + of_table, 32 * warp + lane);
      if (kResident && !knows_weights) barrier_wait(weights_barrier(), 0);
      knows_weights = true;
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[i] = 0;
      wgmma_pin(acc);
      uint32_t a[2][4];  // while wgmma reads one, the next is gathered
      int before = 0;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        ring.wait_full();
        const uint32_t slot = slot_address(of_ring, ring.slot), piece = slot + first_piece * kPieceBytes;
        const uint64_t weights = tile_descriptor(
            kResident ? shared_ + plan.weights_at + chunk * plan.weights.stage_bytes : slot + kPieces * kPieceBytes,
            8 * kSm90RowBytes);
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          gather(a[k % 2], piece, warp, k, lane);
          wgmma_fence();
          Product::issue(acc, a[k % 2], weights + 2 * k, 1);
          wgmma_commit();
          wgmma_wait<1>();  // the wgmma before is done, so its operands are free
          if (k == 0 && chunk > 0 && lane == 0) ring.release(before);
        }
        before = ring.slot;
        ring.advance();
      }
      wgmma_wait<0>();
      wgmma_pin(acc);
      if (lane == 0) ring.release(before);
      named_barrier_sync(kTableBarriers + warpgroup, 128);  // the table is whole
      store(work.first_piece + first_piece, warp, lane, tables + of_table, acc);
      __syncwarp();
      if (!kResident) of_table = kTableBytes - of_table;  // this one may still be read
    }
  }

  // Table of a work tile's elements: the offset from a block's first (negative if the element does not exist), the
  // bias, the row and column in the block.
  static constexpr int kTableBytes = kN * kOneTapEntryBytes;
  __device__ __forceinline__ void write_table(const Work& work, uint32_t table, int thread) const {
    const BlockedResult& b = p.blocks;
    for (int n = thread; n < kN; n += 128) {
      const int of_group = work.m_tile * kN + n;
      const auto [m, r, k] = in_block(b, work.group * p.result_channels + of_group);
      const bool exists = of_group < p.result_channels;
      const float bias = exists && p.bias != nullptr ? widen(p.bias[m]) : 0.0f;
      const int offset = exists ? static_cast<int>(m * p.result_m) + r * b.stride_h + k : -1;
      store_shared(table + n * kOneTapEntryBytes, make_uint4(offset, __float_as_uint(bias), r, k));
    }
  }

  // A lane has two pixels, in rows lane / 4 and 8 further on, and of each pixel elements 2 (lane % 4) and the next of
  // every 8.
  struct Pixel {
    T* block;  // its first element, existing or not
    int h, w;  // of the result
    bool exists;
  };
  __device__ __forceinline__ Pixel find_pixel(int piece, int warp, int row) const {
    const Place place = place_of(piece);
    const int pixel = place.pixel + pixel_of_row(warp, row), h = p.width.quotient(pixel),
              w = pixel - h * static_cast<int>(p.width.divisor);
    const BlockedResult& b = p.blocks;
    return {p.result + place.image * p.result_n + h * p.result_h + w * p.result_w - b.shift_h * b.stride_h - b.shift_w,
            h * static_cast<int>(b.height.divisor) - b.shift_h, w * static_cast<int>(b.width.divisor) - b.shift_w,
            place.image < p.images && pixel < p.pixels};
  }
  template <bool kWhole>
  __device__ __forceinline__ bool has(const Pixel& pixel, const uint4& entry) const {
    bool has = pixel.exists && static_cast<int>(entry.x) >= 0;
    if constexpr (!kWhole) {
      const int h = pixel.h + static_cast<int>(entry.z), w = pixel.w + static_cast<int>(entry.w);
      has = has && h >= 0 && h < p.blocks.size_h && w >= 0 && w < p.blocks.size_w;
    }
    return has;
  }

  __device__ __forceinline__ void store(int piece, int warp, int lane, uint32_t table,
                                        const float (&acc)[kN / 2]) const {
    Pixel pixel[2] = {find_pixel(piece, warp, lane / 4), find_pixel(piece, warp, lane / 4 + 8)};
    // Keeps addresses in registers: otherwise the compiler computes them anew for each element.
    asm volatile("" : "+l"(pixel[0].block), "+l"(pixel[1].block));
    table += 2 * (lane % 4) * kOneTapEntryBytes;
    if (p.pairs) {
      p.whole ? store_elements<true, true>(pixel, table, acc) : store_elements<true, false>(pixel, table, acc);
    } else {
      p.whole ? store_elements<false, true>(pixel, table, acc) : store_elements<false, false>(pixel, table, acc);
    }
  }

  template <bool kPairs, bool kWhole>
  __device__ __forceinline__ void store_elements(const Pixel (&pixel)[2], uint32_t table,
                                                 const float (&acc)[kN / 2]) const {
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int b = 0; b < (kPairs ? 1 : 2); ++b) {
        const uint4 entry = load_shared_16(table + (8 * j + b) * kOneTapEntryBytes);
        const float bias = __uint_as_float(entry.y);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float low = acc[4 * j + 2 * half + b] + bias, high = acc[4 * j + 2 * half + 1] + bias;
          T* const to = pixel[half].block + static_cast<int>(entry.x);
          const bool exists = has<kWhole>(pixel[half], entry);
          if constexpr (!kPairs) {
            store_if(exists, to, narrow<T>(low));
          } else if constexpr (kSize == 4) {
            store_if(exists, to, make_float2(low, high));
          } else {
            store_if(exists, to, pack_pair<T>(low, high));
          }
        }
      }
    }
  }

  const OneTapParams<T>& p;
  const OneTapPlan& plan;
  uint32_t shared_;
};

template <class T, int kN, bool kResident, bool kAligned>
__global__ void __launch_bounds__(one_tap_threads(kN, kResident), 1)
    one_tap_kernel(const __grid_constant__ OneTapParams<T> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  start_dependents();
  OneTapBlock<T, kN, kResident, kAligned>(params, shared).run();
#endif
}

}  // namespace deconv::sm90
