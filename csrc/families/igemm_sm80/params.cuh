// Parameters of a launch of igemm_sm80's forward or grad_input, and the work of a block.
#pragma once

#include "core/divisor.h"
#include "core/taps.h"
#include "device/mma_sm80.cuh"
#include "device/primitives.cuh"
#include "families/igemm_sm80/plan.h"

namespace deconv::sm80 {

inline constexpr int kStepBytes = 32;  // of channels, that one mma.sync takes

// Taps of one (phase, source phase) along one axis: how many, the halo pixel that the first reads, pixels to the next.
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
  bool vector_result;  // 16 bytes of channels, or pairs of columns, at once
  AxisGeometry axis[2];
  TapRows taps[2][kSm80MaxStride];  // [axis][phase * planes + plane]
  int totals[2][kSm80MaxStride];  // [axis][phase]: taps of all source phases
  Divisor halo_w, halo_h, halo_rows, planes_w, pixels_w, pixels_h;
  Divisor m_tiles, runs, phases, phases_w, tiles_w, tiles_h;
  IgemmSm80Plan plan;
};

// Elements of a band of channels, and of 16 bytes.
template <class T>
inline constexpr int kBand = kSm80BandBytes / static_cast<int>(sizeof(T));
template <class T>
inline constexpr int kPiece = 16 / static_cast<int>(sizeof(T));

// The result channel that row 8 * half + g of a matrix of 16 rows computes, of the 32 that two matrices share. Rows are
// permuted so that a lane has 16 bytes of adjacent channels of a pixel (epilogue.cuh).
template <class T>
__host__ __device__ constexpr int channel_of_row(int tile, int row) {
  const int quarter = tile % 2 * 2 + row / 8, g = row % 8;
  return tile / 2 * 32 + (sizeof(T) == 2 ? g / 2 * 8 + quarter * 2 + g % 2 : g * 4 + quarter);
}

// A block's work: a tile of result channels of one group, and consecutive work tiles.
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

// A work tile (`item`) is a tile of pixels in one phase of the result. The phases of a tile are consecutive.
struct Phase {
  int h, w;
};
template <class T>
__device__ __forceinline__ Phase phase_of(const ConvParams<T>& p, int item) {
  const int phase = p.phases.remainder(item), h = p.phases_w.quotient(phase);
  return {h, phase - h * p.plan.phases_w};
}

// A tile's first pixel, in q (core/taps.h).
struct Tile {
  int n, h, w;
};
template <class T>
__device__ __forceinline__ Tile tile_of(const ConvParams<T>& p, int item) {
  const int index = p.phases.quotient(item), line = p.tiles_w.quotient(index), n = p.tiles_h.quotient(line);
  return {n * p.plan.pixels.n, (line - n * p.plan.tiles.h) * p.plan.pixels.h,
          (index - line * p.plan.tiles.w) * p.plan.pixels.w};
}

}  // namespace deconv::sm80
