// Depthwise forward of layers that enlarge, as in blocks.cuh, with channels innermost. Columns and channels of a line
// of the output lie without gaps; they are cut into *packs* of 16 bytes. As blocks of the stride are whole packs, packs
// that lie a block apart have the same columns of their blocks and the same channels, so the same weights:
//
//   output[block i, j][r, s] = sum over a, b of input[i - a, j - b] * weight[a, b][r, s]
//
// A thread keeps row r of the blocks and one pack of each, its weights in registers, and goes from block to block along
// the line. Input pixels lie in shared memory, those of rows i and i - 1 side by side.
#pragma once

#include "families/depthwise/params.cuh"

namespace deconv {

template <class T>
struct DepthwisePacksParams {
  const T* input;
  const T* weight;
  const T* bias;
  T* output;
  int64_t input_n, input_h, output_n, output_h;  // strides; columns and channels of a line lie without gaps
  int64_t weight_c, weight_h, weight_w;
  int channels, input_rows, input_columns, output_rows;
  int stride[2], padding[2];
  bool whole;  // packs lie on their own boundaries
  DepthwisePacksPlan plan;
};

template <class T>
__global__ void __launch_bounds__(kDepthwiseThreads, 2)
    depthwise_packs_forward(const __grid_constant__ DepthwisePacksParams<T> p) {
  constexpr int kPack = kPackSize<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const pixels = reinterpret_cast<float2*>(shared);  // [column][channel]: rows i and i - 1
  BlockIndex block;
  const int place = block.take(p.plan.by_parts) * p.plan.threads + static_cast<int>(threadIdx.x);
  const int first = block.take(p.plan.by_segments) * p.plan.steps;  // block of the line, from that of column 0 on
  const int i = block.take(p.plan.by_block_rows) + p.padding[0] / p.stride[0], image = block.rest();
  const int lowest = p.padding[1] / p.stride[1];  // the block of column 0

  const int first_column = first + lowest - 1;
  const T* const input = p.input + image * p.input_n;
  for (int e = threadIdx.x; e < (p.plan.steps + 2) * p.channels; e += p.plan.threads) {
    const int column = first_column + p.plan.by_channels.quotient(e);
    float2 pixel = make_float2(0, 0);
    if (static_cast<unsigned>(column) < static_cast<unsigned>(p.input_columns)) {
      const T* const at = input + i * p.input_h + static_cast<int64_t>(first_column) * p.channels + e;
      if (i < p.input_rows) pixel.x = widen(at[0]);
      if (i > 0) pixel.y = widen(at[-p.input_h]);
    }
    pixels[e] = pixel;
  }
  __syncthreads();

  const int r = p.plan.by_block_packs.quotient(place), pack = p.plan.by_block_packs.remainder(place);
  const int row = i * p.stride[0] + r - p.padding[0];
  if (r >= p.stride[0] || pack >= p.plan.line_packs) return;
  if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.output_rows)) return;
  float4 weights[kPack];
  float bias[kPack];
  float2 before[kPack];
  int at[kPack];  // of the pixel in block j, which moves from column to column
#pragma unroll
  for (int e = 0; e < kPack; ++e) {
    const int any = pack * kPack + e;
    const int column = p.plan.by_channels.quotient(any) + p.padding[1], c = p.plan.by_channels.remainder(any);
    const int j = column / p.stride[1], s = column - j * p.stride[1];
    const T* const weight = p.weight + c * p.weight_c + r * p.weight_h + s * p.weight_w;
    const int64_t below = p.stride[0] * p.weight_h, beside = p.stride[1] * p.weight_w;
    weights[e] = make_float4(widen(weight[0]), widen(weight[beside]), widen(weight[below]),
                             widen(weight[below + beside]));
    bias[e] = p.bias != nullptr ? widen(p.bias[c]) : 0.0f;
    at[e] = (j - lowest + 1) * p.channels + c;
    before[e] = pixels[at[e] - p.channels];
  }
  T* output = p.output + image * p.output_n + row * p.output_h +
              (static_cast<int64_t>(first) * p.plan.block_packs + pack) * kPack;
  const int steps = min(p.plan.steps, p.plan.by_block_packs.quotient(p.plan.line_packs - 1 - pack) + 1 - first);
  for (int step = 0; step < steps; ++step) {
    float values[kPack];
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      const float2 here = pixels[at[e]];
      const float4 w = weights[e];
      values[e] = bias[e] + here.x * w.x + before[e].x * w.y + here.y * w.z + before[e].y * w.w;
      before[e] = here;
      at[e] += p.channels;
    }
    if (p.whole) {
      *reinterpret_cast<RawPack<T, kPack>*>(output) = narrow<T, kPack>(values);
    } else {
#pragma unroll
      for (int e = 0; e < kPack; ++e) output[e] = narrow<T>(values[e]);
    }
    output += p.plan.block_packs * kPack;
  }
}

}  // namespace deconv
