// What the col2im family's kernel gets, and its instances.
#pragma once

#include "../../col2im_plan.h"
#include "../../divisor.h"
#include "../../taps.h"
#include "../primitives.cuh"

namespace deconv::col2im_family {

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
  int tap_step[2], shift_step[2];
  int most_taps_w;  // of a phase
  Divisor by_column_parts, by_pitch, by_row_tiles, by_strips, by_segments, by_channels, by_taps, by_kernel_w;
  bool vector_source;  // 16-byte copies along the channels, where columns are not copied
  int vector_result;   // elements of one store
  Col2imConvPlan plan;
};

template <class T, int kRowTiles_, int kParts_, int kColumnBytes_>
struct ConvConfig {
  using Element = T;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kParts = kParts_;
  static constexpr int kColumnBytes = kColumnBytes_;
  static constexpr bool kPlanes = kColumnBytes > 0;  // staged [channel][pixel], else [pixel][channel]
  static constexpr int kUnit = kCol2imUnitBytes / static_cast<int>(sizeof(T));  // channels
  static constexpr int kDepth = 2 * kUnit;                                      // of one product
};

}  // namespace deconv::col2im_family
