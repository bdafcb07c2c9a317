// Depthwise forward and grad_input of layers that enlarge: width innermost, one channel a group on either side, a
// kernel of twice the stride. With the output in blocks of the stride (csrc/subpixel.h has the relation), block (i, j)
// meets the input pixels (i - a, j - b), a and b 0 or 1, and its pixel (r, s) the tap (a stride + r, b stride + s):
//
//   forward:    output[block i, j][r, s] = sum over a, b of input[i - a, j - b] * weight[a, b][r, s]
//   grad_input: grad_input[i, j] = sum over a, b of part[a, b](block i + a, j + b),
//               part[a, b](block) = sum over r, s of grad_output[block][r, s] * weight[a, b][r, s]
//
// So each output pixel is touched once, with four weights that lie together in shared memory. A thread keeps to a run
// of columns (depthwise_plan.h) and walks down its segment; lanes are neighbours in memory.
#pragma once

#include "families/depthwise/params.cuh"

namespace deconv {

template <class T>
struct DepthwiseBlocksParams {
  const T* source;  // forward: input; grad_input: grad_output
  const T* weight;
  const T* bias;
  T* result;
  int64_t input_n, input_c, input_h, input_w, output_n, output_c, output_h;  // strides; the output's columns adjacent
  int64_t weight_c, weight_h, weight_w;
  int input_rows, input_columns, output_rows, output_columns;
  int stride[2], padding[2];
  int access;  // bytes that a thread moves at once: 16, 8, or an element; a run's halves are in the image, or outside
  DepthwiseBlocksPlan plan;
};

// A thread's place, whichever direction.
template <class T>
struct DepthwiseBlocksPlace {
  static constexpr int kRun = depthwise_run(sizeof(T)), kHalf = kRun / 2;

  __device__ __forceinline__ DepthwiseBlocksPlace(const DepthwiseBlocksParams<T>& p) {
    BlockIndex block;
    const int64_t warp = static_cast<int64_t>(block.take(p.plan.by_channel_blocks)) * (kDepthwiseThreads / 32) +
                         threadIdx.x / 32;
    channel = block.rest();
    const int lane = threadIdx.x % 32, parts = p.plan.parts;
    of_warp = lane / parts;
    part = lane & (parts - 1);
    const int64_t position = warp * p.plan.warp_blocks + of_warp;
    exists = position < p.plan.positions;
    const int at = exists ? static_cast<int>(position) : 0;
    const int line = p.plan.by_line_blocks.quotient(at);
    image = p.plan.by_segments.quotient(line);
    first_row = p.plan.by_segments.remainder(line) * p.plan.segment_rows;
    j = p.plan.by_line_blocks.remainder(at);
    column = j * p.stride[1] - p.padding[1] + part * kRun;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int x = column + half * kHalf;
      inside[half] = x >= 0 && x < p.output_columns;
    }
  }

  int channel, image, first_row, j;  // j: the block's column
  int of_warp, part, column;  // the block in its warp; the run in its block, and in the image
  bool exists, inside[2];
};

// weights[r][s]: those of (a, b) = (0, 0), (0, 1), (1, 0), (1, 1).
template <class T>
__device__ __forceinline__ void load_block_weights(const DepthwiseBlocksParams<T>& p, int channel, float4* weights) {
  const T* const of_channel = p.weight + channel * p.weight_c;
  for (int i = threadIdx.x; i < p.stride[0] * p.stride[1]; i += kDepthwiseThreads) {
    const int r = i / p.stride[1], s = i - r * p.stride[1];
    const T* const at = of_channel + r * p.weight_h + s * p.weight_w;
    const int64_t below = p.stride[0] * p.weight_h, beside = p.stride[1] * p.weight_w;
    weights[i] = make_float4(widen(at[0]), widen(at[beside]), widen(at[below]), widen(at[below + beside]));
  }
  __syncthreads();
}

// The run at `at` as it lies, zeros outside the image.
template <class T>
__device__ __forceinline__ uint4 load_run(const T* at, int access, const DepthwiseBlocksPlace<T>& place) {
  if (access < 8) {
    alignas(16) T element[DepthwiseBlocksPlace<T>::kRun];
#pragma unroll
    for (int e = 0; e < place.kRun; ++e) element[e] = place.inside[e / place.kHalf] ? at[e] : narrow<T>(0.0f);
    return reinterpret_cast<const uint4&>(element);
  }
  if (access == 16 && place.inside[0] && place.inside[1]) return __ldcs(reinterpret_cast<const uint4*>(at));
  uint2 half[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (place.inside[i]) half[i] = __ldcs(reinterpret_cast<const uint2*>(at + i * place.kHalf));
  }
  return make_uint4(half[0].x, half[0].y, half[1].x, half[1].y);
}

template <class T>
__device__ __forceinline__ void widen_run(uint4 raw, float (&values)[DepthwiseBlocksPlace<T>::kRun]) {
  const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = __uint_as_float(word[i]);
    } else {
      const float2 pair = widen_pair(word[i], static_cast<const T*>(nullptr));
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
}

