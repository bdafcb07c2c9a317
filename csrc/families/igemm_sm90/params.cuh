// Parameters of a launch of conv.cuh, the configuration of an instance, and how a block finds its work tiles.
//
// In the code, `Item` is a work tile, `chunk` a k_block, `plane` a source_phase and `Ring` a Pipeline. `parts` 2 is
// tf32x3, `in_turns` ping-pong, `keep_halo` a reused halo.
#pragma once

#include <cuda.h>

#include "core/divisor.h"
#include "core/problem.h"
#include "core/taps.h"
#include "device/primitives.cuh"
#include "families/igemm_sm90/plan.h"

namespace deconv::sm90 {

// The taps of one (phase, source_phase) along one axis: their number, the first one's index in ConvParams::tap_row, and
// the first one's index in the weight. ConvParams::tap_step leads to the next in the weight.
struct alignas(4) TapRange {
  uint8_t count, first, k;
};
static_assert(kSm90MaxKernel + 1 <= UINT8_MAX);

// ResultBlocks for kernels. ConvParams has the strides of whole blocks and of their channels.
struct BlockedResult {
  Divisor height, width;
  int shift_h, shift_w, size_h, size_w;
  int stride_h;  // elements
  Divisor line;  // adjacent columns that have a bias each
};

inline BlockedResult blocked_result(const ResultBlocks& blocks) {
  return {divide_by(blocks.height),          divide_by(blocks.width),         static_cast<int>(blocks.shift_h),
          static_cast<int>(blocks.shift_w),  static_cast<int>(blocks.size_h), static_cast<int>(blocks.size_w),
          static_cast<int>(blocks.stride_h), divide_by(blocks.line)};
}

// A result channel as an element of a block: column k of row r of channel m.
struct InBlock {
  int m, r, k;
};
__device__ __forceinline__ InBlock in_block(const BlockedResult& b, int channel) {
  const int rows = b.width.quotient(channel), m = b.height.quotient(rows);
  return {m, rows - m * static_cast<int>(b.height.divisor), channel - rows * static_cast<int>(b.width.divisor)};
}

template <class T>
struct ConvParams {
  CUtensorMap source_map[kSm90MaxPlanes];  // and of results: sm90_result_map
  CUtensorMap weight_map;  // for weights in place
  const T* source;  // (batch, groups * source channels, height, width), any strides, in elements
  int64_t source_n, source_c, source_h, source_w;
  const unsigned char* packed;  // lowerings/pack_weight.cuh
  int weight_stride[2], tap_step[2];  // by axis, for weights in place: elements; taps
  const T* bias;
  T* result;
  int64_t result_n, result_m, result_h, result_w;
  int batch;
  int source_channels, result_channels;  // per group, merged ones together
  int* not_finite;  // set if a sum is not finite, perhaps by products that are not its own: nonfinite_repair.cuh
  bool vector_source;  // channels adjacent, 16-byte loads allowed
  int vector_result;  // adjacent elements of a lane that one store may take
  AxisGeometry axis[2];
  union Apart {
    AxisGeometry window[2];  // im2col, which stores no blocks: the axes of the original problem
    BlockedResult blocks;    // plan.to_blocks
    Apart() : window{} {}
  } apart;
  int window_channels;  // im2col: source channels of the original problem
  TapRange taps[2][kSm90MaxStride];  // [axis][phase * planes + plane]; a parameter: loops over taps are uniform
  uint16_t tap_row[2][kSm90MaxKernel + 1];  // by axis: the halo's row of a tap's first pixel
  uint8_t plane_start[2][kSm90MaxStride];  // by axis: first pixel of each source_phase that a tap reads
  Divisor columns, phase_parts, m_tiles, tiles_w, tiles_h, phases_across, planes_w, halo_w,
      halo_h;  // by the plan's numbers
  Divisor step_w;  // by the source's step from one pixel of a source_phase to the next
  Divisor result_step[2];  // by axis: from one pixel of a phase to the next
  IgemmSm90Plan plan;
};

// Compile-time configuration of an instance.
template <class T, int kGroups_, int kPhases_, int kFold_, int kParts_, int kRowBytes_, Sm90Source kSource_,
          bool kSplits_, bool kMajorM_, bool kToBlocks_>
struct ConvConfig {
  using Element = T;
  static constexpr int kGroups = kGroups_;
  static constexpr int kPhases = kPhases_;
  static constexpr int kFold = kFold_;
  static constexpr int kParts = kParts_;
  static constexpr int kRowBytes = kRowBytes_;
  // Bytes of a stage's weights (one tap of one k_block), for one warpgroup and one part.
  static constexpr int kStageBytes = kSm90TileM * kRowBytes;
  static constexpr Sm90Source kSource = kSource_;
  static constexpr bool kSplits = kSplits_;  // a work tile is a cluster's
  static constexpr bool kMajorM = kMajorM_;  // a row of the weights in shared memory is one source channel
  static constexpr bool kToBlocks = kToBlocks_;  // stores blocks of a sub_pixel result
  static constexpr bool kAsks = sm90_asks(kSource);
  static constexpr bool kWrites = sm90_writes(kSource, kParts);
  // Arrivals that make a halo full: from the warp that issues TMA, or from each writer warp.
  static constexpr int kSourceWarps = kWrites ? sm90_writers(kSource, {kGroups, kPhases, kFold}) : 1;
  static constexpr int kThreads = sm90_threads(kSource, {kGroups, kPhases, kFold});
  static constexpr bool kMovesRegisters = kThreads == 512;
  static constexpr bool kMixes = sm90_mixes({kGroups, kPhases, kFold}, kParts, 1);
  // The phase groups of a work tile may have halos of their own: their rows wait in shared memory for all phases
  // (plan.row_phases).
  static constexpr bool kMayWait = sm90_joins_phases({kGroups, kPhases, kFold});
  // Stores by TMA (Sm90Results::kCopied), with channels adjacent or with columns adjacent.
  static constexpr bool kCopiesChannels = sm90_may_copy(kParts, kSource) && !kSplits && !kToBlocks;
  static constexpr bool kCopiesColumns = sm90_may_copy_columns(sizeof(T), {kGroups, kPhases, kFold}, kSource) &&
                                         !kSplits && !kMajorM;
  static constexpr bool kMayCopy = kCopiesChannels || kCopiesColumns;
  // Registers of a multiplying and of a producing thread, where 512 threads leave 128 for each.
  static constexpr int kMultiplyRegisters = 168, kBringRegisters = 88;
  static_assert(kParts == 1 || sizeof(T) == 4, "only float32 is split");
};

// A work tile: a tile of pixels, a tile of result channels, a range of phase groups.
struct Item {
  int group, m_tile;  // m_tile: of plan.tile_m result channels
  int phase_begin, phase_end;
  int n, h, w;  // first pixel
};

template <class T>
__device__ __forceinline__ Item find_item(const ConvParams<T>& p, int index) {
  const IgemmSm90Plan& plan = p.plan;
  Item item;
  const int tile = p.columns.quotient(index), column = index - tile * plan.columns;
  const int m_index = p.phase_parts.quotient(column), part = column - m_index * static_cast<int>(p.phase_parts.divisor);
  item.phase_begin = part * plan.item_groups;
  item.phase_end = item.phase_begin + plan.item_groups;
  item.group = p.m_tiles.quotient(m_index);
  item.m_tile = m_index - item.group * plan.m_tiles;
  const int line = p.tiles_w.quotient(tile), image = p.tiles_h.quotient(line);
  item.w = (tile - line * plan.tiles.w) * plan.tile_step;
  item.h = (line - image * plan.tiles.h) * plan.pixels.h;
  item.n = image * plan.pixels.n;
  return item;
}

// The phases of a phase group: one of the height, kPhases of the width.
struct Phases {
  int h, w;  // w: the first of kPhases
};
template <int kPhases, class T>
__device__ __forceinline__ Phases phases_of(const ConvParams<T>& p, int phase_group) {
  const int h = p.phases_across.quotient(phase_group);
  return {h, (phase_group - h * static_cast<int>(p.phases_across.divisor)) * kPhases};
}

// Pixels of a phase along an axis: AxisGeometry::phase_size without its division.
template <class T>
__device__ __forceinline__ int phase_size(const ConvParams<T>& p, int axis, int phase) {
  const int size = p.axis[axis].result_size;
  return phase < size ? p.result_step[axis].quotient(size - phase - 1) + 1 : 0;
}

}  // namespace deconv::sm90
