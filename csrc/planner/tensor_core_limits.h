// What the families on tensor cores ask of a problem.
#pragma once

#include <algorithm>
#include <string>

#include "core/correlation.h"
#include "core/problem.h"

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

// Elements that a tensor copy brings along a dimension.
inline constexpr int kMostCopied = 256;
// Steps that a tensor map takes: multiples of 16 bytes, below half of its limit.
inline bool is_copied_step(const Problem& problem, int64_t step) {
  const int64_t bytes = step * element_size(problem.dtype);
  return bytes % 16 == 0 && bytes < int64_t{1} << 39;
}
// An image whose rows are adjacent, as one.
inline bool is_line(const Tensor4& image) {
  return image.stride[3] == 1 && (image.size[2] == 1 || image.stride[2] == image.size[3]);
}
inline Tensor4 as_line(const Tensor4& image) {
  const int64_t pixels = image.size[2] * image.size[3];
  return {{image.size[0], image.size[1], 1, pixels}, {image.stride[0], image.stride[1], pixels, 1}};
}
// Whether tensor copies take halos of forward's or grad_input's source, that lies so, columns adjacent (planes) or
// channels: what encode_halo_map (families/tensor_map.cu) asks.
inline bool takes_halo_copies(const Problem& problem, const Tensor4& layout, bool planes) {
  const auto& [size, stride] = layout;
  const int inner = planes ? 3 : 1;
  if (problem.unaligned_first || stride[inner] != 1) return false;
  for (const int d : {0, 1, 2, 3}) {
    if (d != inner && size[d] > 1 && !is_copied_step(problem, stride[d])) return false;
  }
  return problem.groups == 1 || is_copied_step(problem, correlation(problem).source_channels * stride[1]);
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