template <class T>
__device__ __forceinline__ void store_run(T* at, int access, const DepthwiseBlocksPlace<T>& place,
                                          const float (&values)[DepthwiseBlocksPlace<T>::kRun]) {
  if (access < 8) {
#pragma unroll
    for (int e = 0; e < place.kRun; ++e) {
      if (place.inside[e / place.kHalf]) at[e] = narrow<T>(values[e]);
    }
    return;
  }
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      word[i] = __float_as_uint(values[i]);
    } else {
      word[i] = narrow_pair(values[2 * i], values[2 * i + 1], static_cast<const T*>(nullptr));
    }
  }
  if (access == 16 && place.inside[0] && place.inside[1]) {
    *reinterpret_cast<uint4*>(at) = make_uint4(word[0], word[1], word[2], word[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (place.inside[i]) *reinterpret_cast<uint2*>(at + i * place.kHalf) = make_uint2(word[2 * i], word[2 * i + 1]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_blocks_forward(const __grid_constant__ DepthwiseBlocksParams<T> p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const weights = reinterpret_cast<float4*>(shared);
  const DepthwiseBlocksPlace<T> place(p);
  constexpr int kRun = place.kRun;
  load_block_weights(p, place.channel, weights);
  if (!place.exists) return;
  const float bias = p.bias ? widen(p.bias[place.channel]) : 0.0f;
  const T* const input = p.source + place.image * p.input_n + place.channel * p.input_c;
  // Pixels j - 1 and j of the blocks' row and of the one above.
  float2 above, here;
  const auto load_row = [&](int i) {
    const bool inside = i >= 0 && i < p.input_rows;
    const T* const at = input + i * p.input_h + place.j * p.input_w;
    return make_float2(inside && place.j > 0 ? widen(at[-p.input_w]) : 0.0f,
                       inside && place.j < p.input_columns ? widen(at[0]) : 0.0f);
  };
  above = load_row(place.first_row - 1);
  const int last = min(place.first_row + p.plan.segment_rows, p.input_rows + 1);
  int y = place.first_row * p.stride[0] - p.padding[0];
  T* output = p.result + place.image * p.output_n + place.channel * p.output_c + y * p.output_h + place.column;
  for (int i = place.first_row; i < last; ++i) {
    here = load_row(i);
    const float4* taps = weights + place.part * kRun;
    for (int r = 0; r < p.stride[0]; ++r, ++y, output += p.output_h, taps += p.stride[1]) {
      if (static_cast<unsigned>(y) >= static_cast<unsigned>(p.output_rows)) continue;
      float values[kRun];
#pragma unroll
      for (int e = 0; e < kRun; ++e) {
        const float4 w = taps[e];
        values[e] = bias + here.y * w.x + here.x * w.y + above.y * w.z + above.x * w.w;
      }
      store_run(output, p.access, place, values);
    }
    above = here;
  }
}

template <class T>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_blocks_grad_input(const __grid_constant__ DepthwiseBlocksParams<T> p) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const weights = reinterpret_cast<float4*>(shared);
  const DepthwiseBlocksPlace<T> place(p);
  constexpr int kRun = place.kRun, kBatch = 4;  // rows in flight
  load_block_weights(p, place.channel, weights);
  const int parts = p.plan.parts, next_block = (static_cast<int>(threadIdx.x) + parts) % 32;
  const bool stores = place.exists && place.of_warp < p.plan.warp_blocks && place.part == 0 &&
                      place.j < p.input_columns;
  int y = place.first_row * p.stride[0] - p.padding[0];
  const T* grad_output = p.source + place.image * p.output_n + place.channel * p.output_c + y * p.output_h +
                         place.column;
  T* grad_input = p.result + place.image * p.input_n + place.channel * p.input_c + (place.first_row - 1) * p.input_h +
                  place.j * p.input_w;
  float above = 0;  // what the row of blocks before gave to the input row of its own
  for (int t = 0; t <= p.plan.segment_rows; ++t, grad_input += p.input_h) {
    float sum[2][2] = {};  // [a][b]
    const float4* const taps = weights + place.part * kRun;
    for (int first = 0; first < p.stride[0]; first += kBatch) {
      uint4 raw[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int row = y + first + k;
        const bool exists = first + k < p.stride[0] && row >= 0 && row < p.output_rows;
        raw[k] = exists ? load_run(grad_output + (first + k) * p.output_h, p.access, place) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (first + k >= p.stride[0]) break;
        float values[kRun];
        widen_run<T>(raw[k], values);
        const float4* const of_row = taps + (first + k) * p.stride[1];
#pragma unroll
        for (int e = 0; e < kRun; ++e) {
          const float4 w = of_row[e];
          sum[0][0] += values[e] * w.x;
          sum[0][1] += values[e] * w.y;
          sum[1][0] += values[e] * w.z;
          sum[1][1] += values[e] * w.w;
        }
      }
    }
    y += p.stride[0];
    grad_output += p.stride[0] * p.output_h;
    __syncwarp();
#pragma unroll
    for (int a = 0; a < 2; ++a) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        for (int other = 1; other < parts; other *= 2) sum[a][b] += __shfl_xor_sync(0xFFFFFFFFu, sum[a][b], other);
      }
      sum[a][0] += __shfl_sync(0xFFFFFFFFu, sum[a][1], next_block);
    }
    if (t > 0 && stores && place.first_row + t <= p.input_rows) *grad_input = narrow<T>(above + sum[1][0]);
    above = sum[0][0];
  }
}

}  // namespace deconv
