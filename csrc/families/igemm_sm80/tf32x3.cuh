// tf32x3 in registers, for igemm_sm80: float32 as two TF32 numbers, a product as three.
#pragma once

#include <cstdint>

#include "device/mma_sm80.cuh"

namespace deconv::sm80 {

// The upper 19 bits, and the exact rest; the rest is NaN if the value is Inf or NaN.
__device__ __forceinline__ uint32_t high_part(uint32_t value) { return value & 0xffffe000u; }
__device__ __forceinline__ float low_part(uint32_t value) {
  return __uint_as_float(value) - __uint_as_float(high_part(value));
}
// A low part, rounded to TF32: tensor cores truncate.
__device__ __forceinline__ uint32_t rounded_low(float low) { return __float_as_uint(low) + 0x1000u; }

__device__ __forceinline__ float finite_or_zero(float value) {
  return fabsf(value) < __int_as_float(0x7f800000) ? value : 0.0f;
}

// The low parts of an operand B of kColumns x 8 columns.
template <int kColumns>
struct LowParts {
  uint32_t value[kColumns][2];
  float probe = 0;  // NaN if any value is Inf or NaN

  __device__ __forceinline__ explicit LowParts(const uint32_t (&b)[kColumns][2]) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float low = low_part(b[j][k]);
        probe += low;
        value[j][k] = rounded_low(low);
      }
    }
  }
};

// sums += a * b, for 16 rows, as three TF32 products. Tensor cores truncate their running sum, so each step starts from
// zero and is added here in float32. kTogether blocks of 8 columns alternate, because the products of one block depend
// on each other.
template <int kTogether, int kColumns>
__device__ __forceinline__ void multiply_add_split(float (&sums)[kColumns][4], uint4 a,
                                                   const uint32_t (&b)[kColumns][2], const LowParts<kColumns>& low_b) {
  static_assert(kColumns % kTogether == 0, "whole rounds");
  uint4 high_a, low_a;
  float probe = low_b.probe;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t value = (&a.x)[k];
    const float low = low_part(value);
    probe += low;
    (&high_a.x)[k] = high_part(value);
    (&low_a.x)[k] = rounded_low(low);
  }
  const bool careful = __any_sync(~0u, probe != probe);
#pragma unroll
  for (int j = 0; j < kColumns; j += kTogether) {
    float part[kTogether][4] = {};
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      multiply_add<float>(part[k], high_a, low_b.value[j + k][0], low_b.value[j + k][1]);
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      multiply_add<float>(part[k], low_a, high_part(b[j + k][0]), high_part(b[j + k][1]));
    if (careful) {  // Inf and NaN come from the high parts' product alone
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) part[k][e] = finite_or_zero(part[k][e]);
      }
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      multiply_add<float>(part[k], high_a, high_part(b[j + k][0]), high_part(b[j + k][1]));
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j + k][e] += part[k][e];
    }
  }
}

}  // namespace deconv::sm80
