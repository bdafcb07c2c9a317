// cp.async: copies from global to shared memory, issued by every thread for itself. Compute capability 8.0 and later.
#pragma once

#include <cstdint>

namespace deconv {

// 16 bytes: the first `bytes` from global memory, then zeros.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_4(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same if wanted, predicated instead of branching.
__device__ __forceinline__ void copy_16_if(bool wanted, uint32_t to, const void* from, int bytes) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.cg.shared.global [%1], [%2], 16, %3;\n}" ::"r"(
                   static_cast<int>(wanted)),
               "r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_16_if(bool wanted, uint32_t to, const void* from) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.cg.shared.global [%1], [%2], 16;\n}" ::"r"(
                   static_cast<int>(wanted)),
               "r"(to), "l"(from)
               : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending groups of this thread are pending.
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// kBytes (4, 8 or 16), zeros unless `exists`; nothing unless `wanted`. 16 bytes bypass the L1 unless kCached.
template <int kBytes, bool kCached>
__device__ __forceinline__ void copy_if(bool wanted, uint32_t to, const void* from, bool exists) {
  const int bytes = exists ? kBytes : 0;
  if constexpr (kBytes == 16 && !kCached) {
    copy_16_if(wanted, to, from, bytes);
  } else {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.ca.shared.global [%1], [%2], %3, %4;\n}" ::"r"(
                     static_cast<int>(wanted)),
                 "r"(to), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

}  // namespace deconv
