// A problem as kernels see it: constants of each axis, and forward and grad_input as one computation (core/taps.h).
#pragma once

#include "core/problem.h"
#include "core/taps.h"

namespace deconv {

inline AxisGeometry geometry(const Problem& problem, int axis) {
  const Axis& a = problem.axis[axis];
  const bool forward = problem.direction == Direction::kForward;
  AxisGeometry g;
  g.source_size = static_cast<int>(forward ? a.input : a.output);
  g.result_size = static_cast<int>(forward ? a.output : a.input);
  g.kernel = static_cast<int>(a.kernel);
  g.stride = static_cast<int>(a.stride);
  g.padding = static_cast<int>(a.padding);
  g.dilation = static_cast<int>(a.dilation);
  g.is_forward = forward;
  return g;
}

// Forward and grad_input in one form: a correlation of a source that yields a result.
struct Correlation {
  const Tensor4& source;
  const Tensor4& result;
  int64_t source_channels, result_channels;  // per group
};
inline Correlation correlation(const Problem& problem) {
  if (problem.direction == Direction::kForward) {
    return {problem.x, problem.y, problem.in_channels_per_group(), problem.out_channels_per_group()};
  }
  return {problem.y, problem.x, problem.out_channels_per_group(), problem.in_channels_per_group()};
}

// True if four columns from a multiple of four on are one aligned load, all inside or all outside the image, given an
// aligned base. Skips the stride of an axis with one element: it may be anything.
inline bool packs_four_columns(const Tensor4& tensor) {
  const auto packs = [&](int axis) { return tensor.size[axis] == 1 || tensor.stride[axis] % 4 == 0; };
  return tensor.stride[3] == 1 && tensor.size[3] % 4 == 0 && packs(0) && packs(1) && packs(2);
}

// True if channels are adjacent and every pixel starts at a multiple of `pack` elements, given a base that does. Skips
// the stride of an axis with one element: it may be anything.
inline bool packs_along_channels(const Tensor4& tensor, int64_t channels_per_group, int64_t pack) {
  const auto packs = [&](int axis) { return tensor.size[axis] == 1 || tensor.stride[axis] % pack == 0; };
  return tensor.stride[1] == 1 && channels_per_group % pack == 0 && packs(0) && packs(2) && packs(3);
}

}  // namespace deconv
