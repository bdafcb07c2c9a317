// Stores blocks of a sub_pixel result (Problem::blocks): a pixel is a block of height x width elements of another
// tensor.
//
//   element (r, k) of channel m of the block at (h, w)  ->  [m, h * height + r - shift_h, w * width + k - shift_w]
//
// A result channel is an element. It has its own offset in the block, and its own set of pixels in which it exists.
#pragma once

#include "families/igemm_sm90/result_tile.cuh"

namespace deconv::sm90 {

template <class Tile>
class BlockStore : Tile {
  using T = typename Tile::Element;
  using Tile::exchange;
  using Tile::first_channel_;
  using Tile::first_group;
  using Tile::kFold;
  using Tile::kGroups;
  using Tile::kMajorM;
  using Tile::kPhases;
  using Tile::kSize;
  using Tile::lane_;
  using Tile::p;
  using Tile::store_global;
  using Tile::warpgroup_;
  using typename Tile::Accumulators;
  using typename Tile::Cursor;

 public:
  __device__ __forceinline__ explicit BlockStore(const Tile& tile) : Tile(tile) {}

  __device__ __forceinline__ void store(const Item& item, const Accumulators& acc) const {
    if constexpr (kSize == 4) {
      constexpr bool kMayExchange = sm90_may_exchange(kSize, Sm90Tile{kGroups, kPhases, kFold});
      if (kMayExchange && p.plan.exchanges) {
        store_blocks<kMayExchange>(item, acc);
      } else {
        store_blocks<false>(item, acc);
      }
    } else {
      p.vector_result == 4   ? store_blocks_by<4>(item, acc)
      : p.vector_result == 2 ? store_blocks_by<2>(item, acc)
                             : store_blocks_by<1>(item, acc);
    }
  }

 private:
  // The pixels q in [0, count) of a tile that begins with pixel `first` whose block has a row, or column, k in the
  // result.
  struct Range {
    int begin, end;
    __device__ __forceinline__ bool has(int i) const { return i >= begin && i < end; }
  };
  __device__ __forceinline__ static Range pixels_with(int first, int count, int k, int shift, int size,
                                                      const Divisor& block) {
    const int last = size - 1 + shift - k, end = last < 0 ? 0 : block.quotient(last) + 1;
    return {max((k < shift ? 1 : 0) - first, 0), min(end - first, count)};
  }

  // Walks the groups of this warpgroup in order: the address of this lane's pixel, elements to the next group, and
  // elements to add at the end of a line.
  struct BlockWalk {
    T* at;
    int64_t group, line;
    int groups_left;  // in the line
    int inner;  // this lane's pixel within a group of the tile
    bool groups_of_columns, is_height;
  };
  __device__ __forceinline__ BlockWalk block_walk(const Item& item, int inner) const {
    const IgemmSm90Plan& plan = p.plan;
    BlockWalk walk;
    walk.groups_of_columns = plan.inner == Sm90Inner::kWidth;
    walk.is_height = plan.inner == Sm90Inner::kHeight;
    if (warpgroup_ == 1 && !walk.groups_of_columns) inner += walk.is_height ? plan.second.h : plan.second.n;
    walk.inner = inner;
    walk.group = walk.groups_of_columns ? 8 * p.result_w : p.result_w;
    const int64_t next_line = walk.is_height ? p.result_n : p.result_h;
    walk.line = next_line - plan.line_groups * walk.group;
    const Cursor first = first_group();
    walk.groups_left = plan.line_groups - first.group;
    walk.at = p.result + item.n * p.result_n + item.h * p.result_h + item.w * p.result_w + inner * inner_step(walk) +
              first.group * walk.group + first.line * next_line - p.apart.blocks.shift_h * p.apart.blocks.stride_h -
              p.apart.blocks.shift_w;
    return walk;
  }
  __device__ __forceinline__ int64_t inner_step(const BlockWalk& walk) const {
    return walk.groups_of_columns ? p.result_w : walk.is_height ? p.result_h : p.result_n;
  }

