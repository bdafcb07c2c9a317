// Asynchronous machinery of sm_90, with names: barriers that count bytes, setmaxnreg, bulk and tensor copies (TMA),
// clusters, the swizzle.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/primitives.cuh"

namespace deconv::sm90 {

__device__ __forceinline__ void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Sets the registers of each thread of the calling warpgroup: those that some release, others may take.
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Makes ordinary writes to shared memory visible to the async proxy: wgmma and TMA.
__device__ __forceinline__ void fence_to_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
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

// Multicast: the same to all blocks of the cluster whose bits are set, at the same address, and to a barrier of each.
__device__ __forceinline__ void copy_tensor_to_all(uint32_t shared, const CUtensorMap* map, uint32_t barrier, int c0,
                                                   int c1, int c2, int c3, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(blocks)
      : "memory");
}

// From shared to global memory. Shared memory must stay unchanged until wait_copies_out has waited for the commit.
__device__ __forceinline__ void copy_tensor_out(const CUtensorMap* map, uint32_t shared, int c0, int c1, int c2, int c3,
                                                int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
               "r"(shared), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}
__device__ __forceinline__ void commit_copies_out() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until shared memory has been read. Writes to global memory may be pending.
__device__ __forceinline__ void wait_copies_out() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(0) : "memory");
}

// Clusters: blocks that run at once and see each other's shared memory. This block's rank, and the cluster's index. A
// block that was launched without clusters is one by itself.
__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ int cluster_index() {
  uint32_t index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return static_cast<int>(index);
}
// Waits for all threads of the cluster that have not ended, and for what they wrote.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// The address, in the shared memory of the block with this rank, that corresponds to `address` here.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// Arrives at the barrier of the block with this rank if wanted, predicated instead of branching.
__device__ __forceinline__ void barrier_arrive_cluster_if(bool wanted, uint32_t barrier, int rank) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p mbarrier.arrive.shared::cluster.b64 _, [%1];\n}" ::"r"(
                   static_cast<int>(wanted)),
               "r"(cluster_address(barrier, rank))
               : "memory");
}
__device__ __forceinline__ float4 load_cluster(uint32_t address, int rank) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(cluster_address(address, rank))
               : "memory");
  return value;
}
__device__ __forceinline__ void store_cluster(uint32_t address, int rank, float4 value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(cluster_address(address, rank)), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// Where byte `offset` of a tile with rows of 128 or 64 bytes lies: the swizzle that TMA writes and wgmma reads.
__device__ __forceinline__ uint32_t swizzled(uint32_t offset, uint32_t row_bytes = 128) {
  return offset ^ ((offset >> 3) & (row_bytes - 16));
}

}  // namespace deconv::sm90
