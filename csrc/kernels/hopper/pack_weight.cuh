// The weights as the Hopper kernels consume them: for each group and tile of result channels, one stage after the
// other, in order of use: [phase group][plane][chunk][phase][tap row][tap column], each 64 swizzled rows of
// plan.row_bytes (twice for two parts), two such tiles for 128 channels. Slots that a (phase, plane) with fewer taps
// leaves are never read.
//
// plan.tile.fold columns in the rows (stride and dilation 1): column f reads, with tap t, the pixel that column 0 reads
// with tap t + f. So the stage of slot u holds tap u - f for column f, and zeros where there is none.
//
// plan.merge groups share a tile: their weights are blocks on its diagonal, the rest are zeros.
#pragma once

#include "../../divisor.h"
#include "result.cuh"
#include "split.cuh"

namespace deconv::hopper {

// Where a tap of one axis belongs: what it adds to the number of its stage, and which of its (phase, plane)'s taps it
// is, of how many: none, where the pair holds no pixel.
struct TapSlot {
  int stage;
  int16_t slot, slots;
};

inline constexpr int kPackThreads = 256;
inline constexpr int kPackRows = 64;  // pairs of a tap and a result channel that a block packs, at most

template <class T>
struct PackParams {
  const T* weight;
  int64_t weight_m, weight_c, weight_h, weight_w, weight_group;
  unsigned char* packed;
  int* not_finite;  // cleared, for the convolution may set it
  int source_channels, result_channels;  // of one group
  int groups;  // merged ones as one
  // A block takes one chunk of so many taps and result channels. What lies closest in memory is read by neighbouring
  // threads: source channels, else rows, of which taps come first or result channels.
  int block_taps, block_m, block_rows;
  int pieces_shift;  // a row has 1 << pieces_shift pieces of 16 bytes
  int chunk_stages;  // from a chunk to the next
  bool channels_fastest, taps_fastest;
  Divisor row_fastest;  // of the rows' faster number
  Divisor channel_taps;  // im2col: taps that count as channels, fastest; else 1
  int64_t channel_tap_step;
  Divisor kernel_w, of_group, tap_blocks, m_blocks, chunks, m_tiles;
  int taps;
  TapSlot slots[2][kHopperMaxKernel];  // where each tap belongs, by axis
  HopperConvPlan plan;
};

template <class T, int kParts>
class PackBlock {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPiece = 16 / kSize;
  static constexpr int kPieces = kPackRows * (kHopperRowBytes / 16) / kPackThreads;  // of a thread
  static constexpr int kPitch = kHopperRowBytes + 16;  // of a row in shared memory

 public:
  static constexpr int kBytes = kPackRows * kPitch;

  __device__ __forceinline__ PackBlock(const PackParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared), pieces_(1 << params.pieces_shift) {
    int rest = blockIdx.x;
    const auto take = [&](const Divisor& count) {
      const int quotient = count.quotient(rest), digit = rest - quotient * static_cast<int>(count.divisor);
      rest = quotient;
      return digit;
    };
    first_tap_ = take(p.tap_blocks) * p.block_taps;
    first_m_ = take(p.m_blocks) * p.block_m;
    chunk_ = take(p.chunks);
    m_tile_ = take(p.m_tiles);
    group_ = rest;
  }

