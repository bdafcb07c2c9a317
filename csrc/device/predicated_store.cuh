// Stores of a lane's results if wanted, predicated instead of branching.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deconv::hopper {

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

}  // namespace deconv::hopper
