// What one launch of the Hopper convolution needs, and how a block finds its work in it.
#pragma once

#include <cuda.h>

#include "core/divisor.h"
#include "core/taps.h"
#include "device/primitives.cuh"
#include "families/igemm_sm90/plan.h"

namespace deconv::hopper {

// The taps of one (phase, plane) along one axis: how many, which of ConvParams::tap_row are theirs, and the first of
// them in the weight; ConvParams::tap_step leads to the next.
struct alignas(4) TapRange {
  uint8_t count, first, k;
};
static_assert(kHopperMaxKernel + 1 <= UINT8_MAX);

// ResultBlocks, as kernels see it: ConvParams has the strides of whole blocks and of their channels.
struct BlockedResult {
  Divisor height, width;
  int shift_h, shift_w, size_h, size_w;
  int stride_h;  // elements
  Divisor line;  // columns that have a bias each, one after the other
};

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
  CUtensorMap source_map[kHopperMaxPlanes];  // and the results': hopper_result_map
  CUtensorMap weight_map;  // of weights in place
  const T* source;  // (batch, groups * source channels, height, width), any strides, in elements
  int64_t source_n, source_c, source_h, source_w;
  const unsigned char* packed;  // pack_weight.cuh
  int weight_stride[2], tap_step[2];  // by axis, of weights in place: elements, taps
  const T* bias;
  T* result;
  int64_t result_n, result_m, result_h, result_w;
  int batch;
  int source_channels, result_channels;  // per group, merged ones together
  int* not_finite;  // set where a sum is not, perhaps only for products that are not its own: repair.cuh
  bool vector_source;  // channels adjacent, 16-byte loads allowed
  int vector_result;  // neighbours in memory that one store may take, given that a lane holds them
  AxisGeometry axis[2];
  union Apart {
    AxisGeometry window[2];  // im2col, which stores no blocks: the axes of the source as it lies
    BlockedResult blocks;    // plan.to_blocks
    Apart() : window{} {}
  } apart;
  int window_channels;  // im2col: of the source as it lies
  TapRange taps[2][kHopperMaxStride];  // [axis][phase * planes + plane]; here, so that loops over them are uniform
  uint16_t tap_row[2][kHopperMaxKernel + 1];  // the halo's row at which a tap's first pixel lies, by axis
  uint8_t plane_start[2][kHopperMaxStride];  // first source pixel of each plane that any tap reads
  Divisor columns, phase_parts, m_tiles, tiles_w, tiles_h, phases_across, planes_w, halo_w,
      halo_h;  // of the plan's numbers
  Divisor step_w;  // of the source, from one pixel of a plane to the next
  Divisor result_step[2];  // from one pixel of a phase to the next, by axis
  HopperConvPlan plan;
};

// What an instance of the kernel is compiled for.
template <class T, int kGroups_, int kPhases_, int kFold_, int kParts_, int kRowBytes_, HopperSource kSource_,
          bool kSplits_, bool kMajorM_, bool kToBlocks_>
struct ConvConfig {
  using Element = T;
  static constexpr int kGroups = kGroups_;
  static constexpr int kPhases = kPhases_;
  static constexpr int kFold = kFold_;
  static constexpr int kParts = kParts_;
  static constexpr int kRowBytes = kRowBytes_;
  // Weights of one tap and chunk for one warpgroup, one part.
  static constexpr int kStageBytes = kHopperTileM * kRowBytes;
  static constexpr HopperSource kSource = kSource_;
  static constexpr bool kSplits = kSplits_;  // an item is a cluster's
  static constexpr bool kMajorM = kMajorM_;  // a row of the weights in shared memory is one source channel
  static constexpr bool kToBlocks = kToBlocks_;  // the result's pixels are blocks of another one's
  static constexpr bool kAsks = hopper_asks(kSource);
  static constexpr bool kWrites = hopper_writes(kSource, kParts);
  // Warps that say when a halo is whole: the one that asks for tensor copies, or those that write.
  static constexpr int kSourceWarps = kWrites ? hopper_writers(kSource, {kGroups, kPhases, kFold}) : 1;
  static constexpr int kThreads = hopper_threads(kSource, {kGroups, kPhases, kFold});
  static constexpr bool kMovesRegisters = kThreads == 512;
  static constexpr bool kMixes = hopper_mixes({kGroups, kPhases, kFold}, kParts, 1);
  // An item's phase groups may have halos of their own: those of rows that wait for all of them (plan.row_phases).
  static constexpr bool kMayWait = hopper_joins_phases({kGroups, kPhases, kFold});
  // HopperResults::kCopied, with channels adjacent and with columns.
  static constexpr bool kCopiesChannels = hopper_may_copy(kParts, kSource) && !kSplits && !kToBlocks;
  static constexpr bool kCopiesColumns = hopper_may_copy_columns(sizeof(T), {kGroups, kPhases, kFold}, kSource) &&
                                         !kSplits && !kMajorM;
  static constexpr bool kMayCopy = kCopiesChannels || kCopiesColumns;
  // Registers of a thread that multiplies and of one that brings, where the launch gives each 128.
  static constexpr int kMultiplyRegisters = 168, kBringRegisters = 88;
  static_assert(kParts == 1 || sizeof(T) == 4, "only float32 is split");
};

// One unit of a block's work: a tile of pixels, a tile of result channels, a range of phase groups.
struct Item {
  int group, m_tile;  // m_tile: of plan.tile_m result channels
  int phase_begin, phase_end;
  int n, h, w;  // first pixel
};

template <class T>
__device__ __forceinline__ Item find_item(const ConvParams<T>& p, int index) {
  const HopperConvPlan& plan = p.plan;
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

// The phases that one phase group stands for.
struct Phases {
  int h, w;  // of the width: the first of the tile's phases
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

}  // namespace deconv::hopper
