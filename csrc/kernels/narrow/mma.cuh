// The instructions of compute capability 8.0 that the narrow family needs, with names. Earlier GPUs get empty kernels,
// and no plan.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deconv::narrow_family {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory behind the thread's back; zeros where `inside` is false.
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8x8 matrices of 16-bit numbers (or 8x4 of 32-bit ones); lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t round_to_tf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

#define DECONV_MMA(SHAPE_AND_TYPES)                                     \
  asm volatile("mma.sync.aligned." SHAPE_AND_TYPES                      \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "        \
               "{%0, %1, %2, %3};"                                      \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1))

// sum[16 rows][8 pixels] += a[16 rows][two units] * b[two units][8 pixels]
template <class T>
__device__ __forceinline__ void multiply_add(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<__half>(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1) {
  DECONV_MMA("m16n8k16.row.col.f32.f16.f16.f32");
}
template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1) {
  DECONV_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}
template <>
__device__ __forceinline__ void multiply_add<float>(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1) {
  DECONV_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef DECONV_MMA

}  // namespace deconv::narrow_family
