// Recomputes results that are not finite, tap by tap in float32.
//
// Some plans of igemm_sm90 multiply zeros that fill operand A (folded columns, merged groups), or float32 in parts
// (tf32x3). Inf then makes NaN in sums that it does not belong to. The convolution sets a flag if a sum is not finite;
// without the flag this kernel ends at once.
#pragma once

#include "core/taps.h"
#include "device/primitives.cuh"

namespace deconv::sm90 {

template <class T>
struct RepairParams {
  const T* source;
  int64_t source_n, source_c, source_h, source_w;
  const T* weight;
  int64_t weight_m, weight_c, weight_h, weight_w, weight_group;
  const T* bias;
  T* result;
  int64_t result_n, result_m, result_h, result_w;
  int batch, groups, source_channels, result_channels;  // channels per group
  AxisGeometry axis[2];
  const int* not_finite;
};

template <class T>
__device__ __forceinline__ float exact_result(const RepairParams<T>& p, int n, int m, int h, int w) {
  const int group = m / p.result_channels;
  const T* source = p.source + n * p.source_n + static_cast<int64_t>(group) * p.source_channels * p.source_c;
  const T* weight = p.weight + group * p.weight_group + (m - group * p.result_channels) * p.weight_m;
  float sum = p.bias == nullptr ? 0.0f : widen(p.bias[m]);
  for (int k_h = 0; k_h < p.axis[0].kernel; ++k_h) {
    const int at_h = source_pixel(p.axis[0], h, k_h);
    if (at_h < 0) continue;
    for (int k_w = 0; k_w < p.axis[1].kernel; ++k_w) {
      const int at_w = source_pixel(p.axis[1], w, k_w);
      if (at_w < 0) continue;
      const T* pixel = source + at_h * p.source_h + at_w * p.source_w;
      const T* tap = weight + k_h * p.weight_h + k_w * p.weight_w;
      for (int c = 0; c < p.source_channels; ++c) {
        sum += widen(pixel[c * p.source_c]) * widen(tap[c * p.weight_c]);
        if (sum != sum) return sum;  // NaN stays
      }
    }
  }
  return sum;
}

template <class T>
__global__ void repair_kernel(const __grid_constant__ RepairParams<T> p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  await_predecessors();
  if (*p.not_finite == 0) return;
  const int channels = p.groups * p.result_channels, height = p.axis[0].result_size, width = p.axis[1].result_size;
  const int64_t all = static_cast<int64_t>(p.batch) * channels * height * width;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += threads) {
    int64_t rest = i;
    const auto take = [&](int count) {
      const int64_t quotient = rest / count;
      const int digit = static_cast<int>(rest - quotient * count);
      rest = quotient;
      return digit;
    };
    int m, h, w;
    if (p.result_m == 1) {  // adjacent threads take adjacent elements
      m = take(channels), w = take(width), h = take(height);
    } else {
      w = take(width), h = take(height), m = take(channels);
    }
    const int n = static_cast<int>(rest);
    T* const result = p.result + n * p.result_n + m * p.result_m + h * p.result_h + w * p.result_w;
    if (!(0 * widen(*result) == 0)) *result = narrow<T>(exact_result(p, n, m, h, w));
  }
#endif
}

}  // namespace deconv::sm90
