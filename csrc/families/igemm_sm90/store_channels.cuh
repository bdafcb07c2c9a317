// Stores with channels adjacent, from registers: eight lanes (float32), or four after movmatrix (16 bits), fill a
// sector of one pixel.
#pragma once

#include "families/igemm_sm90/result_tile.cuh"

namespace deconv::sm90 {

template <class Tile>
class ChannelStore : Tile {
  using T = typename Tile::Element;
  using Tile::exchange;
  using Tile::exists;
  using Tile::groups_with;
  using Tile::kGroups;
  using Tile::kMajorM;
  using Tile::kPhases;
  using Tile::lane_;
  using Tile::next;
  using Tile::p;
  using Tile::store_global;
  using Tile::walk_from;
  using typename Tile::Accumulators;
  using typename Tile::Walk;
  using typename Tile::Window;

 public:
  __device__ __forceinline__ explicit ChannelStore(const Tile& tile) : Tile(tile) {}

  template <bool kOneLine>
  __device__ __forceinline__ void store(const Window& v, Accumulators& acc) const {
    constexpr bool kShort = sizeof(T) == 2;
    const int inner = kShort ? lane_ / 4 : lane_ % 4 * 2;
    const int channel = !kShort ? lane_ / 4 : kMajorM ? lane_ % 4 / 2 * 4 + lane_ % 2 * 8 : lane_ % 4 * 4;
    const int channels = v.channels - channel;
#pragma unroll
    for (int k = 0; k < kPhases; ++k) {
      Walk walk = walk_from(v, v.first + inner * v.inner + channel + k * p.result_w);
      // Groups that hold this lane's pixel, and (float32) the next pixel.
      const int count = groups_with(v, k, inner), second = kShort ? 0 : groups_with(v, k, inner + 1);
      if constexpr (kShort) {
        p.vector_result > 1 ? store_by<4, kOneLine>(v, acc[k], walk, channels > 0 ? count : 0, channels)
                            : store_by<1, kOneLine>(v, acc[k], walk, count, channels);
      } else {
        const int low = channels > 0 ? count : 0, high = channels > 8 ? count : 0;
        const int second_low = channels > 0 ? second : 0, second_high = channels > 8 ? second : 0;
#pragma unroll
        for (int j = 0; j < kGroups; ++j, next(kOneLine, v, walk)) {
          const float* a = acc[k] + 4 * j;
          if (exists(kOneLine, walk, j, low)) walk.at[0] = a[0];
          if (exists(kOneLine, walk, j, high)) walk.at[8] = a[2];
          if (exists(kOneLine, walk, j, second_low)) walk.at[v.inner] = a[1];
          if (exists(kOneLine, walk, j, second_high)) walk.at[v.inner + 8] = a[3];
        }
      }
    }
  }

 private:
  // 16 bits: stores four channels of each group's pixel, kCount a store.
  template <int kCount, bool kOneLine>
  __device__ __forceinline__ void store_by(const Window& v, const float (&acc)[kGroups * 4], Walk walk, int count,
                                           int channels) const {
    constexpr int kAhead = kGroups % 4 == 0 ? 4 : 2;
    static_assert(kGroups % kAhead == 0, "whole batches of groups");
#pragma unroll
    for (int first = 0; first < kGroups; first += kAhead) {
      uint32_t low[kAhead], high[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const float* a = acc + 4 * (first + j);
        low[j] = transposed(pack_pair<T>(a[0], a[1]));
        high[j] = transposed(pack_pair<T>(a[2], a[3]));
        if constexpr (kMajorM) exchange(low[j], high[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j, next(kOneLine, v, walk)) {
        if (!exists(kOneLine, walk, first + j, count)) continue;
        if constexpr (kCount == 4) {
          store_global(walk.at, low[j], high[j]);
        } else {
          const Pack<uint32_t, 2> words{low[j], high[j]};
          const Pack<T, 4> values = reinterpret_cast<const Pack<T, 4>&>(words);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            if (c < channels) walk.at[c] = values.value[c];
          }
        }
      }
    }
  }
};

}  // namespace deconv::sm90
