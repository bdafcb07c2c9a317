// Parameters of a launch of gemm_sm80.cuh, and most of those of gemm_sm90.cuh.
#pragma once

#include "core/divisor.h"
#include "core/taps.h"
#include "device/primitives.cuh"
#include "families/col2im/plan.h"

namespace deconv::col2im {

template <class T, class Plan = Col2imConvPlan>
struct ConvParams {
  using Element = T;

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
  int kinds;  // of results (scatter_add.cuh)
  Divisor by_run, by_blocks, by_pitch, by_row_tiles, by_strips, by_segments, by_channels, by_taps, by_kernel_w;
  int column_bytes;  // the plan's, or less if the source is aligned to less
  bool vector_source;  // 16-byte copies along the channels, where columns are not copied
  int vector_result;   // elements of one store
  Plan plan;
};

}  // namespace deconv::col2im
