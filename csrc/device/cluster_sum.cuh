// Sums over the blocks of a cluster (split K), through distributed shared memory.
#pragma once

#include "device/tma_sm90.cuh"

namespace deconv::sm90 {

// Adds the accumulators of a cluster's `blocks` blocks in rank order. Each block adds a part of them and sends it to
// the first block, the only one that returns true. own: this thread's first 16 bytes of shared memory that are free in
// every block; the next lie kThreads * 16 bytes further on.
template <int kThreads, int kCount>
__device__ __forceinline__ bool add_over_cluster(float (&acc)[kCount], uint32_t own, int blocks) {
  constexpr int kBytes = 16, kAhead = 4;
  const int rank = cluster_rank();
  const auto at = [&](int i) { return own + i * kThreads * kBytes; };
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    store_shared(at(i), make_uint4(__float_as_uint(acc[4 * i]), __float_as_uint(acc[4 * i + 1]),
                                   __float_as_uint(acc[4 * i + 2]), __float_as_uint(acc[4 * i + 3])));
  }
  cluster_sync();
  for (int i = rank; i < kCount / 4; i += blocks) {
    float4 sum = load_cluster(at(i), 0);
    for (int first = 1; first < blocks; first += kAhead) {
      float4 value[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) value[a] = load_cluster(at(i), min(first + a, blocks - 1));
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (first + a >= blocks) break;
        sum.x += value[a].x, sum.y += value[a].y, sum.z += value[a].z, sum.w += value[a].w;
      }
    }
    store_cluster(at(i), 0, sum);
  }
  cluster_sync();
  if (rank > 0) return false;
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const uint4 sum = load_shared_16(at(i));
    acc[4 * i] = __uint_as_float(sum.x), acc[4 * i + 1] = __uint_as_float(sum.y);
    acc[4 * i + 2] = __uint_as_float(sum.z), acc[4 * i + 3] = __uint_as_float(sum.w);
  }
  return true;
}

}  // namespace deconv::sm90
