// grad_weight by im2col (wgrad_im2col.cuh): grad_output of few channels as a matrix, one row for each input pixel with
// what all taps of all channels read. The kernel that follows sees one tap, and an output channel for each element.
#pragma once

#include <algorithm>

#include "core/problem.h"
#include "planner/cost_model.h"

namespace deconv {

inline constexpr int64_t kMostWeightIm2colChannels = 8;  // more fill a tile by themselves
inline constexpr int kMostIm2colRow = 512;  // elements
inline constexpr int64_t kIm2colRowBytes = 32;  // rows are whole sectors

// True if taps are fastest in a row, as in a contiguous weight; otherwise channels, as in channels_last.
inline bool im2col_taps_fastest(const Problem& problem) {
  const Tensor4& w = problem.w;
  const int64_t line = problem.axis[1].kernel, taps = problem.axis[0].kernel * line;
  return w.stride[3] == 1 && w.stride[2] == line && (w.size[1] == 1 || w.stride[1] == taps);
}

inline bool fits_weight_im2col(const Problem& problem) {
  const Tensor4 &w = problem.w, &y = problem.y;
  const int64_t channels = w.size[1], line = problem.axis[1].kernel, taps = problem.axis[0].kernel * line;
  if (problem.groups > 1 || channels > kMostWeightIm2colChannels || taps == 1 || channels * taps > kMostIm2colRow) {
    return false;
  }
  const bool channels_fastest = w.stride[1] == 1 && w.stride[3] == channels && w.stride[2] == channels * line;
  if (!im2col_taps_fastest(problem) && !channels_fastest) return false;
  // Elements of an image, and what taps reach from a pixel, are counted in 32 bits.
  int64_t elements = channels * y.stride[1];
  for (int a = 0; a < 2; ++a) {
    const Axis& axis = problem.axis[a];
    const int64_t reach = axis.input * axis.stride + axis.padding + axis.kernel * axis.dilation;
    if (reach > INT32_MAX / 2) return false;
    elements += std::max(axis.output, reach) * y.stride[2 + a];
  }
  constexpr int64_t kMostPixels = INT32_MAX - 1024;  // a block counts a few past the last
  return elements <= INT32_MAX && problem.batch * problem.axis[0].input * problem.axis[1].input <= kMostPixels;
}

// The problem that the kernel sees; y is the matrix, with padded rows.
inline Problem weight_im2col_problem(const Problem& problem) {
  Problem p = problem;
  p.out_channels = problem.w.size[1] * problem.axis[0].kernel * problem.axis[1].kernel;
  for (Axis& axis : p.axis) axis = {axis.input, axis.input, 1, 1, 0, 0, 1};
  p.w = {{problem.w.size[0], p.out_channels, 1, 1}, {problem.w.stride[0], 1, 0, 0}};
  const int64_t row = round_up(p.out_channels, kIm2colRowBytes / element_size(problem.dtype));
  p.y = dense({problem.batch, row, p.axis[0].output, p.axis[1].output}, Layout::kChannelsLast);
  return p;
}

// Time to write `bytes` of the matrix.
inline double im2col_ms(int64_t bytes) {
  constexpr double kLaunchMs = 4e-3, kMsPerByte = 0.5e-9;
  return kLaunchMs + kMsPerByte * static_cast<double>(bytes);
}

}  // namespace deconv
