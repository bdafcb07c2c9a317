// float32 for tensor cores: rounded to TF32, or split in two TF32 parts (tf32x3).
#pragma once

#include <cstdint>

#include "device/mma_sm80.cuh"

namespace deconv::sm90 {

__device__ __forceinline__ uint4 round_to_tf32(uint4 values) {
  return make_uint4(deconv::round_to_tf32(values.x), deconv::round_to_tf32(values.y), deconv::round_to_tf32(values.z),
                    deconv::round_to_tf32(values.w));
}
__device__ __forceinline__ bool is_finite(float value) { return (__float_as_uint(value) & 0x7F800000u) != 0x7F800000u; }

// round_to_tf32 for operands alone: tensor cores read the upper 19 bits, so the lower bits may hold anything.
__device__ __forceinline__ uint32_t operand_tf32(uint32_t value) {
  return fabsf(__uint_as_float(value)) < __int_as_float(0x7F800000) ? value + 0x1000u : value;
}

// What tensor cores truncate, rounded to TF32; NaN if the value is Inf or NaN.
__device__ __forceinline__ uint32_t low_part(uint32_t value) {
  return deconv::round_to_tf32(__float_as_uint(__uint_as_float(value) - __uint_as_float(value & 0xFFFFE000u)));
}
__device__ __forceinline__ uint4 low_parts(uint4 values) {
  return make_uint4(low_part(values.x), low_part(values.y), low_part(values.z), low_part(values.w));
}

// value = high + low, with an error below 2^-21 |value|. Tensor cores read the upper 19 bits, so the value serves as
// `high`. For grad_weight, which does not repair results that are not finite: Inf and NaN have a low part of zero.
struct SplitFloat {
  uint32_t high, low;
};
__device__ __forceinline__ SplitFloat split_float(uint32_t value) {
  const float number = __uint_as_float(value);
  // Rounds by an addition: cvt is four times as slow, and a finite low part is far from overflow.
  const uint32_t low = __float_as_uint(number - __uint_as_float(value & 0xFFFFE000u)) + 0x1000u;
  return {number == number ? value : 0x7FFFFFFFu, is_finite(number) ? low : 0};
}

}  // namespace deconv::sm90
