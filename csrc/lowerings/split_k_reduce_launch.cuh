// Launches the sum of splits (lowerings/split_k_reduce.cuh).
#pragma once

#include <algorithm>

#include "core/problem.h"
#include "launch/kernel_launch.cuh"
#include "lowerings/split_k_reduce.cuh"

namespace deconv {

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
