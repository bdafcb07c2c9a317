// mbarriers, named barriers, and Pipelines (`Ring`): slots that producing and consuming warps share. Compute
// capability 8.0 and later.
#pragma once

#include <cstdint>

namespace deconv {

// An mbarrier in shared memory, by address.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The same if wanted, predicated instead of branching.
__device__ __forceinline__ void barrier_arrive_if(bool wanted, uint32_t barrier) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p mbarrier.arrive.shared.b64 _, [%1];\n}" ::"r"(
                   static_cast<int>(wanted)),
               "r"(barrier)
               : "memory");
}
// Arrives once this thread's cp.async so far have landed. noinc: it is one of the arrivals that barrier_init counts.
__device__ __forceinline__ void barrier_arrive_with_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
#if __CUDA_ARCH__ >= 900
#define DECONV_TEST_BARRIER "mbarrier.try_wait"  // may sleep
#else
#define DECONV_TEST_BARRIER "mbarrier.test_wait"
#endif
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n.reg .pred done;\nagain_%=:\n" DECONV_TEST_BARRIER
               ".parity.shared.b64 done, [%0], %1;\n"
               "@!done bra again_%=;\n}\n" ::"r"(barrier),
               "r"(parity)
               : "memory");
}
#undef DECONV_TEST_BARRIER
// True if the phase of this parity is complete; does not wait.
__device__ __forceinline__ bool barrier_is_past(uint32_t barrier, uint32_t parity) {
  uint32_t past;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
               : "=r"(past)
               : "r"(barrier), "r"(parity)
               : "memory");
  return past != 0;
}

// Named barriers of whole warps; arriving does not wait.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A Pipeline: slots used in turn by a producer and its consumers. Each slot has a barrier that says full and one that
// says empty.
struct Ring {
  uint32_t full;   // address of the first slot's barrier; the others follow
  uint32_t empty;
  int slots;
  int slot = 0;
  uint32_t parity = 0;  // of the full barrier's current round

  __device__ __forceinline__ void wait_full() const { barrier_wait(full + 8 * slot, parity); }
  __device__ __forceinline__ bool is_full() const { return barrier_is_past(full + 8 * slot, parity); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty + 8 * slot, parity ^ 1); }
  __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * slot; }
  __device__ __forceinline__ void release(int of_slot) const { barrier_arrive(empty + 8 * of_slot); }
  __device__ __forceinline__ void release_if(bool wanted, int of_slot) const {
    barrier_arrive_if(wanted, empty + 8 * of_slot);
  }
  // Moves past `count` slots, over any number of rounds.
  __device__ __forceinline__ void skip(int count) {
    const int rounds = (slot + count) / slots;
    slot += count - rounds * slots;
    parity ^= rounds & 1;
  }
  __device__ __forceinline__ void advance() {
    slot += 1;
    if (slot >= slots) {
      slot -= slots;
      parity ^= 1;
    }
  }
};

}  // namespace deconv
