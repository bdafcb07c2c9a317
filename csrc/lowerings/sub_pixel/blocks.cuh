// Rewrites a tensor in blocks of pixels, or back (sub_pixel.h). Copies bits; a *unit* is what is adjacent in both.
#pragma once

#include <cstdint>

#include "core/divisor.h"
#include "device/primitives.cuh"

namespace deconv::sub_pixel {

inline constexpr int kBlocksThreads = 256;
inline constexpr int kPieceBytes = 16;  // of a block, that a thread moves
// Where narrow accesses store to the plain tensor, a warp takes two pieces of 16 blocks: whole sectors on either side.
inline constexpr int kLogTransposedPieces = 1, kLogTransposedBlocks = 4, kTransposedBlocks = 1 << kLogTransposedBlocks;

template <int kBytes>
struct UnitOf;
template <>
struct UnitOf<2> {
  using Type = uint16_t;
};
template <>
struct UnitOf<4> {
  using Type = uint32_t;
};
template <>
struct UnitOf<8> {
  using Type = uint2;
};
template <>
struct UnitOf<16> {
  using Type = uint4;
};

// Strides, widths and counts along the width are in units.
struct BlocksParams {
  const void* source;
  void* result;
  int64_t plain_n, plain_c, plain_h, plain_w;
  int size_h, size_w;  // of an image
  int height, width;   // of a block
  int shift_h, shift_w;
  int units;  // of a block; its last piece is filled with zeros
  bool channels_fastest;  // then columns, then rows; else columns, rows, channels
  Divisor fastest, middle;  // extents of the first two
  // Threads take 1 << log_together pieces of 1 << log_blocks adjacent blocks, then the blocks' other pieces, then the
  // other blocks.
  int log_together, log_blocks;
  Divisor piece_groups, block_groups, down;  // in a block, in a line of blocks; lines of an image
  int pieces, across;  // of a block; blocks of a line
  int64_t threads;
};

// kToBlocks: from the plain tensor to blocks. May start early then: only the stores await the kernel before.
template <int kUnitBytes, bool kToBlocks>
__global__ void __launch_bounds__(kBlocksThreads) blocks_kernel(const __grid_constant__ BlocksParams p) {
  using Unit = typename UnitOf<kUnitBytes>::Type;
  constexpr int kUnits = kPieceBytes / kUnitBytes;
  start_dependents();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlocksThreads + threadIdx.x;
  const int log_unit = p.log_together + p.log_blocks, within = static_cast<int>(thread) & ((1 << log_unit) - 1);
  const int group = static_cast<int>(thread >> log_unit), groups = p.piece_groups.quotient(group);
  const int line = p.block_groups.quotient(groups), image = p.down.quotient(line);
  const int piece = (p.piece_groups.remainder(group) << p.log_together) + (within & ((1 << p.log_together) - 1));
  const int column = (p.block_groups.remainder(groups) << p.log_blocks) + (within >> p.log_together);
  if (thread < p.threads && piece < p.pieces && column < p.across) {
    const int64_t blocked = (static_cast<int64_t>(line) * p.across + column) * p.pieces + piece;
    const int first = piece * kUnits;
    const int top = p.down.remainder(line) * p.height - p.shift_h, left = column * p.width - p.shift_w;
    int middle = p.fastest.quotient(first), slowest = p.middle.quotient(middle);
    int fastest = first - middle * static_cast<int>(p.fastest.divisor);
    middle -= slowest * static_cast<int>(p.middle.divisor);
    int64_t at[kUnits];
    bool exists[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int c = p.channels_fastest ? fastest : slowest;
      const int h = top + (p.channels_fastest ? slowest : middle), w = left + (p.channels_fastest ? middle : fastest);
      exists[i] = first + i < p.units && h >= 0 && h < p.size_h && w >= 0 && w < p.size_w;
      at[i] = image * p.plain_n + c * p.plain_c + h * p.plain_h + w * p.plain_w;
      if (++fastest == static_cast<int>(p.fastest.divisor)) {
        fastest = 0;
        if (++middle == static_cast<int>(p.middle.divisor)) {
          middle = 0;
          ++slowest;
        }
      }
    }
    alignas(kPieceBytes) Unit unit[kUnits];
    if constexpr (kToBlocks) {
      const Unit* const source = static_cast<const Unit*>(p.source);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) unit[i] = exists[i] ? source[at[i]] : Unit{};
      await_predecessors();
      static_cast<uint4*>(p.result)[blocked] = reinterpret_cast<const uint4&>(unit);
    } else {
      reinterpret_cast<uint4&>(unit) = static_cast<const uint4*>(p.source)[blocked];
      Unit* const result = static_cast<Unit*>(p.result);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (exists[i]) result[at[i]] = unit[i];
      }
    }
  }
}

}  // namespace deconv::sub_pixel
