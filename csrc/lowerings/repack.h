// Shared by the planners of families that may repack operands channels_last (lowerings/repack.cuh).
#pragma once

#include "core/correlation.h"
#include "planner/cost_model.h"

namespace deconv {

inline constexpr int64_t kRepackLimit = 256 << 20;  // bytes of the workspace
// Bytes of a slice, for families whose estimates of slices of kRepackLimit are too low.
inline constexpr int64_t kRepackHalf = kRepackLimit / 2;

// A tensor channels_last, each group's channels padded to 16 bytes.
inline Tensor4 repacked(const Tensor4& tensor, int64_t groups, DType dtype) {
  Tensor4 layout{tensor.size, {}};
  layout.size[1] = round_up(tensor.size[1] / groups, 16 / element_size(dtype)) * groups;
  return dense(layout.size, Layout::kChannelsLast);
}
inline Tensor4 repacked_source(const Problem& problem) {
  return repacked(correlation(problem).source, problem.groups, problem.dtype);
}

// Images of `image_bytes` each to rewrite and use at a time: all of them, or slices of equal size, as few as possible
// because each fills and drains its kernels. 0: an image is too large.
inline int64_t repack_slice(int64_t batch, int64_t image_bytes, int64_t most_of_slice) {
  if (image_bytes * batch <= kRepackLimit) return batch;
  const int64_t most = most_of_slice / image_bytes;
  return most == 0 ? 0 : ceil_div(batch, ceil_div(batch, most));
}
inline int64_t repacked_image_bytes(const Problem& problem) {
  return repacked_source(problem).stride[0] * static_cast<int64_t>(element_size(problem.dtype));
}

inline int64_t repacked_bytes(const Tensor4& tensor, int64_t groups, DType dtype) {
  return repacked(tensor, groups, dtype).numel() * static_cast<int64_t>(element_size(dtype));
}

// Fitted to timings on an H200. One launch rewrites both operands of grad_weight.
inline constexpr double kRepackLaunchMs = 3e-3;
inline double repack_bytes_ms(const Tensor4& tensor, int64_t bytes) {
  constexpr double kMsPerByte = 0.65e-9, kColumnsApart = 5;
  return kMsPerByte * static_cast<double>(bytes) * (tensor.stride[3] == 1 ? 1 : kColumnsApart);
}
inline double repack_ms(const Tensor4& tensor, int64_t bytes) {
  return kRepackLaunchMs + repack_bytes_ms(tensor, bytes);
}
inline double repack_operands_ms(const Problem& problem, bool x, bool y, int64_t x_bytes, int64_t y_bytes) {
  return (x || y ? kRepackLaunchMs : 0) + (x ? repack_bytes_ms(problem.x, x_bytes) : 0) +
         (y ? repack_bytes_ms(problem.y, y_bytes) : 0);
}

// True if 16 bytes of channels can be loaded at once, given a base of 16 bytes.
inline bool vector_source(const Problem& problem) {
  const Correlation c = correlation(problem);
  return packs_along_channels(c.source, c.source_channels, 16 / element_size(problem.dtype));
}

}  // namespace deconv
