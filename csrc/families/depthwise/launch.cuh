// Launchers of the depthwise family, all directions.
#pragma once

#include <algorithm>
#include <utility>

#include "core/correlation.h"
#include "core/operands.h"
#include "families/depthwise/nchw_upsample.cuh"
#include "families/depthwise/nhwc_upsample.cuh"
#include "families/depthwise/strips.cuh"
#include "launch/kernel_launch.cuh"

// instances: launch_depthwise<T>(DepthwiseStripsPlan): float16, bfloat16, float32, float64
// instances: launch_depthwise<T>(DepthwiseBlocksPlan): float16, bfloat16, float32
// instances: launch_depthwise<T>(DepthwisePacksPlan): float16, bfloat16, float32
namespace deconv {

inline DepthwiseStrides strides(const Tensor4& tensor) {
  return {tensor.stride[0], tensor.stride[1], tensor.stride[2], tensor.stride[3]};
}

template <class T, class PlanOf>
DepthwiseParams<T, PlanOf> depthwise_params(const Problem& problem, const PlanOf& plan, const Operands& operands) {
  const bool forward = problem.direction == Direction::kForward;
  DepthwiseParams<T, PlanOf> p;
  p.source = static_cast<const T*>(forward ? operands.x : operands.y);
  p.other = static_cast<const T*>(plan.weight_gradient ? operands.x : operands.w);
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.partial = plan.splits > 1 ? static_cast<AccumulatorOf<T>*>(operands.workspace) : nullptr;
  p.source_stride = strides(forward ? problem.x : problem.y);
  p.other_stride = strides(plan.weight_gradient ? problem.x : problem.w);
  p.result_stride = strides(problem.result());
  p.batch = static_cast<int>(problem.batch);
  p.in_group = static_cast<int>(problem.in_channels_per_group());
  p.out_group = static_cast<int>(problem.out_channels_per_group());
  p.channels = static_cast<int>(plan.weight_gradient ? problem.in_channels * p.out_group : problem.result().size[1]);
  p.is_forward = forward;
  p.by_in_group = divide_by(p.in_group);
  p.by_out_group = divide_by(p.out_group);
  p.by_channels = divide_by(p.channels);
  p.by_taps = divide_by(problem.axis[0].kernel * problem.axis[1].kernel);
  p.by_kernel_w = divide_by(problem.axis[1].kernel);
  for (int a = 0; a < 2; ++a) {
    p.axis[a] = geometry(problem, a);  // of grad_input for both gradients
    const int count = p.axis[a].is_forward ? p.axis[a].phases() : p.axis[a].stride;
    for (int i = 0; i < kDepthwiseStrides; ++i) {
      p.taps[a][i] = i < count ? axis_taps(p.axis[a], forward ? i : 0, forward ? 0 : i) : AxisTaps{};
    }
  }
  p.plan = plan;
  return p;
}

// Height and width in each other's place.
template <class Params>
void swap_axes(Params& p) {
  std::swap(p.axis[0], p.axis[1]);
  std::swap(p.taps[0], p.taps[1]);
  for (DepthwiseStrides* stride : {&p.source_stride, &p.other_stride, &p.result_stride})
    std::swap(stride->h, stride->w);
  p.by_kernel_w = divide_by(p.axis[1].kernel);
}

// Whether `count` neighbours along dimension `inner` can be accessed at once, wherever they start.
template <class T>
bool takes_packs(const T* data, const DepthwiseStrides& stride, int inner, int count) {
  const int64_t all[4] = {stride.n, stride.c, stride.h, stride.w};
  for (int d = 0; d < 4; ++d) {
    if (d == inner ? all[d] != 1 : all[d] % count != 0) return false;
  }
  return is_aligned(data, count * sizeof(T));
}

template <class Params>
cudaError_t add_splits(const Params& params, cudaStream_t stream) {
  if (params.plan.splits == 1) return cudaSuccess;
  const int64_t elements = static_cast<int64_t>(params.channels) * params.by_taps.divisor;
  return launch_kernel(depthwise_add_splits<Params>, (elements + 31) / 32, kDepthwiseThreads, 0, stream, params,
                       Start::kEarly);
}

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseStripsPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  auto params = depthwise_params<T>(problem, plan, operands);
  if (!plan.channels_inner) swap_axes(params);
  const int vector = plan.vector;
  const bool is_packed = takes_packs(params.source, params.source_stride, 1, vector) &&
                         (plan.weight_gradient ? takes_packs(params.other, params.other_stride, 1, vector)
                                               : takes_packs(params.result, params.result_stride, 1, vector));
  int64_t blocks = plan.blocks;
  int shared_bytes = plan.shared_bytes;
  if (!is_packed && vector > 1) {  // the same blocks, each with fewer channels
    const int64_t inner = static_cast<int64_t>(params.channels) * (plan.weight_gradient ? 1 : params.axis[1].phases());
    params.plan.blocks_inner = static_cast<int>((inner + plan.lanes - 1) / plan.lanes);
    params.plan.by_blocks_inner = divide_by(params.plan.blocks_inner);
    blocks = blocks / plan.blocks_inner * params.plan.blocks_inner;
    shared_bytes /= vector;
  }
  constexpr int kVector = kPackSize<T>, kWeightVector = std::min(4, kPackSize<T>);
  constexpr int kWide = depthwise_strip(1), kNarrow = depthwise_strip(kVector);
  const auto launch_with = [&](auto* of_vectors, auto* of_channels, auto* unaligned) {
    auto* kernel = vector == 1 ? of_channels : is_packed ? of_vectors : unaligned;
    return launch_kernel(kernel, blocks, kDepthwiseThreads, shared_bytes, stream, params);
  };
  if (!plan.weight_gradient) {
    return launch_with(depthwise_strips<T, kVector, kNarrow, false>, depthwise_strips<T, 1, kWide, false>,
                       depthwise_strips<T, 1, kNarrow, false>);
  }
  const cudaError_t error = launch_with(depthwise_strips<T, kWeightVector, kNarrow, true>,
                                        depthwise_strips<T, 1, kWide, true>, depthwise_strips<T, 1, kNarrow, true>);
  return error == cudaSuccess ? add_splits(params, stream) : error;
}

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseBlocksPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  const bool forward = problem.direction == Direction::kForward;
  const DepthwiseStrides input = strides(problem.x), output = strides(problem.y), weight = strides(problem.w);
  DepthwiseBlocksParams<T> p;
  p.source = static_cast<const T*>(forward ? operands.x : operands.y);
  p.weight = static_cast<const T*>(operands.w);
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.input_n = input.n, p.input_c = input.c, p.input_h = input.h, p.input_w = input.w;
  p.output_n = output.n, p.output_c = output.c, p.output_h = output.h;
  p.weight_c = weight.n, p.weight_h = weight.h, p.weight_w = weight.w;
  p.input_rows = static_cast<int>(problem.axis[0].input);
  p.input_columns = static_cast<int>(problem.axis[1].input);
  p.output_rows = static_cast<int>(problem.axis[0].output);
  p.output_columns = static_cast<int>(problem.axis[1].output);
  for (int a = 0; a < 2; ++a) {
    p.stride[a] = static_cast<int>(problem.axis[a].stride);
    p.padding[a] = static_cast<int>(problem.axis[a].padding);
  }
  const int64_t run = depthwise_run(sizeof(T));
  const auto fits = [&](int64_t step) { return step % run == 0; };
  const bool whole = fits(p.padding[1]) && fits(p.output_n) && fits(p.output_c) && fits(p.output_h) &&
                     fits(p.output_columns);
  const void* const moved = forward ? operands.result : operands.y;
  p.access = whole && is_aligned(moved, 16) ? 16 : is_aligned(moved, 8) ? 8 : static_cast<int>(sizeof(T));
  p.plan = plan;
  return launch_kernel(forward ? depthwise_blocks_forward<T> : depthwise_blocks_grad_input<T>, plan.blocks,
                       kDepthwiseThreads, plan.shared_bytes, stream, p);
}

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwisePacksPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  const DepthwiseStrides input = strides(problem.x), output = strides(problem.y), weight = strides(problem.w);
  DepthwisePacksParams<T> p;
  p.input = static_cast<const T*>(operands.x);
  p.weight = static_cast<const T*>(operands.w);
  p.bias = static_cast<const T*>(operands.bias);
  p.output = static_cast<T*>(operands.result);
  p.input_n = input.n, p.input_h = input.h, p.output_n = output.n, p.output_h = output.h;
  p.weight_c = weight.n, p.weight_h = weight.h, p.weight_w = weight.w;
  p.channels = static_cast<int>(problem.groups);
  p.input_rows = static_cast<int>(problem.axis[0].input);
  p.input_columns = static_cast<int>(problem.axis[1].input);
  p.output_rows = static_cast<int>(problem.axis[0].output);
  for (int a = 0; a < 2; ++a) {
    p.stride[a] = static_cast<int>(problem.axis[a].stride);
    p.padding[a] = static_cast<int>(problem.axis[a].padding);
  }
  p.whole = output.n % kPackSize<T> == 0 && output.h % kPackSize<T> == 0 && is_aligned(operands.result, 16);
  p.plan = plan;
  return launch_kernel(depthwise_packs_forward<T>, plan.blocks, plan.threads, plan.shared_bytes, stream, p);
}

}  // namespace deconv
