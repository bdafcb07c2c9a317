// What the families on tensor cores require of a problem.
#pragma once

#include <algorithm>
#include <string>

#include "core/correlation.h"
#include "core/problem.h"

namespace deconv {

// Least input channels a group for grad_weight. Fewer leave most of a tile empty, but grouped layers have no faster
// alternative.
inline int64_t least_in_channels(const Problem& problem) { return problem.groups > 1 ? 2 : 8; }
inline std::string in_channels_refusal(const Problem& problem) {
  if (problem.in_channels_per_group() >= least_in_channels(problem)) return "";
  return "takes at least " + std::to_string(least_in_channels(problem)) +
         (problem.groups > 1 ? " input channels a group" : " input channels");
}

// True if groups have enough channels on both sides to fill large tiles. With fewer FLOP, launches dominate.
inline bool fills_large_tiles(const Problem& problem) {
  const int64_t channels = std::min(problem.in_channels_per_group(), problem.out_channels_per_group());
  return (channels >= 64 && problem.flops() >= 1e9) || (channels >= 32 && problem.flops() >= 1e10);
}

// Most elements of a TMA box along one dimension.
inline constexpr int kMostCopied = 256;
// True if a tensor map accepts the stride: a multiple of 16 bytes, below half of TMA's limit.
inline bool is_copied_step(const Problem& problem, int64_t step) {
  const int64_t bytes = step * element_size(problem.dtype);
  return bytes % 16 == 0 && bytes < int64_t{1} << 39;
}
// An image whose rows are adjacent is one line.
inline bool is_line(const Tensor4& image) {
  return image.stride[3] == 1 && (image.size[2] == 1 || image.stride[2] == image.size[3]);
}
inline Tensor4 as_line(const Tensor4& image) {
  const int64_t pixels = image.size[2] * image.size[3];
  return {{image.size[0], image.size[1], 1, pixels}, {image.stride[0], image.stride[1], pixels, 1}};
}
// True if TMA loads halos of the source in this layout, with columns adjacent (planes) or channels. Same rules as
// encode_halo_map (families/tensor_map.cu).
inline bool takes_halo_copies(const Problem& problem, const Tensor4& layout, bool planes) {
  const auto& [size, stride] = layout;
  const int inner = planes ? 3 : 1;
  if (problem.unaligned_first || stride[inner] != 1) return false;
  for (const int d : {0, 1, 2, 3}) {
    if (d != inner && size[d] > 1 && !is_copied_step(problem, stride[d])) return false;
  }
  return problem.groups == 1 || is_copied_step(problem, correlation(problem).source_channels * stride[1]);
}

// Why the families on tensor cores refuse the problem; empty if they do not.
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
