// Computes grad_weight of adjacent groups as one group, which has weights for every pair of input and output channels.
// The groups' own weights are its diagonal blocks. The other blocks are waste, but cost less than tiles that few
// channels leave empty.
#pragma once

#include <algorithm>
#include <string>

#include "core/problem.h"

namespace deconv {

// Channels of merged groups on either side: more fill a tile better and waste more products. Up to kMostMergedChannels
// if kMergedChannels allows no merge.
inline constexpr int64_t kMergedChannels = 32, kMostMergedChannels = 64;
inline constexpr int64_t kMostMergedBytes = 64 << 20;  // of the merged grad_weight

// The most groups to merge: a divisor of their number, with at most `channels` channels on either side.
inline int64_t merged_groups(const Problem& problem, int64_t channels) {
  const int64_t most = channels / std::max(problem.in_channels_per_group(), problem.out_channels_per_group());
  int64_t merge = std::clamp<int64_t>(most, 1, problem.groups);
  while (merge > 1 && problem.groups % merge != 0) --merge;
  return merge;
}

inline int64_t merged_groups(const Problem& problem) {
  const int64_t merge = merged_groups(problem, kMergedChannels);
  return merge > 1 ? merge : merged_groups(problem, kMostMergedChannels);
}

inline Problem merged_problem(const Problem& problem, int64_t merge) {
  Problem p = problem;
  p.groups /= merge;
  p.w = dense({p.w.size[0], p.w.size[1] * merge, p.w.size[2], p.w.size[3]}, p.result_layout);
  return p;
}

// Why the groups cannot be merged; empty if they can.
inline std::string merged_refusal(const Problem& problem) {
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  if (element_size(problem.dtype) > 4) return "takes float16, bfloat16 and float32";
  const int64_t merge = merged_groups(problem);
  if (merge == 1) {
    return "takes groups of which a divisor of their number has up to " + std::to_string(kMostMergedChannels) +
           " channels together";
  }
  if (problem.w.numel() * merge * element_size(problem.dtype) > kMostMergedBytes) {
    return "takes merged weights up to " + std::to_string(kMostMergedBytes >> 20) + " MiB";
  }
  return "";
}

}  // namespace deconv
