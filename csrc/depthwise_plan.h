// What the depthwise family's kernels need to know beyond the problem: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kDepthwiseThreads = 256;
inline constexpr int kDepthwisePixels = 8;    // result pixels of a thread, forward and grad_input
inline constexpr int kDepthwiseTaps = 9;      // taps that grad_weight sums in one pass
inline constexpr int kDepthwiseStrides = 64;  // phases whose taps a block keeps

// A block is `columns` threads along the innermost dimension (width, or channels in channels_last) times
// kDepthwiseThreads / columns along the outer one (rows, or pixels).
struct DepthwisePlan {
  bool weight_gradient = false;
  bool channels_innermost = false;
  int columns = 32;
  int blocks_inner = 1;  // along the innermost dimension
  int blocks_outer = 1;  // forward and grad_input: along the outer one, of one image
  int tap_passes = 1;    // grad_weight
  int64_t outer = 0;     // grad_weight: rows or pixels of all images
  int64_t outer_per_split = 0;
  int splits = 1;
  int shared_bytes = 0;
  int64_t blocks = 0;
};

}  // namespace deconv
