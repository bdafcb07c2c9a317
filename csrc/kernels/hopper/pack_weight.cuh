// The weights as the Hopper kernels consume them: for each group and tile of result channels, one stage after the
// other, in order of use: [phase group][plane][chunk][phase][tap row][tap column], each 64 swizzled rows of 128 bytes
// for every 64 channels (twice for two parts). Slots that a (phase, plane) with fewer taps leaves are never read.
#pragma once

#include "result.cuh"
#include "source.cuh"

namespace deconv::hopper {

template <class T>
struct PackParams {
  const T* weight;
  int64_t weight_m, weight_c, weight_h, weight_w, weight_group;
  unsigned char* packed;
  int* is_infinite;  // parts 2: set if any weight is Inf or NaN
  int source_channels, result_channels, groups;  // channels per group
  bool taps_fastest;  // neighbouring threads take neighbouring taps, else neighbouring result channels
  AxisGeometry axis[2];
  HopperConvPlan plan;
};

// Where a tap of one axis belongs: its (phase, plane), if they hold a pixel at all, and which of that pair's taps it
// is.
struct TapSlot {
  int phase, plane, slot;
  bool used;
};
__device__ __forceinline__ TapSlot find_slot(const AxisGeometry& axis, int k) {
  const TapPlace place = tap_place(axis, k);
  TapSlot slot{place.phase, place.plane, 0, place.phase < axis.phases() && place.plane < axis.planes()};
  if (slot.used) {
    const AxisTaps taps = axis_taps(axis, slot.phase, slot.plane);
    slot.slot = (k - taps.first_tap) / taps.tap_step;
  }
  return slot;
}

// One thread: 16 bytes of one row of one stage.
template <class T, int kParts>
__global__ void pack_weight_kernel(const __grid_constant__ PackParams<T> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kPiece = 16 / static_cast<int>(sizeof(T)), kStage = kHopperTileM * kHopperRowBytes;
  __shared__ TapSlot places[2][kHopperMaxKernel];
  start_dependents();
  const HopperConvPlan& plan = p.plan;
  const int kernel_h = p.axis[0].kernel, kernel_w = p.axis[1].kernel;
  for (int i = threadIdx.x; i < kernel_h + kernel_w; i += blockDim.x) {
    const int axis = i < kernel_h ? 0 : 1, k = i < kernel_h ? i : i - kernel_h;
    places[axis][k] = find_slot(p.axis[axis], k);
  }
  __syncthreads();

  unsigned rest = blockIdx.x * blockDim.x + threadIdx.x;
  const auto take = [&](unsigned count) {
    const unsigned quotient = rest / count, digit = rest - quotient * count;
    rest = quotient;
    return static_cast<int>(digit);
  };
  int m, k_w, k_h;
  if (p.taps_fastest) {
    k_w = take(kernel_w), k_h = take(kernel_h), m = take(plan.tile_m);
  } else {
    m = take(plan.tile_m), k_w = take(kernel_w), k_h = take(kernel_h);
  }
  const int piece = take(8), chunk = take(plan.chunks), m_tile = take(plan.m_tiles), group = rest;
  const TapSlot h = places[0][k_h], w = places[1][k_w];
  if (group >= p.groups || !h.used || !w.used) return;

  const int channel = chunk * kChunk<T> + piece * kPiece, result = m_tile * plan.tile_m + m;
  const T* source = p.weight + group * p.weight_group + result * p.weight_m + channel * p.weight_c + k_h * p.weight_h +
                    k_w * p.weight_w;
  T values[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    values[i] = result < p.result_channels && channel + i < p.source_channels ? source[i * p.weight_c]
                                                                              : narrow<T>(0.0f);
  }
  const int across = (plan.phases_w + plan.tile.phases - 1) / plan.tile.phases;
  const int phase_group = h.phase * across + w.phase / plan.tile.phases;
  int64_t slot = (static_cast<int64_t>(phase_group) * plan.planes_h + h.plane) * plan.planes_w + w.plane;
  slot = (slot * plan.chunks + chunk) * plan.tile.phases + w.phase % plan.tile.phases;
  slot = (slot * plan.slots_h + h.slot) * plan.slots_w + w.slot;
  unsigned char* stage = p.packed + (group * plan.m_tiles + m_tile) * plan.column_bytes + slot * plan.stage_bytes +
                         m / kHopperTileM * (kStage * kParts);
  const int row = m % kHopperTileM / 16 * 16 + row_of_channel<T>(m % 16);
  const uint32_t at = swizzled(row * kHopperRowBytes + piece * 16);
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint4*>(stage + at) = *reinterpret_cast<const uint4*>(values);
  } else if constexpr (kParts == 1) {
    *reinterpret_cast<uint4*>(stage + at) = make_uint4(round_to_tf32(values[0]), round_to_tf32(values[1]),
                                                       round_to_tf32(values[2]), round_to_tf32(values[3]));
  } else {
    SplitFloat s[kPiece];
    bool infinite = false;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      s[i] = split_float(__float_as_uint(values[i]));
      infinite |= !is_finite(values[i]);
    }
    *reinterpret_cast<uint4*>(stage + at) = make_uint4(s[0].high, s[1].high, s[2].high, s[3].high);
    *reinterpret_cast<uint4*>(stage + kStage + at) = make_uint4(s[0].low, s[1].low, s[2].low, s[3].low);
    if (infinite) atomicOr(p.is_infinite, 1);
  }
#endif
}

}  // namespace deconv::hopper
