// One result in ordinary float32, tap by tap, of the products that are its own alone.
//
// Tensor cores multiply zeros that fill up operand A as well (folded columns, merged groups), and float32 in parts: Inf
// then makes NaN where it does not belong. So what is not finite is computed again.
#pragma once

#include "params.cuh"

namespace deconv::hopper {

// m: of all groups' channels; h, w: of the result.
template <class T>
__device__ __forceinline__ float exact_result(const ConvParams<T>& p, int n, int m, int h, int w) {
  const int group = m / p.group_results;
  const T* source = p.source + n * p.source_n + static_cast<int64_t>(group) * p.group_sources * p.source_c;
  const T* weight = p.weight + group * p.weight_group + (m - group * p.group_results) * p.weight_m;
  float sum = p.bias == nullptr ? 0.0f : widen(p.bias[m]);
#pragma unroll 1
  for (int k_h = 0; k_h < p.axis[0].kernel; ++k_h) {
    const int at_h = source_pixel(p.axis[0], h, k_h);
    if (at_h < 0) continue;
#pragma unroll 1
    for (int k_w = 0; k_w < p.axis[1].kernel; ++k_w) {
      const int at_w = source_pixel(p.axis[1], w, k_w);
      if (at_w < 0) continue;
      const T* pixel = source + at_h * p.source_h + at_w * p.source_w;
      const T* tap = weight + k_h * p.weight_h + k_w * p.weight_w;
#pragma unroll 1
      for (int c = 0; c < p.group_sources; ++c) {
        sum += widen(pixel[c * p.source_c]) * widen(tap[c * p.weight_c]);
        if (sum != sum) return sum;  // NaN stays
      }
    }
  }
  return sum;
}

}  // namespace deconv::hopper
