// Stores with columns adjacent and groups of columns, from registers: a lane has two pixels of each channel, with all
// phases a run of adjacent columns.
#pragma once

#include "families/igemm_sm90/result_tile.cuh"

namespace deconv::sm90 {

template <class Tile>
class RunStore : Tile {
  using T = typename Tile::Element;
  using Tile::exists;
  using Tile::groups_with;
  using Tile::kGroups;
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
  __device__ __forceinline__ explicit RunStore(const Tile& tile) : Tile(tile) {}

  template <bool kOneLine>
  __device__ __forceinline__ void store(const Window& v, Accumulators& acc) const {
    constexpr int kRun = 2 * kPhases;
    if (p.vector_result == kRun) {
      store_by<kRun, kOneLine>(v, acc);
    } else if (kPhases == 2 && p.vector_result == 2) {
      store_by<2, kOneLine>(v, acc);
    } else {
      store_by<1, kOneLine>(v, acc);
    }
  }

  // Flat lines: a group may begin in one line and end in the next. kCount: pixels of a store; 2 needs lines of an even
  // number of pixels.
  template <int kCount>
  __device__ __forceinline__ void store_flat(const Window& v, const Accumulators& acc) const {
    const int pitch = p.plan.halo.w, channels = v.channels - lane_ / 4;
    const int64_t next_line = v.line - pitch, next_half = 8 * p.result_m;
    const auto store = [](T* at, const float* values) {
      if constexpr (kCount == 1) {
        *at = narrow<T>(values[0]);
      } else {
        store_neighbours<kCount>(at, values);
      }
    };
#pragma unroll
    for (int pixel = 0; pixel < 2; pixel += kCount) {
      int column = lane_ % 4 * 2 + pixel, lines = v.lines;
      T* at = v.first + lane_ / 4 * p.result_m + column;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const bool exists = column < v.widths[0] && lines > 0;
        if (exists && channels > 0) store(at, acc[0] + 4 * j + pixel);
        if (exists && channels > 8) store(at + next_half, acc[0] + 4 * j + 2 + pixel);
        column += 8;
        at += 8;
        if (column >= pitch) {
          column -= pitch;
          at += next_line;
          --lines;
        }
      }
    }
  }

 private:
  // kCount adjacent elements a store.
  template <int kCount, bool kOneLine>
  __device__ __forceinline__ void store_by(const Window& v, Accumulators& acc) const {
    constexpr int kRun = 2 * kPhases;
    const int inner = lane_ % 4 * 2;
    int count[kRun];  // groups that hold each element of the run
#pragma unroll
    for (int e = 0; e < kRun; ++e) count[e] = groups_with(v, e % kPhases, inner + e / kPhases);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = lane_ / 4 + 8 * half;
      if (channel >= v.channels) continue;
      Walk walk = walk_from(v, v.first + channel * p.result_m + inner * v.inner);
#pragma unroll
      for (int j = 0; j < kGroups; ++j, next(kOneLine, v, walk)) {
#pragma unroll
        for (int e = 0; e < kRun; e += kCount) {
          float run[kCount];
#pragma unroll
          for (int i = 0; i < kCount; ++i) run[i] = acc[(e + i) % kPhases][4 * j + 2 * half + (e + i) / kPhases];
          T* const at = walk.at + e / kPhases * v.inner + e % kPhases * p.result_w;
          if (exists(kOneLine, walk, j, count[e])) {
            if constexpr (kCount == 1) {
              *at = narrow<T>(run[0]);
            } else {
              store_neighbours<kCount>(at, run);
            }
          }
        }
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ static void store_neighbours(T* address, const float* values) {
    if constexpr (sizeof(T) == 4) {
      if constexpr (kCount == 4) {
        *reinterpret_cast<float4*>(address) = make_float4(values[0], values[1], values[2], values[3]);
      } else {
        *reinterpret_cast<float2*>(address) = make_float2(values[0], values[1]);
      }
    } else if constexpr (kCount == 4) {
      store_global(address, pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3]));
    } else {
      *reinterpret_cast<uint32_t*>(address) = pack_pair<T>(values[0], values[1]);
    }
  }
};

}  // namespace deconv::sm90
