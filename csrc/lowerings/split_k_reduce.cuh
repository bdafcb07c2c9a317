// Sums of splits: grad_weight = the partial sums of all splits, added in order, rounded once.
#pragma once

#include <algorithm>

#include "core/divisor.h"
#include "core/problem.h"
#include "device/primitives.cuh"
#include "launch/kernel_launch.cuh"

namespace deconv {

inline constexpr int kAddSplitsThreads = 256;

// partial: (splits, groups, taps, input channels m, output channels n), channels padded.
template <class T>
struct AddSplitsParams {
  const AccumulatorOf<T>* partial;
  T* result;
  int splits, groups, kernel_h, kernel_w;
  int channels_m, channels_n, padded_m, padded_n;
  int64_t result_m, result_n, result_group, result_h, result_w;
  int slices;  // threads that share an element's splits
  Divisor taps;
  bool store_packs;
};

// A thread adds every `slices`-th split of kWidth adjacent elements, in order; then one adds the slices, in order. All
// in float64.
template <class T, int kWidth>
__global__ void __launch_bounds__(kAddSplitsThreads, 4)
    add_weight_splits(const __grid_constant__ AddSplitsParams<T> p) {
  __shared__ double sums[kAddSplitsThreads][kWidth];
  const int taps = p.kernel_h * p.kernel_w;
  const int lanes = kAddSplitsThreads / p.slices, slice = threadIdx.x / lanes;
  int64_t rest = static_cast<int64_t>(blockIdx.x) * lanes + threadIdx.x - slice * lanes;
  const auto take = [&](int count) {
    const int64_t quotient = rest / count;
    const int digit = static_cast<int>(rest - quotient * count);
    rest = quotient;
    return digit;
  };
  const int n = take(p.channels_n / kWidth) * kWidth, m = take(p.channels_m), tap = take(taps);
  const int64_t group = rest;
  const bool exists = group < p.groups;
  await_predecessors();  // the partial sums are complete
  double sum[kWidth] = {};
  if (exists) {
    const int64_t plane = static_cast<int64_t>(p.padded_m) * p.padded_n, split = p.groups * taps * plane;
    const AccumulatorOf<T>* from = p.partial + (group * taps + tap) * plane + static_cast<int64_t>(m) * p.padded_n + n +
                                   slice * split;
#pragma unroll 8
    for (int s = slice; s < p.splits; s += p.slices, from += p.slices * split) {
      const auto part = *reinterpret_cast<const Pack<AccumulatorOf<T>, kWidth>*>(from);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += part.value[i];
    }
  }
  if (p.slices > 1) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[threadIdx.x][i] = sum[i];
    __syncthreads();
    if (slice > 0) return;
    for (int s = 1; s < p.slices; ++s) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += sums[threadIdx.x + s * lanes][i];
    }
  }
  if (!exists) return;
  const int kh = tap / p.kernel_w;
  T* const to = p.result + group * p.result_group + n * p.result_n + m * p.result_m + kh * p.result_h +
                (tap - kh * p.kernel_w) * p.result_w;
  Pack<T, kWidth> result;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) result.value[i] = narrow<T>(static_cast<AccumulatorOf<T>>(sum[i]));
  if (p.store_packs) {
    *reinterpret_cast<Pack<T, kWidth>*>(to) = result;
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[i * p.result_n] = result.value[i];
  }
}

inline constexpr int kTransposedFloats = 8192;   // of a block, in shared memory
inline constexpr int kTransposedChannels = 64;  // output channels of a block

