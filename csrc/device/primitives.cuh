// Small building blocks of kernels: element conversion, 16-byte packs, programmatic dependent launch, division by a
// constant.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deconv {

template <class T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<double> {
  using Type = double;
};
template <class T>
using AccumulatorOf = typename Accumulator<T>::Type;

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T, class Accum>
__device__ __forceinline__ T narrow(Accum value) {
  return static_cast<T>(value);
}
template <>
__device__ __forceinline__ __half narrow<__half, float>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16, float>(float value) {
  return __float2bfloat16_rn(value);
}

// kCount elements that load and store as one access of at most 16 bytes.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  static_assert(sizeof(T) * kCount <= 16, "one memory instruction moves at most 16 bytes");
  T value[kCount];
};

// Packs two neighbours in one word, each rounded once.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class T>
inline constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Programmatic dependent launch: before this grid ends, the next may take the room that blocks leave, if it was
// launched for that (launch/kernel_launch.cuh).
__device__ __forceinline__ void start_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits for the end of the grids before. Every grid that was started early must wait, or its own end would not imply
// theirs.
__device__ __forceinline__ void await_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// n / divisor and n % divisor by one multiplication; exact for n and divisor below 2^16.
class SmallDivisor {
 public:
  __device__ __forceinline__ explicit SmallDivisor(unsigned divisor)
      : divisor_(divisor), magic_(divisor == 1 ? 0u : 0xFFFFFFFFu / divisor + 1u) {}
  __device__ __forceinline__ unsigned quotient(unsigned n) const { return magic_ == 0 ? n : __umulhi(n, magic_); }
  __device__ __forceinline__ unsigned divisor() const { return divisor_; }

 private:
  unsigned divisor_;
  unsigned magic_;
};

}  // namespace deconv
