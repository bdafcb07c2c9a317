// Weights in igemm_sm90's order of use: for each group and tile of result channels, stage after stage:
//   [phase group][source phase][k_block][phase][tap row][tap column]
// A stage is 64 swizzled rows of plan.row_bytes (tf32x3: twice), two such tiles for 128 channels. Stages left over
// where a (phase, source phase) has fewer taps are never read.
//
// plan.tile.fold columns share the rows (stride and dilation 1). Column f reads with tap t the pixel that column 0
// reads with tap t + f, so the stage of slot u holds tap u - f for column f, zeros where there is none.
//
// plan.merge groups share a tile: their weights are blocks on its diagonal, the rest are zeros.
#pragma once

#include <algorithm>

#include "core/divisor.h"
#include "device/tf32_split.cuh"
#include "device/tma_sm90.cuh"
#include "families/igemm_sm90/row_order.cuh"
#include "lowerings/repack.cuh"

namespace deconv::sm90 {

// A tap's place along one axis: what it adds to the number of its stage, its index among the taps of its (phase, source
// phase), and their number: 0 where the pair holds no pixel.
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
  // Where result channels are elements of blocks (ResultBlocks): a block's width and height, and how far blocks and
  // their rows are apart in the weight. Otherwise all channels are elements of one row.
  Divisor block_width, block_height;
  int64_t weight_block, weight_block_h;
  unsigned char* packed;
  int* not_finite;  // cleared here, set by the convolution
  int source_channels, result_channels;  // of one group
  int groups;  // merged ones count as one
  // A block takes one k_block of block_taps taps and block_m result channels. Adjacent threads read what is closest in
  // memory: source channels, otherwise rows, ordered by tap or by result channel.
  int block_taps, block_m, block_rows;
  int pieces_shift;  // a row has 1 << pieces_shift pieces of 16 bytes
  int classes;  // of source channels: every `classes`-th is of one class; a k_block holds class after class
  Divisor class_pieces;
  int chunk_stages;  // from a k_block to the next
  bool channels_fastest, taps_fastest;
  Divisor row_fastest;  // of the rows' faster index
  Divisor channel_taps;  // im2col: taps that count as channels, fastest; else 1
  int64_t channel_tap_step;
  Divisor kernel_w, of_group, tap_blocks, m_blocks, chunks, m_tiles;
  int taps;
  TapSlot slots[2][kSm90MaxKernel];  // each tap's place, by axis
  IgemmSm90Plan plan;
};

template <class T, int kParts>
class PackBlock {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPiece = 16 / kSize;
  static constexpr int kPieces = kPackRows * (kSm90RowBytes / 16) / kPackThreads;  // of a thread
  static constexpr int kPitch = kSm90RowBytes + 16;  // of a row in shared memory
  static constexpr int kNoChannel = -(1 << 30);  // below every channel of a group

 public:
  // Where a row is read and where it goes: found once for all its pieces.
  struct Ends {
    int64_t from;  // its first channel: elements from the weight
    int64_t to;  // bytes from the packed weights; -1: nowhere
    int channel;  // of the group, at the block's channel 0: negative for merged groups after the first
  };
  static constexpr int kEndsAt = kPackRows * kPitch, kBytes = kEndsAt + kPackRows * static_cast<int>(sizeof(Ends));