// The same for few splits where taps are adjacent in the result: a block transposes kTransposedChannels output channels
// with all their taps in shared memory.
template <class T>
__global__ void __launch_bounds__(kAddSplitsThreads, 4)
    add_weight_splits_transposed(const __grid_constant__ AddSplitsParams<T> p) {
  constexpr int kWidth = 4, kPacks = kTransposedChannels / kWidth, kRows = kAddSplitsThreads / kPacks;
  __shared__ float sums[kTransposedFloats];
  const int taps = static_cast<int>(p.taps.divisor), pitch = taps | 1;
  int64_t rest = blockIdx.x;
  const auto take = [&](int count) {
    const int64_t quotient = rest / count;
    const int digit = static_cast<int>(rest - quotient * count);
    rest = quotient;
    return digit;
  };
  const int first = take((p.channels_n + kTransposedChannels - 1) / kTransposedChannels) * kTransposedChannels,
            m = take(p.channels_m);
  const int64_t group = rest, plane = static_cast<int64_t>(p.padded_m) * p.padded_n;
  const int64_t split = p.groups * taps * plane;
  const int count = min(kTransposedChannels, p.channels_n - first), n = threadIdx.x % kPacks * kWidth;
  await_predecessors();  // the partial sums are complete
  const float* const partial = p.partial + group * taps * plane + static_cast<int64_t>(m) * p.padded_n + first + n;
#pragma unroll 2
  for (int tap = threadIdx.x / kPacks; tap < taps; tap += kRows) {
    const float* from = partial + tap * plane;
    double sum[kWidth] = {};
    for (int s = 0; s < p.splits && n < count; ++s, from += split) {
      const auto part = *reinterpret_cast<const Pack<float, kWidth>*>(from);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += part.value[i];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[(n + i) * pitch + tap] = static_cast<float>(sum[i]);
  }
  __syncthreads();
  T* const to = p.result + group * p.result_group + m * p.result_m + first * p.result_n;
  for (int i = threadIdx.x; i < taps * count; i += kAddSplitsThreads) {
    const int of_n = p.taps.quotient(i);
    to[i] = narrow<T>(sums[of_n * pitch + i - of_n * taps]);
  }
}

// `p` describes the weight as set_weight_result does.
template <class T, class Params>
cudaError_t launch_add_splits(const Problem& problem, const Params& p, int splits, int padded_m, int padded_n,
                              cudaStream_t stream, Start start) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(AccumulatorOf<T>)), kLeastBlocks = 264;
  AddSplitsParams<T> add;
  add.partial = p.partial;
  add.result = p.result;
  add.splits = splits;
  add.groups = p.groups;
  add.kernel_h = p.kernel_h;
  add.kernel_w = p.kernel_w;
  add.channels_m = p.channels_m;
  add.channels_n = p.channels_n;
  add.padded_m = padded_m;
  add.padded_n = padded_n;
  add.result_m = p.result_m;
  add.result_n = p.result_n;
  add.result_group = p.channels_m * p.result_m;
  add.result_h = p.result_h;
  add.result_w = p.result_w;
  const bool is_wide = add.channels_n % kWidth == 0 && add.padded_n % kWidth == 0;
  const int width = is_wide ? kWidth : 1;
  const auto fits = [&](int64_t stride) { return stride % width == 0; };
  add.store_packs = is_wide && add.result_n == 1 && fits(add.result_m) && fits(add.result_group) &&
                    fits(add.result_h) && fits(add.result_w) && is_aligned(add.result, kWidth * sizeof(T));
  const int64_t threads = problem.w.numel() / width;
  add.slices = 1;
  while (add.slices < 16 && 2 * add.slices <= splits && threads * add.slices < kLeastBlocks * kAddSplitsThreads) {
    add.slices *= 2;
  }
  const int taps = add.kernel_h * add.kernel_w;
  add.taps = divide_by(taps);
  if constexpr (sizeof(AccumulatorOf<T>) == 4) {
    const bool taps_adjacent = add.result_w == 1 && add.result_h == add.kernel_w && add.result_n == taps && taps > 1;
    if (taps_adjacent && padded_n % kWidth == 0 && add.slices == 1 &&
        (taps | 1) * kTransposedChannels <= kTransposedFloats) {
      const int64_t of_m = (add.channels_n + kTransposedChannels - 1) / kTransposedChannels;
      return launch_kernel(add_weight_splits_transposed<T>, of_m * add.channels_m * add.groups, kAddSplitsThreads, 0,
                           stream, add, start);
    }
  }
  const int64_t lanes = kAddSplitsThreads / add.slices;
  const int64_t blocks = (threads + lanes - 1) / lanes;
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, blocks, kAddSplitsThreads, 0, stream, add, start);
  };
  return is_wide ? launch_with(add_weight_splits<T, kWidth>) : launch_with(add_weight_splits<T, 1>);
}

}  // namespace deconv
