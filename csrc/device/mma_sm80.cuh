// Tensor cores from compute capability 8.0 on: matrix loads and mma.sync, with names. Earlier GPUs get empty kernels
// and no plan.
//
// An mma takes 32 bytes of K: 16 elements of 16 bits, or 8 of float32. In 32-bit words all types have one layout:
//   operand A, 16 rows x 8 words:     lane holds words (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   operand B, 8 columns x 8 words:   lane holds words (g, t), (g, t + 4)
//   sums, 16 rows x 8 columns:        lane holds (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// with g = lane / 4, t = lane % 4.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "device/cp_async.cuh"
#include "device/memory.cuh"
#include "device/primitives.cuh"

namespace deconv {

// Four 8x8 matrices of 16 bits, or 8x4 words; lane i addresses row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}

// The same for 16 bits, each matrix transposed: a lane has two neighbouring rows of one column.
__device__ __forceinline__ void load_transposed_matrices(uint32_t (&v)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(address)
               : "memory");
}

// Two such matrices; lanes 0 to 15 address the rows.
__device__ __forceinline__ void load_transposed_matrices(uint32_t (&v)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(v[0]), "=r"(v[1])
               : "r"(address)
               : "memory");
}

// From two such matrices, `second` after `first`, with four lanes a row: the matrix that begins `rows` rows later.
__device__ __forceinline__ uint32_t turned(uint32_t first, uint32_t second, int rows, int lane) {
  return __shfl_sync(~0u, lane / 4 < rows ? second : first, (lane + 4 * rows) % 32);
}

__device__ __forceinline__ uint32_t transposed(uint32_t fragment) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(fragment));
  return result;
}

#define DECONV_MULTIPLY_ADD(SHAPE_AND_TYPES)                                                                 \
  asm("mma.sync.aligned." SHAPE_AND_TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                               \
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1))

// sum[16 rows][8 columns] += a[16 rows][32 bytes] * b[32 bytes][8 columns]
template <class T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<__half>(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1) {
  DECONV_MULTIPLY_ADD("m16n8k16.row.col.f32.f16.f16.f32");
}
template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1) {
  DECONV_MULTIPLY_ADD("m16n8k16.row.col.f32.bf16.bf16.f32");
}
template <>
__device__ __forceinline__ void multiply_add<float>(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1) {
  DECONV_MULTIPLY_ADD("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef DECONV_MULTIPLY_ADD

__device__ __forceinline__ uint32_t round_to_tf32(uint32_t value) {
  uint32_t rounded;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(value)));  // one instruction
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(value)));
#endif
  return rounded;
}
// What rounding leaves. It has either sign, so the products of two remainders that are left out cancel.
__device__ __forceinline__ uint32_t rest_of_tf32(uint32_t value) {
  return __float_as_uint(__uint_as_float(value) - __uint_as_float(round_to_tf32(value)));
}

}  // namespace deconv
