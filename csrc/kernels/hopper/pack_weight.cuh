// The weights as the Hopper kernels consume them: for each group and tile of result channels, one stage after the
// other, in order of use: [phase group][plane][chunk][phase][tap row][tap column], each 64 swizzled rows of
// plan.row_bytes (twice for two parts), two such tiles for 128 channels. Slots that a (phase, plane) with fewer taps
// leaves are never read.
//
// plan.tile.fold columns in the rows (stride and dilation 1): column f reads, with tap t, the pixel that column 0 reads
// with tap t + f. So the stage of slot u holds tap u - f for column f, and zeros where there is none.
//
// plan.merge groups share a tile: their weights are blocks on its diagonal, the rest are zeros.
#pragma once

#include "result.cuh"
#include "split.cuh"

namespace deconv::hopper {

// Where a tap of one axis belongs: its (phase, plane), and which of that pair's taps it is, of how many: none, where
// the pair holds no pixel.
struct TapSlot {
  int16_t phase, plane, slot, slots;
};

template <class T>
struct PackParams {
  const T* weight;
  int64_t weight_m, weight_c, weight_h, weight_w, weight_group;
  unsigned char* packed;
  int* not_finite;  // cleared, for the convolution may set it
  int source_channels, result_channels;  // of one group
  int groups;  // merged ones as one
  bool taps_fastest;  // neighbouring threads take neighbouring taps, else neighbouring result channels
  int kernel[2];
  TapSlot slots[2][kHopperMaxKernel];  // where each tap belongs, by axis
  HopperConvPlan plan;
};

// One thread: 16 bytes of one row of one stage.
template <class T, int kParts>
__global__ void pack_weight_kernel(const __grid_constant__ PackParams<T> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
  start_dependents();
  const HopperConvPlan& plan = p.plan;
  unsigned rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest == 0) *p.not_finite = 0;
  const auto take = [&](unsigned count) {
    const unsigned quotient = rest / count, digit = rest - quotient * count;
    rest = quotient;
    return static_cast<int>(digit);
  };
  int m, k_w, k_h;
  if (p.taps_fastest) {
    k_w = take(p.kernel[1]), k_h = take(p.kernel[0]), m = take(plan.tile_m);
  } else {
    m = take(plan.tile_m), k_w = take(p.kernel[1]), k_h = take(p.kernel[0]);
  }
  const int f = take(plan.tile.fold);
  const int piece = take(plan.row_bytes / 16), chunk = take(plan.chunks), m_tile = take(plan.m_tiles), group = rest;
  if (group >= p.groups) return;
  const TapSlot h = p.slots[0][k_h], w = p.slots[1][k_w];
  if (h.slots == 0 || w.slots == 0) return;

  const int result = m_tile * plan.tile_m + m, merged = result / p.result_channels;  // which of the merged groups
  const int channel = chunk * (plan.row_bytes / static_cast<int>(sizeof(T))) + piece * kPiece -
                      merged * p.source_channels;
  const T* source = p.weight + (group * plan.merge + merged) * p.weight_group +
                    (result - merged * p.result_channels) * p.weight_m + channel * p.weight_c + k_h * p.weight_h +
                    k_w * p.weight_w;
  T values[kPiece];
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    const bool exists = merged < plan.merge && channel + i >= 0 && channel + i < p.source_channels;
    values[i] = exists ? source[i * p.weight_c] : narrow<T>(0.0f);
  }
  const int across = (plan.phases_w + plan.tile.phases - 1) / plan.tile.phases;
  const int phase_group = h.phase * across + w.phase / plan.tile.phases;
  int64_t slot = (static_cast<int64_t>(phase_group) * plan.planes_h + h.plane) * plan.planes_w + w.plane;
  slot = (slot * plan.chunks + chunk) * plan.tile.phases + w.phase % plan.tile.phases;
  slot = (slot * plan.slots_h + h.slot) * plan.slots_w;
  const int tile_bytes = kHopperTileM * plan.row_bytes;
  const uint32_t at = swizzled(row_of<T>(plan, m % kHopperTileM, f) * plan.row_bytes + piece * 16, plan.row_bytes);
  unsigned char* const row = p.packed + (group * plan.m_tiles + m_tile) * plan.column_bytes + slot * plan.stage_bytes +
                             m / kHopperTileM * (tile_bytes * kParts) + at;
  const auto clear = [&](int u) {
    for (int part = 0; part < kParts; ++part) {
      *reinterpret_cast<uint4*>(row + static_cast<int64_t>(u) * plan.stage_bytes + part * tile_bytes) = make_uint4(
          0, 0, 0, 0);
    }
  };
  if (w.slot == 0) {
    for (int u = 0; u < f; ++u) clear(u);
  }
  if (w.slot == w.slots - 1) {
    for (int u = w.slots + f; u < w.slots + plan.tile.fold - 1; ++u) clear(u);
  }
  unsigned char* const to = row + static_cast<int64_t>(w.slot + f) * plan.stage_bytes;
  if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
  } else if constexpr (kParts == 1) {
    *reinterpret_cast<uint4*>(to) = make_uint4(round_to_tf32(values[0]), round_to_tf32(values[1]),
                                               round_to_tf32(values[2]), round_to_tf32(values[3]));
  } else {
    const uint4 value = *reinterpret_cast<const uint4*>(values);
    *reinterpret_cast<uint4*>(to) = value;
    *reinterpret_cast<uint4*>(to + tile_bytes) = low_parts(value);
  }
#endif
}

}  // namespace deconv::hopper