  __device__ __forceinline__ PackBlock(const PackParams<T>& params, unsigned block, unsigned char* shared)
      : p(params),
        plan(params.plan),
        shared_(shared),
        rows_(reinterpret_cast<Ends*>(shared + kEndsAt)),
        pieces_(1 << params.pieces_shift) {
    int rest = static_cast<int>(block);
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

  __device__ __forceinline__ void find_rows() const {
    if (threadIdx.x >= kPackRows) return;
    const Row row = find_row(static_cast<int>(threadIdx.x));
    const int result = m_tile_ * plan.tile_m + row.m, merged = p.of_group.quotient(result);
    Ends ends;
    ends.from = static_cast<int64_t>(group_ * plan.merge + merged) * p.weight_group +
                of_channel(result - merged * p.result_channels) + row.h * p.weight_h + row.w * p.weight_w;
    ends.channel = row.exists && merged < plan.merge ? -merged * p.source_channels : kNoChannel;
    ends.to = -1;
    if (row.exists && p.slots[0][row.h].slots > 0 && p.slots[1][row.w].slots > 0) {
      ends.to = stage_of(row) + row_of<T>(plan, row.m % kSm90TileM, 0) * plan.row_bytes +
                static_cast<int64_t>(p.slots[1][row.w].slot) * plan.stage_bytes;
    }
    rows_[threadIdx.x] = ends;
  }

  // A thread loads pieces of rows. Adjacent threads take adjacent rows, or adjacent pieces if channels are fastest.
  __device__ __forceinline__ void load() const {
    Pack<T, kPiece> value[kPieces];
    if (p.channel_taps.divisor > 1) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) value[i] = load_taps(place_to_load(i));
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) value[i] = load_channels(place_to_load(i));
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const Place at = place_to_load(i);
      if (at.row < kPackRows && at.piece < pieces_) {
        *reinterpret_cast<Pack<T, kPiece>*>(shared_ + at.row * kPitch + at.piece * 16) = value[i];
      }
    }
  }

  // Stores whole rows, so that whole lines of memory are written at once.
  __device__ __forceinline__ void store() const {
    for (int at = threadIdx.x; at < kPackRows * pieces_; at += kPackThreads) {
      const int index = at >> p.pieces_shift, piece = at & (pieces_ - 1);
      const int64_t to = rows_[index].to;
      if (to < 0) continue;
      const uint4 value = *reinterpret_cast<const uint4*>(shared_ + index * kPitch + piece * 16);
      store_piece(to, piece, value);
      if (plan.tile.fold > 1) store_folded(find_row(index), piece, value);
    }
  }

 private:
  __device__ __forceinline__ int64_t of_channel(int channel) const {
    const int row = p.block_width.quotient(channel), block = p.block_height.quotient(row);
    return (channel - row * static_cast<int>(p.block_width.divisor)) * p.weight_m +
           (row - block * static_cast<int>(p.block_height.divisor)) * p.weight_block_h + block * p.weight_block;
  }

  struct Place {
    int row, piece;  // of the block
  };
  __device__ __forceinline__ Place place_to_load(int i) const {
    const int at = static_cast<int>(threadIdx.x) + i * kPackThreads;
    return p.channels_fastest ? Place{at >> p.pieces_shift, at & (pieces_ - 1)} : Place{at % kPackRows, at / kPackRows};
  }
  __device__ __forceinline__ int first_channel(const Place& at, const Ends& row) const {
    const int of_class = p.class_pieces.quotient(at.piece), piece = p.class_pieces.remainder(at.piece);
    return at.piece < pieces_ ? row.channel + (chunk_ * pieces_ + piece * p.classes) * kPiece + of_class : kNoChannel;
  }

  __device__ __forceinline__ Pack<T, kPiece> load_channels(const Place& at) const {
    const Ends row = rows_[at.row & (kPackRows - 1)];
    const int channel = first_channel(at, row);
    auto from = reinterpret_cast<uint64_t>(p.weight + row.from + channel * p.weight_c);
    Pack<T, kPiece> value;
#pragma unroll
    for (int k = 0; k < kPiece; ++k, from += p.classes * p.weight_c * kSize) {
      const int at_k = channel + k * p.classes;
      value.value[k] = load_at(from, static_cast<unsigned>(at_k) < static_cast<unsigned>(p.source_channels));
    }
    return value;
  }
  // Loads from an address: half the instructions that the compiler makes of an index. Zero if it does not exist.
  __device__ __forceinline__ static T load_at(uint64_t address, bool exists) {
    if constexpr (kSize == 2) {
      uint16_t bits;
      asm("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b16 %0, 0;\n@p ld.global.nc.u16 %0, [%1];\n}"
          : "=h"(bits)
          : "l"(address), "r"(static_cast<int>(exists)));
      return reinterpret_cast<const T&>(bits);
    } else {
      uint32_t bits;
      asm("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n@p ld.global.nc.u32 %0, [%1];\n}"
          : "=r"(bits)
          : "l"(address), "r"(static_cast<int>(exists)));
      return reinterpret_cast<const T&>(bits);
    }
  }

  // im2col: the taps of each channel count as channels.
  __device__ __forceinline__ Pack<T, kPiece> load_taps(const Place& at) const {
    const Ends row = rows_[at.row & (kPackRows - 1)];
    const int channel = first_channel(at, row);
    const int channel_taps = p.channel_taps.divisor, of = p.channel_taps.quotient(max(channel, 0));
    int tap = max(channel, 0) - of * channel_taps;
    const T* from = p.weight + row.from + of * p.weight_c + tap * p.channel_tap_step;
    Pack<T, kPiece> value;
#pragma unroll
    for (int k = 0; k < kPiece; ++k) {
      value.value[k] = narrow<T>(0.0f);
      if (static_cast<unsigned>(channel + k) < static_cast<unsigned>(p.source_channels)) value.value[k] = *from;
      const bool is_last = ++tap >= channel_taps;
      from += is_last ? p.weight_c - (channel_taps - 1) * p.channel_tap_step : p.channel_tap_step;
      if (is_last) tap = 0;
    }
    return value;
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
  static constexpr int tile_bytes(int row_bytes) { return kSm90TileM * row_bytes; }
  // Bytes from the packed weights to the tile of 64 rows that holds a row of operand A, in the stage of slot 0.
  __device__ __forceinline__ int64_t stage_of(const Row& row) const {
    const int64_t stage = p.slots[0][row.h].stage + p.slots[1][row.w].stage + chunk_ * p.chunk_stages;
    return (group_ * plan.m_tiles + m_tile_) * plan.column_bytes + stage * plan.stage_bytes +
           row.m / kSm90TileM * (tile_bytes(plan.row_bytes) * kParts);
  }

  // to: of the row. Its tile begins at a multiple of 1,024 bytes, the period of the swizzle.
  __device__ __forceinline__ void store_piece(int64_t to, int piece, uint4 value) const {
    const auto row = static_cast<uint32_t>(to) & 1023;
    unsigned char* const at = p.packed + to + (swizzled(row + piece * 16, plan.row_bytes) - row);
    if constexpr (kParts == 2) {
      *reinterpret_cast<uint4*>(at + tile_bytes(plan.row_bytes)) = low_parts(value);
    } else if constexpr (kSize == 4) {
      value = round_to_tf32(value);
    }
    *reinterpret_cast<uint4*>(at) = value;
  }

  // Stores the other columns that share rows, and zeros where a column has no tap.
  __device__ __forceinline__ void store_folded(const Row& row, int piece, uint4 value) const {
    const TapSlot w = p.slots[1][row.w];
    for (int f = 0; f < plan.tile.fold; ++f) {
      const int64_t first = stage_of(row) + row_of<T>(plan, row.m % kSm90TileM, f) * plan.row_bytes;
      const auto store = [&](int u, uint4 stored) {
        store_piece(first + static_cast<int64_t>(u) * plan.stage_bytes, piece, stored);
      };
      if (f > 0) store(w.slot + f, value);
      if (w.slot == 0) {
        for (int u = 0; u < f; ++u) store(u, make_uint4(0, 0, 0, 0));
      }
      if (w.slot == w.slots - 1) {
        for (int u = w.slots + f; u < w.slots + plan.tile.fold - 1; ++u) store(u, make_uint4(0, 0, 0, 0));
      }
    }
  }

  const PackParams<T>& p;
  const IgemmSm90Plan& plan;
  unsigned char* shared_;
  Ends* rows_;
  int pieces_;  // of a row
  int first_tap_, first_m_, chunk_, m_tile_, group_;
};

