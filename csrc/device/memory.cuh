// Loads from and stores to shared memory by its 32-bit address, and stores that are predicated instead of branching.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deconv {

__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ uint16_t load_shared_short(uint32_t address) {
  uint16_t value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint2 value) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_shared_short(uint32_t address, uint16_t value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void store_shared_if(bool wanted, uint32_t address, uint32_t value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.b32 [%1], %2;\n}" ::"r"(static_cast<int>(wanted)),
               "r"(address), "r"(value)
               : "memory");
}
__device__ __forceinline__ void store_shared_if(bool wanted, uint32_t address, float2 value) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.v2.b32 [%1], {%2, %3};\n}" ::"r"(static_cast<int>(wanted)),
      "r"(address), "f"(value.x), "f"(value.y)
      : "memory");
}
template <class T>
__device__ __forceinline__ void store_shared_if(bool wanted, uint32_t address, T value) {
  if constexpr (sizeof(T) == 4) {
    store_shared_if(wanted, address, __float_as_uint(value));
  } else {
    static_assert(sizeof(T) == 2);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.b16 [%1], %2;\n}" ::"r"(static_cast<int>(wanted)),
        "r"(address), "h"(reinterpret_cast<const uint16_t&>(value))
        : "memory");
  }
}
__device__ __forceinline__ void store_shared_if(bool wanted, uint32_t address, uint4 value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(
                   static_cast<int>(wanted)),
               "r"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_if(bool wanted, void* to, float2 value) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};\n}" ::"r"(static_cast<int>(wanted)),
      "l"(to), "f"(value.x), "f"(value.y)
      : "memory");
}
__device__ __forceinline__ void store_if(bool wanted, void* to, uint32_t value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n}" ::"r"(static_cast<int>(wanted)),
               "l"(to), "r"(value)
               : "memory");
}
template <class T>
__device__ __forceinline__ void store_if(bool wanted, T* to, T value) {
  if constexpr (sizeof(T) == 4) {
    store_if(wanted, to, __float_as_uint(value));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b16 [%1], %2;\n}" ::"r"(static_cast<int>(wanted)),
        "l"(to), "h"(reinterpret_cast<const uint16_t&>(value))
        : "memory");
  }
}

}  // namespace deconv
