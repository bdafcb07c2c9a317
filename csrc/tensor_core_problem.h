// What the families on tensor cores ask of a problem.
#pragma once

#include <algorithm>
#include <string>

#include "problem.h"

namespace deconv {

// Input channels a group that grad_weight wants: fewer leave most of a tile empty, but groups of few have no better
// way.
inline int64_t least_in_channels(const Problem& problem) { return problem.groups > 1 ? 2 : 8; }
inline std::string in_channels_refusal(const Problem& problem) {
  if (problem.in_channels_per_group() >= least_in_channels(problem)) return "";
  return "takes at least " + std::to_string(least_in_channels(problem)) +
         (problem.groups > 1 ? " input channels a group" : " input channels");
}

// Groups with as many channels on both sides fill large tiles; with fewer operations launches decide.
inline bool fills_large_tiles(const Problem& problem) {
  const int64_t channels = std::min(problem.in_channels_per_group(), problem.out_channels_per_group());
  return (channels >= 64 && problem.flops() >= 1e9) || (channels >= 32 && problem.flops() >= 1e10);
}

// Why they refuse it, or nothing.
inline std::string tensor_core_refusal(const Problem& problem, int64_t min_channels, int64_t max_kernel,
                                       int64_t max_stride) {
  if (problem.dtype == DType::kFloat64 || problem.dtype == DType::kOther) return "takes float16, bfloat16 and float32";
  if (problem.in_channels_per_group() < min_channels || problem.out_channels_per_group() < min_channels) {
    return "takes at least " + std::to_string(min_channels) + " channels a group on either side";
  }
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  for (const Axis& axis : problem.axis) {
    if (axis.kernel > max_kernel) return "takes kernels up to " + std::to_string(max_kernel);
    if (axis.stride > max_stride) return "takes strides up to " + std::to_string(max_stride);
  }
  return "";
}

}  // namespace deconv
