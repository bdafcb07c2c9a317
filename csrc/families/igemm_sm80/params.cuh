// What one launch of the mma family's convolution needs.
#pragma once

#include "core/divisor.h"
#include "core/taps.h"
#include "device/mma_sm80.cuh"
#include "device/primitives.cuh"
#include "families/igemm_sm80/plan.h"

namespace deconv::mma {

inline constexpr int kStepBytes = 32;  // of channels, that one product takes

// The taps of one (phase, plane) along one axis: how many, and the halo pixel at which the first one reads.
struct TapRows {
  int count, first, step;
};

template <class T>
struct ConvParams {
  const T* source;  // (batch, groups * source channels, height, width), any strides, in elements
  int64_t source_n, source_c, source_h, source_w, source_group;
  const unsigned char* packed;  // pack_weight.cuh
  const T* bias;
  T* result;
  int64_t result_n, result_m, result_h, result_w;
  int batch;
  int source_channels, result_channels;  // per group
  bool vector_result;  // packs of channels, or pairs of columns
  AxisGeometry axis[2];
  TapRows taps[2][kMmaMaxStride];  // [axis][phase * planes + plane]
  int totals[2][kMmaMaxStride];  // [axis][phase]: taps of all planes
  Divisor halo_w, halo_h, halo_rows, planes_w, pixels_w, pixels_h;
  Divisor m_tiles, runs, phases, phases_w, tiles_w, tiles_h;
  MmaConvPlan plan;
};

// Elements of a band of channels, and of 16 bytes.
template <class T>
inline constexpr int kBand = kMmaBandBytes / static_cast<int>(sizeof(T));
template <class T>
inline constexpr int kPiece = 16 / static_cast<int>(sizeof(T));

// The result channel that row 8 * (half of the matrix) + g of 16 rows computes, of 32 that two of them share. The rows
// are permuted so that a lane holds 16 bytes of neighbouring channels of a pixel (result.cuh).
template <class T>
__host__ __device__ constexpr int channel_of_row(int tile, int row) {
  const int quarter = tile % 2 * 2 + row / 8, g = row % 8;
  return tile / 2 * 32 + (sizeof(T) == 2 ? g / 2 * 8 + quarter * 2 + g % 2 : g * 4 + quarter);
}

// What a block computes: a tile of result channels of one group, for some items one after the other.
struct Work {
  int group, m_tile;
  int first_item, end_item;
};

template <class T>
__device__ __forceinline__ Work find_work(const ConvParams<T>& p) {
  const int run = p.m_tiles.quotient(blockIdx.x), group = p.runs.quotient(run);
  Work work;
  work.group = group;
  work.m_tile = blockIdx.x - run * p.plan.m_tiles;
  work.first_item = (run - group * p.plan.runs) * p.plan.items_per_block;
  work.end_item = min(work.first_item + p.plan.items_per_block, p.plan.items);
  return work;
}

// A tile of pixels in one phase of the result. The phases of a tile are neighbours.
struct Phase {
  int h, w;
};
template <class T>
__device__ __forceinline__ Phase phase_of(const ConvParams<T>& p, int item) {
  const int phase = p.phases.remainder(item), h = p.phases_w.quotient(phase);
  return {h, phase - h * p.plan.phases_w};
}

// Its first pixel, in q.
struct Tile {
  int n, h, w;
};
template <class T>
__device__ __forceinline__ Tile tile_of(const ConvParams<T>& p, int item) {
  const int index = p.phases.quotient(item), line = p.tiles_w.quotient(index), n = p.tiles_h.quotient(line);
  return {n * p.plan.pixels.n, (line - n * p.plan.tiles.h) * p.plan.pixels.h,
          (index - line * p.plan.tiles.w) * p.plan.pixels.w};
}

}  // namespace deconv::mma
