// float32 as two TF32 numbers for the mma family, in registers.
#pragma once

#include <cstdint>

namespace deconv::mma {

// The upper 19 bits, and what they leave, exactly; NaN if the value is Inf or NaN.
__device__ __forceinline__ uint32_t high_part(uint32_t value) { return value & 0xffffe000u; }
__device__ __forceinline__ float low_part(uint32_t value) {
  return __uint_as_float(value) - __uint_as_float(high_part(value));
}
// A low part rounded to TF32, which tensor cores truncate.
__device__ __forceinline__ uint32_t rounded_low(float low) { return __float_as_uint(low) + 0x1000u; }

__device__ __forceinline__ float finite_or_zero(float value) {
  return fabsf(value) < __int_as_float(0x7f800000) ? value : 0.0f;
}

}  // namespace deconv::mma
