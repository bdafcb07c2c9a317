// Depthwise family: one source and one result channel a group; bound by memory, so nothing but the weights is staged.
//
// Forward and grad_input: a thread takes kDepthwisePixels result pixels, lanes along the innermost dimension of the
// result, phases side by side, so that stores are whole sectors; source pixels come through the L1.
//
// grad_weight: a block takes one channel (or `columns` of them), kDepthwiseTaps taps and one split of the pixels; its
// threads sum their pixels, the block adds its threads in a fixed order, reduce_splits (gather_weight.cuh) the splits.
#pragma once

#include "../depthwise_plan.h"
#include "../taps.h"
#include "primitives.cuh"

namespace deconv {

template <class T>
struct DepthwiseParams {
  const T* source;  // forward: input, grad_input: grad_output, grad_weight: input
  const T* weight;  // grad_weight: grad_output
  const T* bias;
  T* result;
  AccumulatorOf<T>* partial;  // grad_weight with splits: (splits, channels, kernel height, kernel width)
  int64_t source_n, source_c, source_h, source_w;
  int64_t weight_n, weight_c, weight_h, weight_w;
  int64_t result_n, result_c, result_h, result_w;
  int batch, channels;
  AxisGeometry axis[2];
  DepthwisePlan plan;
};

// The taps of one result pixel on one axis that meet the source: weight index and source pixel step together.
struct PixelTaps {
  int count, tap, tap_step, source, source_step;
};

class DepthwiseAxis {
 public:
  __device__ __forceinline__ DepthwiseAxis(const AxisGeometry& axis, const AxisTaps* of_phase)
      : axis_(axis), of_phase_(of_phase), by_stride_(axis.stride) {}

  __device__ __forceinline__ PixelTaps at(int pixel) const {
    PixelTaps taps{axis_.kernel, 0, 1, pixel * axis_.stride - axis_.padding, axis_.dilation};
    if (axis_.is_forward) {
      const int q = by_stride_.quotient(pixel);
      const AxisTaps& of_phase = of_phase_[pixel - q * axis_.stride];
      taps = {of_phase.count, of_phase.first_tap, of_phase.tap_step, q + of_phase.first_shift, of_phase.shift_step};
    }
    while (taps.count > 0 && taps.source < 0) {
      --taps.count;
      taps.tap += taps.tap_step;
      taps.source += taps.source_step;
    }
    while (taps.count > 0 && taps.source + (taps.count - 1) * taps.source_step >= axis_.source_size) --taps.count;
    return taps;
  }

