// What the rows family's kernel gets, and its instances.
#pragma once

#include "../../divisor.h"
#include "../../rows_plan.h"
#include "../../taps.h"
#include "../primitives.cuh"

namespace deconv::rows_family {

template <class T>
struct ConvParams {
  const T* source;  // (batch, source channels, source height, source width), any strides
  const T* weight;
  const T* bias;  // (result channels) or null
  T* result;      // (batch, result channels, result height, result width), columns adjacent
  int64_t source_n, source_c, source_h, source_w;  // strides in elements
  int64_t weight_m, weight_c, weight_h, weight_w;  // m: result channel, c: source channel, within a group
  int64_t weight_group;
  int64_t result_n, result_m, result_h, result_w;
  int batch, groups;
  int source_channels;  // per group
  int result_channels;  // per group
  AxisGeometry axis[2];
  uint32_t idle[2];  // bits of phases without taps
  Divisor by_tiles_w, by_batch, by_group_blocks, by_quads, by_units;
  Divisor by_tiles, by_group_tiles;  // tiles of 8 channels of a block and of a group in it
  int quads;           // loads of four columns that a staged row of a unit has
  bool vector_source;  // four columns are one aligned load
  RowsConvPlan plan;
};

template <class T, int kPixelTiles_, int kChannelTiles_>
struct ConvConfig {
  using Element = T;
  static constexpr int kPixelTiles = kPixelTiles_, kChannelTiles = kChannelTiles_;
  static constexpr int kUnit = kRowsUnitBytes / static_cast<int>(sizeof(T));  // channels
  static constexpr int kThreads = 32 * kRowsMostWarps;
};

}  // namespace deconv::rows_family