template <class T, int kParts>
__device__ __forceinline__ void pack_weight(const PackParams<T>& p, unsigned index, unsigned char* shared) {
  if (index == 0 && threadIdx.x == 0) *p.not_finite = 0;
  const PackBlock<T, kParts> block(p, index, shared);
  block.find_rows();
  __syncthreads();
  block.load();
  __syncthreads();
  block.store();
}

template <class T, int kParts>
__global__ void __launch_bounds__(kPackThreads) pack_weight_kernel(const __grid_constant__ PackParams<T> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ __align__(16) unsigned char shared[PackBlock<T, kParts>::kBytes];
  start_dependents();
  pack_weight<T, kParts>(p, blockIdx.x, shared);
#endif
}

// The first blocks of the launch pack weights, the others repack a source (lowerings/repack.cuh).
template <class T>
struct PrepareParams {
  PackParams<T> weight;
  unsigned weight_blocks;
  RepackTensor<T> source;
};
template <class T, int kParts>
__global__ void __launch_bounds__(kPackThreads) prepare_kernel(const __grid_constant__ PrepareParams<T> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(kPackThreads == kRepackThreads, "blocks of one size");
  constexpr int kBytes = std::max(PackBlock<T, kParts>::kBytes, RepackTile<T>::kBytes);
  __shared__ __align__(16) unsigned char shared[kBytes];
  start_dependents();
  if (blockIdx.x < p.weight_blocks) {
    pack_weight<T, kParts>(p.weight, blockIdx.x, shared);
  } else {
    const RepackTile<T> tile(p.source, blockIdx.x - p.weight_blocks, shared_address(shared));
    tile.load();
    __syncthreads();
    tile.template store<false>();
  }
#endif
}

}  // namespace deconv::sm90
