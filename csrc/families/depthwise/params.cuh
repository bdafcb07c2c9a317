// Shared by depthwise's kernels. With one source or one result channel a group, nothing is reused across channels, and
// memory should be the limit.
//
// grad_weight is described like grad_input: its source is grad_output, and the input takes the result's place.
#pragma once

#include <type_traits>

#include "core/taps.h"
#include "device/primitives.cuh"
#include "families/depthwise/plan.h"

namespace deconv {

struct DepthwiseStrides {
  int64_t n, c, h, w;
};

template <class T, class PlanOf>
struct DepthwiseParams {
  const T* source;  // forward: input; gradients: grad_output
  const T* other;   // forward, grad_input: weight; grad_weight: input
  const T* bias;
  T* result;
  AccumulatorOf<T>* partial;  // grad_weight with splits: (splits, weight's shape)
  DepthwiseStrides source_stride, other_stride, result_stride;
  int batch;
  int channels;  // of the result; grad_weight: pairs of channels, the weight's first two dimensions
  int in_group, out_group;  // channels of a group
  bool is_forward;
  AxisGeometry axis[2];
  AxisTaps taps[2][kDepthwiseStrides];  // of each phase (forward) or source phase
  Divisor by_in_group, by_out_group, by_channels, by_taps, by_kernel_w;
  PlanOf plan;

  // Forward and grad_input: the source channels of a result channel, and where their weights lie.
  __device__ __forceinline__ int sources() const { return is_forward ? in_group : out_group; }
  __device__ __forceinline__ int source_channel(int c, int s) const {
    return (is_forward ? by_out_group : by_in_group).quotient(c) * sources() + s;
  }
  __device__ __forceinline__ const T* weight(int c, int s) const {
    return is_forward ? other + source_channel(c, s) * other_stride.n + by_out_group.remainder(c) * other_stride.c
                      : other + c * other_stride.n + s * other_stride.c;
  }
  // grad_weight: pair (input channel, output channel of its group).
  __device__ __forceinline__ int pair_input(int pair) const { return by_out_group.quotient(pair); }
  __device__ __forceinline__ int pair_output(int pair) const {
    return by_in_group.quotient(pair_input(pair)) * out_group + by_out_group.remainder(pair);
  }
  __device__ __forceinline__ int64_t weight_at(int pair, int kh, int kw) const {
    return pair_input(pair) * result_stride.n + by_out_group.remainder(pair) * result_stride.c + kh * result_stride.h +
           kw * result_stride.w;
  }
  __device__ __forceinline__ void store_weight(int64_t split, int pair, int kh, int kw, AccumulatorOf<T> sum) const {
    if (partial == nullptr) {
      result[weight_at(pair, kh, kw)] = narrow<T>(sum);
    } else {
      partial[((split * channels + pair) * axis[0].kernel + kh) * axis[1].kernel + kw] = sum;
    }
  }
};

// kCount neighbours as loaded or stored. 16-bit types stay in whole registers; otherwise the compiler takes their
// halves apart at once.
template <class T, int kCount>
using RawPack = std::conditional_t<sizeof(T) == 2 && kCount % 2 == 0, Pack<uint32_t, kCount / 2>, Pack<T, kCount>>;

__device__ __forceinline__ float2 widen_pair(uint32_t pair, const __half*) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
__device__ __forceinline__ float2 widen_pair(uint32_t pair, const __nv_bfloat16*) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}
__device__ __forceinline__ uint32_t small_channel_pair(float low, float high, const __half*) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t small_channel_pair(float low, float high, const __nv_bfloat16*) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <class T, int kCount>
__device__ __forceinline__ void widen(AccumulatorOf<T> (&values)[kCount], const RawPack<T, kCount>& raw) {
  if constexpr (std::is_same_v<RawPack<T, kCount>, Pack<T, kCount>>) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = widen(raw.value[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float2 pair = widen_pair(raw.value[i / 2], static_cast<const T*>(nullptr));
      values[i] = pair.x;
      values[i + 1] = pair.y;
    }
  }
}

template <class T, int kCount>
__device__ __forceinline__ RawPack<T, kCount> narrow(const AccumulatorOf<T> (&values)[kCount]) {
  RawPack<T, kCount> raw;
  if constexpr (std::is_same_v<RawPack<T, kCount>, Pack<T, kCount>>) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) raw.value[i] = narrow<T>(values[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      raw.value[i / 2] = small_channel_pair(values[i], values[i + 1], static_cast<const T*>(nullptr));
    }
  }
  return raw;
}

// Calls f(integral_constant<count>) for count = 1 .. kMost; does nothing for any other count.
template <int kMost, class F>
__device__ __forceinline__ void dispatch(int count, F&& f) {
  if constexpr (kMost > 1) {
    if (count < kMost) return dispatch<kMost - 1>(count, f);
  }
  if (count == kMost) f(std::integral_constant<int, kMost>());
}

// Takes a mixed-radix number apart, the lowest digit first.
class Digits {
 public:
  __device__ __forceinline__ explicit Digits(unsigned number) : rest_(static_cast<int>(number)) {}

  __device__ __forceinline__ int take(const Divisor& by) {
    const int whole = by.quotient(rest_), index = rest_ - whole * static_cast<int>(by.divisor);
    rest_ = whole;
    return index;
  }
  __device__ __forceinline__ int rest() const { return rest_; }

 private:
  int rest_;
};

// Adds the splits of grad_weight. A block has 32 elements. Each of its warps adds every eighth split, then the warps'
// sums are added in order: same bits in every run.
template <class Params>
__global__ void __launch_bounds__(kDepthwiseThreads) depthwise_add_splits(const __grid_constant__ Params p) {
  using T = std::remove_const_t<std::remove_pointer_t<decltype(p.source)>>;
  constexpr int kWarps = kDepthwiseThreads / 32;
  __shared__ double sums[kWarps][32];
  await_predecessors();  // the partial sums are complete
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t taps = p.by_taps.divisor, count = p.channels * taps;
  const int64_t e = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  double sum = 0;
  if (e < count) {
#pragma unroll 8
    for (int s = warp; s < p.plan.splits; s += kWarps) sum += p.partial[s * count + e];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || e >= count) return;
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
  const int pair = static_cast<int>(e / taps), tap = static_cast<int>(e - pair * taps);
  const int kh = p.by_kernel_w.quotient(tap);
  p.result[p.weight_at(pair, kh, p.by_kernel_w.remainder(tap))] = narrow<T>(static_cast<AccumulatorOf<T>>(sum));
}

}  // namespace deconv