  // Pieces of rows a thread: neighbouring threads take neighbouring rows, or pieces where channels come first.
  __device__ __forceinline__ void load() const {
    const T* const weight = p.weight + static_cast<int64_t>(group_) * plan.merge * p.weight_group;
    Pack<T, kPiece> value[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const Place at = place_to_load(i);
      const Row row = find_row(at.row);
      const int result = m_tile_ * plan.tile_m + row.m, merged = p.of_group.quotient(result);
      const int channel = (chunk_ * pieces_ + at.piece) * kPiece - merged * p.source_channels;
      const T* from = weight + merged * p.weight_group + (result - merged * p.result_channels) * p.weight_m +
                      row.h * p.weight_h + row.w * p.weight_w;
      const int channel_taps = p.channel_taps.divisor;
      int tap = 0;
      if (channel_taps > 1) {
        const int of = p.channel_taps.quotient(channel);
        tap = channel - of * channel_taps;
        from += of * p.weight_c + tap * p.channel_tap_step;
      } else {
        from += channel * p.weight_c;
      }
      const bool exists = row.exists && merged < plan.merge && at.piece < pieces_;
#pragma unroll
      for (int k = 0; k < kPiece; ++k) {
        value[i].value[k] = narrow<T>(0.0f);
        if (exists && static_cast<unsigned>(channel + k) < static_cast<unsigned>(p.source_channels)) {
          value[i].value[k] = *from;
        }
        const bool is_last = ++tap >= channel_taps;
        from += is_last ? p.weight_c - (channel_taps - 1) * p.channel_tap_step : p.channel_tap_step;
        if (is_last) tap = 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const Place at = place_to_load(i);
      if (at.row < kPackRows && at.piece < pieces_) {
        *reinterpret_cast<Pack<T, kPiece>*>(shared_ + at.row * kPitch + at.piece * 16) = value[i];
      }
    }
  }

  // Whole rows, so that lines of memory are written at once.
  __device__ __forceinline__ void store() const {
    for (int at = threadIdx.x; at < kPackRows * pieces_; at += kPackThreads) {
      const int index = at >> p.pieces_shift, piece = at & (pieces_ - 1);
      const Row row = find_row(index);
      if (!row.exists) continue;
      const uint4 value = *reinterpret_cast<const uint4*>(shared_ + index * kPitch + piece * 16);
      for (int f = 0; f < plan.tile.fold; ++f) store_piece(row, f, piece, value);
    }
  }

 private:
  struct Place {
    int row, piece;  // of the block
  };
  __device__ __forceinline__ Place place_to_load(int i) const {
    const int at = static_cast<int>(threadIdx.x) + i * kPackThreads;
    return p.channels_fastest ? Place{at >> p.pieces_shift, at & (pieces_ - 1)} : Place{at % kPackRows, at / kPackRows};
  }
  struct Row {
    int m, h, w;  // result channel of the tile, tap
    bool exists;
  };
  __device__ __forceinline__ Row find_row(int row) const {
    const int slower = p.row_fastest.quotient(row), faster = row - slower * static_cast<int>(p.row_fastest.divisor);
    const int tap = first_tap_ + (p.taps_fastest ? faster : slower), h = p.kernel_w.quotient(tap);
    const int m = first_m_ + (p.taps_fastest ? slower : faster);
    return {m, h, tap - h * static_cast<int>(p.kernel_w.divisor),
            row < p.block_rows && tap < p.taps && m < plan.tile_m};
  }

  __device__ __forceinline__ void store_piece(const Row& row, int f, int piece, uint4 value) const {
    const TapSlot h = p.slots[0][row.h], w = p.slots[1][row.w];
    if (h.slots == 0 || w.slots == 0) return;
    const int64_t stage = h.stage + w.stage + chunk_ * p.chunk_stages;  // of the column's first tap
    const int tile_bytes = kHopperTileM * plan.row_bytes;
    const uint32_t at = swizzled(row_of<T>(plan, row.m % kHopperTileM, f) * plan.row_bytes + piece * 16,
                                 plan.row_bytes);
    unsigned char* const first = p.packed + (group_ * plan.m_tiles + m_tile_) * plan.column_bytes +
                                 stage * plan.stage_bytes + row.m / kHopperTileM * (tile_bytes * kParts) + at;
    const auto clear = [&](int u) {
      for (int part = 0; part < kParts; ++part) {
        *reinterpret_cast<uint4*>(first + static_cast<int64_t>(u) * plan.stage_bytes + part * tile_bytes) = make_uint4(
            0, 0, 0, 0);
      }
    };
    if (w.slot == 0) {
      for (int u = 0; u < f; ++u) clear(u);
    }
    if (w.slot == w.slots - 1) {
      for (int u = w.slots + f; u < w.slots + plan.tile.fold - 1; ++u) clear(u);
    }
    unsigned char* const to = first + static_cast<int64_t>(w.slot + f) * plan.stage_bytes;
    if constexpr (kParts == 2) {
      *reinterpret_cast<uint4*>(to + tile_bytes) = low_parts(value);
    } else if constexpr (kSize == 4) {
      value = round_to_tf32(value);
    }
    *reinterpret_cast<uint4*>(to) = value;
  }

  const PackParams<T>& p;
  const HopperConvPlan& plan;
  unsigned char* shared_;
  int pieces_;  // of a row
  int first_tap_, first_m_, chunk_, m_tile_, group_;
};

template <class T, int kParts>
__global__ void __launch_bounds__(kPackThreads) pack_weight_kernel(const __grid_constant__ PackParams<T> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ __align__(16) unsigned char shared[PackBlock<T, kParts>::kBytes];
  start_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.not_finite = 0;
  const PackBlock<T, kParts> block(p, shared);
  block.load();
  __syncthreads();
  block.store();
#endif
}

}  // namespace deconv::hopper
