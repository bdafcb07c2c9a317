// Loads weights in place into operand B in shared memory, where they stay (weight-stationary).
#pragma once

#include "core/divisor.h"
#include "device/mma_sm80.cuh"
#include "device/primitives.cuh"
#include "device/tma_sm90.cuh"

namespace deconv::sm90 {

inline constexpr int kOperandRowBytes = 128;  // of channels

// Fills operand B, [k_block][row][128 bytes of channels], swizzled, with zeros where there is no weight. Each of
// `channels` source channels has `count` weights: load(channel, index) reads one, and row_of(index) is its row, or -1
// if it has none. kThreads threads meet at named barrier `barrier` twice: before row_of is called, and when operand B
// is ready for wgmma.
template <class T, int kThreads, class Load, class RowOf>
__device__ __forceinline__ void fill_operand_b(uint32_t to, int chunks, int chunk_bytes, int channels,
                                               const Divisor& count, int barrier, const Load& load,
                                               const RowOf& row_of) {
  constexpr int kAtOnce = 12, kSize = static_cast<int>(sizeof(T));
  const int all = static_cast<int>(count.divisor) * channels;
  const auto load_some = [&](T(&some)[kAtOnce], int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * kThreads, channel = count.quotient(index);
      if (index < all) some[i] = load(channel, index - channel * static_cast<int>(count.divisor));
    }
  };
  T some[kAtOnce];
  load_some(some, threadIdx.x);  // in flight while zeros are stored
  for (int at = 16 * threadIdx.x; at < chunks * chunk_bytes; at += 16 * kThreads) {
    store_shared(to + at, make_uint4(0, 0, 0, 0));
  }
  named_barrier_sync(barrier, kThreads);
  for (int first = threadIdx.x; first < all; first += kAtOnce * kThreads) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * kThreads, channel = count.quotient(index);
      if (index >= all) break;
      const int row = row_of(index - channel * static_cast<int>(count.divisor));
      if (row < 0) continue;
      const int byte = channel * kSize, chunk = byte / kOperandRowBytes;
      const uint32_t at = to + chunk * chunk_bytes + swizzled(row * kOperandRowBytes + byte % kOperandRowBytes);
      if constexpr (kSize == 4) {
        store_shared(at, round_to_tf32(__float_as_uint(some[i])));
      } else {
        store_shared_short(at, reinterpret_cast<const uint16_t&>(some[i]));
      }
    }
    if (first + kAtOnce * kThreads < all) load_some(some, first + kAtOnce * kThreads);
  }
  fence_to_async_proxy();
  named_barrier_sync(barrier, kThreads);
}

}  // namespace deconv::sm90
