// Hopper's asynchronous machinery with names: barriers, rings, bulk and tensor copies, proxies.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "../primitives.cuh"

namespace deconv::hopper {

// An mbarrier in shared memory, by address.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain_%=:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Named barriers of whole warps; arriving does not wait.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Registers of each thread of a warpgroup from here on: those that some leave, others may take.
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Ordinary writes to shared memory become visible to the tensor cores and the copy engine.
__device__ __forceinline__ void fence_to_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Slots used in turn by a producer and its consumers. Each slot has a barrier that says full and one that says empty.
struct Ring {
  uint32_t full;   // address of the first slot's barrier; the others follow
  uint32_t empty;
  int slots;
  int slot = 0;
  uint32_t parity = 0;  // of the full barrier's present round

  __device__ __forceinline__ void wait_full() const { barrier_wait(full + 8 * slot, parity); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty + 8 * slot, parity ^ 1); }
  __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * slot; }
  __device__ __forceinline__ void release(int of_slot) const { barrier_arrive(empty + 8 * of_slot); }
  // Past `count` slots, over any number of rounds.
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

__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}
// From shared to global memory; shared memory has to stay until wait_bulk_out.
__device__ __forceinline__ void copy_bulk_out(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_bulk_out() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void copy_tensor(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int c0, int c1,
                                            int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

__device__ __forceinline__ void copy_tensor(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int c0, int c1,
                                            int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Where byte `offset` of a tile of rows of 128 or 64 bytes lies: the swizzle that TMA writes and wgmma reads.
__device__ __forceinline__ uint32_t swizzled(uint32_t offset, uint32_t row_bytes = 128) {
  return offset ^ ((offset >> 3) & (row_bytes - 16));
}

__device__ __forceinline__ void store_shared(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ uint16_t load_shared_short(uint32_t address) {
  uint16_t value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_shared_vector(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace deconv::hopper
