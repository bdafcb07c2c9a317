// Weights in igemm_sm80's order of use: for each group, tile of result channels and phase, turn after turn:
//   [source phase][k_block][tap row][tap column][band of the k_block]
// A turn holds, for each 16 result channels and each of its two steps of 32 bytes of channels, the 16 bytes of operand
// A of each lane. Every phase has room for the turns of the fullest; what is left over is never read.
#pragma once

#include "families/igemm_sm80/params.cuh"

namespace deconv::sm80 {

template <class T>
struct PackParams {
  const T* weight;
  int64_t weight_m, weight_c, weight_h, weight_w, weight_group;
  unsigned char* packed;
  int source_channels, result_channels, groups;  // channels per group
  bool taps_fastest;  // adjacent threads take adjacent taps, else adjacent lanes of operand A
  AxisGeometry axis[2];
  IgemmSm80Plan plan;
};

// A tap's place in the turns along one axis: its phase; the phase's taps, all and in earlier source phases; the taps of
// its source phase, and its index there. total is 0 where the phase or the source phase has no pixel.
struct StagePlace {
  int phase, total, before, count, index;
};
__device__ __forceinline__ StagePlace stage_place(const AxisGeometry& axis, int k) {
  const TapPlace tap = tap_place(axis, k);
  StagePlace place{};
  if (tap.phase >= axis.phases() || tap.plane >= axis.planes()) return place;
  place.phase = tap.phase;
  for (int plane = 0; plane < axis.planes(); ++plane) {
    const AxisTaps taps = axis_taps(axis, tap.phase, plane);
    if (plane < tap.plane) place.before += taps.count;
    if (plane == tap.plane) place.count = taps.count, place.index = (k - taps.first_tap) / taps.tap_step;
    place.total += taps.count;
  }
  return place;
}

// One thread packs 16 bytes, one lane's part of operand A. kRounds: to TF32.
template <class T, bool kRounds>
__global__ void pack_weight_kernel(const __grid_constant__ PackParams<T> p) {
#if __CUDA_ARCH__ >= 800
  __shared__ StagePlace places[2][kSm80MaxKernel];
  start_dependents();
  const IgemmSm80Plan& plan = p.plan;
  const int kernel_h = p.axis[0].kernel, kernel_w = p.axis[1].kernel;
  for (int i = threadIdx.x; i < kernel_h + kernel_w; i += blockDim.x) {
    const int axis = i < kernel_h ? 0 : 1, k = i < kernel_h ? i : i - kernel_h;
    places[axis][k] = stage_place(p.axis[axis], k);
  }
  __syncthreads();

  unsigned rest = blockIdx.x * blockDim.x + threadIdx.x;
  const auto take = [&rest](unsigned count) {
    const unsigned quotient = rest / count, digit = rest - quotient * count;
    rest = quotient;
    return static_cast<int>(digit);
  };
  constexpr int kSteps = kSm80BandBytes / kStepBytes;
  const int tile_rows = plan.tile.channels() / 16;
  int lane, k_w, k_h;
  if (p.taps_fastest) {
    k_w = take(kernel_w), k_h = take(kernel_h), lane = take(32);
  } else {
    lane = take(32), k_w = take(kernel_w), k_h = take(kernel_h);
  }
  const int row = take(tile_rows), step = take(kSteps), band = take(plan.bands), m_tile = take(plan.m_tiles);
  const int group = rest;
  const StagePlace h = places[0][k_h], w = places[1][k_w];
  if (group >= p.groups || h.total == 0 || w.total == 0) return;

  constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));
  const T* weights = p.weight + group * p.weight_group + k_h * p.weight_h + k_w * p.weight_w;
  uint4 fragment;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = m_tile * plan.tile.channels() + channel_of_row<T>(row, lane / 4 + i % 2 * 8);
    const int word = step * (kStepBytes / 4) + lane % 4 + i / 2 * 4;
    Pack<T, kOfWord> elements;
#pragma unroll
    for (int e = 0; e < kOfWord; ++e) {
      const int c = band * kBand<T> + word * kOfWord + e;
      const bool exists = m < p.result_channels && c < p.source_channels;
      elements.value[e] = exists ? weights[m * p.weight_m + c * p.weight_c] : narrow<T>(0.0f);
    }
    const uint32_t bits = reinterpret_cast<const uint32_t&>(elements);
    (&fragment.x)[i] = kRounds ? round_to_tf32(bits) : bits;
  }
  const int slots = plan.slots_h * plan.slots_w;
  // Turns before the tap's: earlier source phases, then earlier k_blocks, then earlier taps of the k_block.
  const int of_chunk = plan.row_bytes / kSm80BandBytes, first = band / of_chunk * of_chunk;
  const int turn = (h.before * w.total + h.count * w.before) * plan.bands + first * h.count * w.count +
                   (h.index * w.count + w.index) * min(of_chunk, plan.bands - first) + band - first;
  const int64_t column = (static_cast<int64_t>(group * plan.m_tiles + m_tile) * plan.phases_h + h.phase) *
                             plan.phases_w +
                         w.phase;
  const int64_t at = column * plan.bands * slots + turn;
  *reinterpret_cast<uint4*>(p.packed + (((at * tile_rows + row) * kSteps + step) * 32 + lane) * 16) = fragment;
#endif
}

}  // namespace deconv::sm80