  // Channel `channel` of the tile at this lane's pixel: its offset from the pixel's first element, and a bit for each
  // group of this warpgroup in which it exists.
  struct BlockElement {
    int offset;
    uint32_t groups;
  };
  __device__ __forceinline__ BlockElement block_element(const Item& item, const BlockWalk& walk, int channel,
                                                        int pixel) const {
    const IgemmSm90Plan& plan = p.plan;
    const BlockedResult& b = p.apart.blocks;
    const int of_group = item.m_tile * plan.tile_m + channel, inner = walk.inner + pixel;
    const auto [m, r, k] = in_block(b, item.group * p.result_channels + of_group);
    BlockElement element{static_cast<int>(m * p.result_m) + r * b.stride_h + k, 0};
    const Range images{0, min(p.batch - item.n, plan.pixels.n)};
    const Range height = pixels_with(item.h, plan.pixels.h, r, b.shift_h, b.size_h, b.height);
    const Range width = pixels_with(item.w, plan.pixels.w, k, b.shift_w, b.size_w, b.width);
    const bool exists = walk.groups_of_columns || (walk.is_height ? height.has(inner) : images.has(inner));
    if (!exists || of_group >= p.result_channels) return element;
    const int first_line = walk.is_height ? images.begin : height.begin, end = walk.is_height ? images.end : height.end;
    const int of_line = walk.groups_of_columns ? width.begin > inner : width.begin;  // the first group
    const int end_of_line = walk.groups_of_columns ? (width.end - inner + 7) >> 3 : width.end;
    const Cursor first = first_group();
    int begin = -first.group;  // a line's first group, among this warpgroup's
#pragma unroll 1
    for (int line = first.line; begin < kGroups && line < end; ++line, begin += plan.line_groups) {
      if (line >= first_line) element.groups |= bits_below(begin + end_of_line) & ~bits_below(begin + of_line);
    }
    return element;
  }
  // A mask of the lowest `count` bits; count may be negative or above 32.
  __device__ __forceinline__ static uint32_t bits_below(int count) {
    return count <= 0 ? 0 : count >= 32 ? ~0u : (1u << count) - 1;
  }
  __device__ __forceinline__ void next(BlockWalk& walk) const {
    walk.at += walk.group;
    if (--walk.groups_left == 0) {
      walk.at += walk.line;
      walk.groups_left = p.plan.line_groups;
    }
  }

  // float32: stores two pixels of a group in two channels. If blocks have short rows and neighbouring pixels are
  // neighbouring blocks, two lanes exchange pixels (kExchanges): the elements of a block's row are then stored
  // together.
  template <bool kExchanges>
  __device__ __forceinline__ void store_blocks(const Item& item, const Accumulators& acc) const {
    const int apart = !kExchanges ? 0 : p.apart.blocks.width.divisor > 2 ? 4 : 2;  // channels
    const int channel = first_channel_ + (lane_ / 4 & ~apart), pixel = kExchanges && (lane_ / 4 & apart) != 0 ? 1 : 0;
    BlockWalk walk = block_walk(item, lane_ % 4 * 2 + pixel);
    const int64_t second = kExchanges ? 0 : inner_step(walk);
    // In the order of the accumulators: the pixels of each channel, or after the exchange one pixel of two channels.
    const auto find = [&](int half, int i) {
      return block_element(item, walk, channel + half * 8 + (kExchanges ? i * apart : 0), kExchanges ? 0 : i);
    };
    const BlockElement element[4] = {find(0, 0), find(0, 1), find(1, 0), find(1, 1)};
#pragma unroll
    for (int j = 0; j < kGroups; ++j, next(walk)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float a = acc[0][4 * j + 2 * half], b = acc[0][4 * j + 2 * half + 1];
        if constexpr (kExchanges) {
          const float other = __shfl_xor_sync(~0u, pixel == 0 ? b : a, 4 * apart);
          a = pixel == 0 ? a : other;
          b = pixel == 0 ? other : b;
        }
        const BlockElement &one = element[2 * half], &next = element[2 * half + 1];
        if ((one.groups >> j & 1) != 0) walk.at[one.offset] = narrow<T>(a);
        if ((next.groups >> j & 1) != 0) walk.at[next.offset + second] = narrow<T>(b);
      }
    }
  }

  // 16 bits: stores four adjacent channels of this lane's pixel of a group, kCount a store.
  template <int kCount>
  __device__ __forceinline__ void store_blocks_by(const Item& item, const Accumulators& acc) const {
    BlockWalk walk = block_walk(item, lane_ / 4);
    const int channel = first_channel_ + (kMajorM ? lane_ % 4 / 2 * 4 + lane_ % 2 * 8 : lane_ % 4 * 4);
    BlockElement element[4 / kCount];
#pragma unroll
    for (int i = 0; i < 4 / kCount; ++i) element[i] = block_element(item, walk, channel + i * kCount, 0);
#pragma unroll
    for (int j = 0; j < kGroups; ++j, next(walk)) {
      const float* a = acc[0] + 4 * j;
      uint32_t low = transposed(pack_pair<T>(a[0], a[1])), high = transposed(pack_pair<T>(a[2], a[3]));
      if constexpr (kMajorM) exchange(low, high);
      const Pack<uint32_t, 2> words{low, high};
      const Pack<T, 4> values = reinterpret_cast<const Pack<T, 4>&>(words);
#pragma unroll
      for (int i = 0; i < 4 / kCount; ++i) {
        if ((element[i].groups >> j & 1) == 0) continue;
        T* const to = walk.at + element[i].offset;
        if constexpr (kCount == 4) {
          store_global(to, low, high);
        } else if constexpr (kCount == 2) {
          *reinterpret_cast<uint32_t*>(to) = words.value[i];
        } else {
          *to = values.value[i];
        }
      }
    }
  }
};

}  // namespace deconv::sm90