 private:
  const AxisGeometry& axis_;
  const AxisTaps* of_phase_;
  SmallDivisor by_stride_;
};

template <class T>
__device__ __forceinline__ AccumulatorOf<T> depthwise_pixel(const DepthwiseParams<T>& p, const T* source,
                                                            const AccumulatorOf<T>* weight, int weight_step,
                                                            const PixelTaps& th, const PixelTaps& tw) {
  AccumulatorOf<T> sum = 0;
  const int weight_row = p.axis[1].kernel * weight_step;
  const T* row = source + th.source * p.source_h + tw.source * p.source_w;
  const AccumulatorOf<T>* weights = weight + th.tap * weight_row + tw.tap * weight_step;
  const int64_t source_step = tw.source_step * p.source_w;
  const int tap_step = tw.tap_step * weight_step;
  for (int i = 0; i < th.count; ++i) {
    const T* at = row;
    const AccumulatorOf<T>* tap = weights;
#pragma unroll 4
    for (int k = 0; k < tw.count; ++k) {
      sum += widen(*at) * *tap;
      at += source_step;
      tap += tap_step;
    }
    row += th.source_step * p.source_h;
    weights += th.tap_step * weight_row;
  }
  return sum;
}

template <class T, bool kChannelsInnermost>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_conv_kernel(const __grid_constant__ DepthwiseParams<T> p) {
  using Accum = AccumulatorOf<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ AxisTaps taps[2][kDepthwiseStrides];
  Accum* weights = reinterpret_cast<Accum*>(shared);  // [kernel height][kernel width][channels of the block]

  unsigned block = blockIdx.x;
  const auto take = [&block](int count) {
    const int index = static_cast<int>(block % count);
    block /= count;
    return index;
  };
  const int columns = p.plan.columns, rows = kDepthwiseThreads / columns;
  const int first_inner = take(p.plan.blocks_inner) * columns;
  const int first_outer = take(p.plan.blocks_outer) * rows * kDepthwisePixels;
  const int first_c = kChannelsInnermost ? first_inner : take(p.channels);
  const int n = static_cast<int>(block);
  const int block_channels = kChannelsInnermost ? columns : 1;
  const int kernel_h = p.axis[0].kernel, kernel_w = p.axis[1].kernel;

  for (int e = threadIdx.x; e < kernel_h * kernel_w * block_channels; e += kDepthwiseThreads) {
    const int c = first_c + e % block_channels, tap = e / block_channels;
    weights[e] = c < p.channels
                     ? widen(p.weight[c * p.weight_c + tap / kernel_w * p.weight_h + tap % kernel_w * p.weight_w])
                     : Accum(0);
  }
  for (int i = threadIdx.x; i < 2 * kDepthwiseStrides; i += kDepthwiseThreads) {
    const int a = i / kDepthwiseStrides, phase = i % kDepthwiseStrides;
    if (p.axis[a].is_forward && phase < p.axis[a].phases()) taps[a][phase] = axis_taps(p.axis[a], phase, 0);
  }
  __syncthreads();

  const DepthwiseAxis axis_h(p.axis[0], taps[0]), axis_w(p.axis[1], taps[1]);
  const int width = p.axis[1].result_size, height = p.axis[0].result_size;
  const SmallDivisor by_width(width);
  const int inner = first_inner + threadIdx.x % columns;
  const int c = kChannelsInnermost ? inner : first_c;
  if (inner >= (kChannelsInnermost ? p.channels : width)) return;
  const T* source = p.source + n * p.source_n + c * p.source_c;
  const Accum* weight = weights + (kChannelsInnermost ? inner - first_inner : 0);
  const Accum bias = p.bias != nullptr ? widen(p.bias[c]) : Accum(0);
  if (kChannelsInnermost) {
    for (int j = 0; j < kDepthwisePixels; ++j) {
      const int outer = first_outer + j * rows + threadIdx.x / columns;
      const int h = outer < 1 << 16 ? by_width.quotient(outer) : outer / width, w = outer - h * width;
      if (h >= height) break;
      const Accum sum = depthwise_pixel(p, source, weight, columns, axis_h.at(h), axis_w.at(w));
      p.result[n * p.result_n + c + h * p.result_h + w * p.result_w] = narrow<T>(sum + bias);
    }
  } else {
    const PixelTaps tw = axis_w.at(inner);
    T* result = p.result + n * p.result_n + c * p.result_c + inner * p.result_w;
    for (int j = 0; j < kDepthwisePixels; ++j) {
      const int h = first_outer + j * rows + threadIdx.x / columns;
      if (h >= height) break;
      result[h * p.result_h] = narrow<T>(depthwise_pixel(p, source, weight, 1, axis_h.at(h), tw) + bias);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_weight_kernel(const __grid_constant__ DepthwiseParams<T> p) {
  using Accum = AccumulatorOf<T>;
  __shared__ Accum sums[kDepthwiseThreads];
  unsigned block = blockIdx.x;
  const auto take = [&block](int count) {
    const int index = static_cast<int>(block % count);
    block /= count;
    return index;
  };
  const bool inner_c = p.plan.channels_innermost;
  const int columns = p.plan.columns, rows = kDepthwiseThreads / columns;
  const int column = threadIdx.x % columns, row = threadIdx.x / columns;
  const int first_tap = take(p.plan.tap_passes) * kDepthwiseTaps;
  const int c = inner_c ? take(p.plan.blocks_inner) * columns + column : take(p.channels);
  const int64_t split = block;
  // The geometry is that of grad_input: its source is grad_output, its result the input.
  const int width = p.axis[1].result_size, height = p.axis[0].result_size;
  const int kernel_w = p.axis[1].kernel, kernel = p.axis[0].kernel * kernel_w;

  Accum acc[kDepthwiseTaps];
  int shift_h[kDepthwiseTaps], shift_w[kDepthwiseTaps];
  int64_t offset[kDepthwiseTaps];
#pragma unroll
  for (int t = 0; t < kDepthwiseTaps; ++t) {
    acc[t] = Accum(0);
    const int tap = min(first_tap + t, kernel - 1);
    shift_h[t] = tap / kernel_w * p.axis[0].dilation - p.axis[0].padding;
    shift_w[t] = tap % kernel_w * p.axis[1].dilation - p.axis[1].padding;
    offset[t] = shift_h[t] * p.weight_h + shift_w[t] * p.weight_w;
  }
  const auto add = [&](int n, int h, int w) {
    const Accum x = widen(p.source[n * p.source_n + c * p.source_c + h * p.source_h + w * p.source_w]);
    const int out_h = h * p.axis[0].stride, out_w = w * p.axis[1].stride;
    const T* grad = p.weight + n * p.weight_n + c * p.weight_c + out_h * p.weight_h + out_w * p.weight_w;
#pragma unroll
    for (int t = 0; t < kDepthwiseTaps; ++t) {
      const bool inside = static_cast<unsigned>(out_h + shift_h[t]) < static_cast<unsigned>(p.axis[0].source_size) &&
                          static_cast<unsigned>(out_w + shift_w[t]) < static_cast<unsigned>(p.axis[1].source_size);
      const T value = inside ? grad[offset[t]] : T{};
      acc[t] += x * widen(value);
    }
  };
  // This thread's rows, or pixels, from the split's first on; counted up instead of divided out.
  const int64_t first = split * p.plan.outer_per_split + row;
  const int64_t end = min(p.plan.outer, (split + 1) * p.plan.outer_per_split);
  const int64_t line = inner_c ? first / width : first;
  int n = static_cast<int>(line / height), h = static_cast<int>(line % height);
  int w = inner_c ? static_cast<int>(first % width) : column;
  for (int64_t outer = first; outer < end; outer += rows) {
    if (inner_c) {
      if (c < p.channels) add(n, h, w);
      for (w += rows; w >= width; w -= width) ++h;
    } else {
      for (int at = w; at < width; at += columns) add(n, h, at);
      h += rows;
    }
    for (; h >= height; h -= height) ++n;
  }

  // Threads of one channel: all of the block, or a column of it.
  const int stride = inner_c ? columns : 1;
#pragma unroll
  for (int t = 0; t < kDepthwiseTaps; ++t) {
    __syncthreads();
    sums[threadIdx.x] = acc[t];
    for (int half = kDepthwiseThreads / stride / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half * stride) sums[threadIdx.x] += sums[threadIdx.x + half * stride];
    }
    const int tap = first_tap + t;
    if (threadIdx.x >= stride || tap >= kernel || c >= p.channels) continue;
    if (p.partial == nullptr) {
      p.result[c * p.result_c + tap / kernel_w * p.result_h + tap % kernel_w * p.result_w] = narrow<T>(
          sums[threadIdx.x]);
    } else {
      p.partial[(split * p.channels + c) * kernel + tap] = sums[threadIdx.x];
    }
  }
}

}  // namespace deconv
