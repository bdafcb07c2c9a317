// Parameters of a launch of conv.cuh, and the configuration of an instance.
#pragma once

#include "core/divisor.h"
#include "core/taps.h"
#include "device/primitives.cuh"
#include "families/small_channel/plan.h"

namespace deconv::small_channel {

// How whole tiles of results are stored; tiles at an end may have fewer runs.
struct SmallChannelStore {
  int log_lanes, log_runs;  // lanes that share a run, and runs of a line at once
  bool one;  // run a line
};

template <class T>
struct ConvParams {
  const T* source;  // (batch, source channels, source height, source width), any strides
  const T* weight;
  const T* bias;  // (result channels) or null
  T* result;      // (batch, result channels, result height, result width)
  int64_t source_n, source_c, source_h, source_w;  // strides in elements
  int64_t weight_m, weight_c, weight_h, weight_w;  // m: result channel, c: source channel, within a group
  int64_t weight_group;
  int64_t result_n, result_m, result_h, result_w;
  int batch, groups;
  int source_channels;  // per group
  int result_channels;  // per group
  AxisGeometry axis[2];
  SmallChannelAxis walk[2];
  Divisor by_units, by_line, by_lines, by_row_w, by_channels, by_tiles_w, by_tiles_h, by_staged_lines, by_heights;
  Divisor by_row_quads;  // quads of a staged row
  int quads, quad_lead;  // quads of a buffer; columns of a row's first quad that lie before the row
  bool vector_source;  // 16-byte copies along the channels
  int vector_result;   // elements of one store
  SmallChannelStore store;
  SmallChannelPlan plan;
  SmallChannelTables at;
};

template <class T, int kRowTiles_, int kParts_, bool kQuads_>
struct ConvConfig {
  using Element = T;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kPixelTiles = small_channel_pixel_tiles(kRowTiles);
  static constexpr int kParts = kParts_;
  static constexpr int kUnit = kSmallChannelUnitBytes / static_cast<int>(sizeof(T));  // channels
  static constexpr bool kQuads = kQuads_;  // four columns of the source at a time
  static constexpr int kBlocks = small_channel_blocks(kRowTiles, kParts, kQuads);
};

}  // namespace deconv::small_channel
