// Launcher of igemm_sm80's forward and grad_input: packs the weights, then for each slice of images repacks the source,
// runs the kernel and unpacks the result, as the plan says.
#pragma once

#include <algorithm>

#include "families/igemm_sm80/conv.cuh"
#include "families/igemm_sm80/pack_weight.cuh"
#include "families/igemm_sm80/planner.h"
#include "launch/correlation.cuh"
#include "launch/kernel_launch.cuh"
#include "lowerings/repack.cuh"
#include "lowerings/repack.h"
#include "lowerings/unpack.cuh"

// instances: launch_igemm_sm80<T, kSplit>(IgemmSm80Plan): float16 false, bfloat16 false, tf32 false, float32 true
namespace deconv {

template <class T>
sm80::ConvParams<T> sm80_conv_params(const Problem& problem, const IgemmSm80Plan& plan, const Operands& operands) {
  sm80::ConvParams<T> p{};
  set_images<T>(p, problem, operands);
  p.source_group = p.source_channels * p.source_c;
  p.packed = static_cast<const unsigned char*>(operands.workspace);
  p.vector_result = plan.unpack || (sm80_vector_result(problem, plan) && is_aligned(p.result, 16));
  for (int a = 0; a < 2; ++a) {
    const int origin = a == 1 ? plan.origin_w : plan.origin_h, planes = p.axis[a].planes();
    for (int i = 0; i < p.axis[a].phases() * planes; ++i) {
      const AxisTaps taps = axis_taps(p.axis[a], i / planes, i % planes);
      p.taps[a][i] = {taps.count, taps.first_shift - origin, taps.shift_step};
      p.totals[a][i / planes] += taps.count;
    }
  }
  p.halo_w = divide_by(plan.halo.w);
  p.halo_h = divide_by(plan.halo.h);
  p.halo_rows = divide_by(plan.halo.n * plan.halo.h * plan.halo.w);
  p.planes_w = divide_by(plan.planes_w);
  p.pixels_w = divide_by(plan.pixels.w);
  p.pixels_h = divide_by(plan.pixels.h);
  p.m_tiles = divide_by(plan.m_tiles);
  p.runs = divide_by(plan.runs);
  p.phases = divide_by(plan.phases_h * plan.phases_w);
  p.phases_w = divide_by(plan.phases_w);
  p.tiles_w = divide_by(plan.tiles.w);
  p.tiles_h = divide_by(plan.tiles.h);
  p.plan = plan;
  return p;
}

template <class T, bool kRounds>
cudaError_t launch_sm80_pack(const Problem& problem, const IgemmSm80Plan& plan, const Operands& operands,
                             cudaStream_t stream) {
  sm80::PackParams<T> p;
  const Correlation c = correlation(problem);
  set_weight<T>(p, problem, operands);
  p.packed = static_cast<unsigned char*>(operands.workspace);
  p.source_channels = static_cast<int>(c.source_channels);
  p.result_channels = static_cast<int>(c.result_channels);
  p.groups = static_cast<int>(problem.groups);
  p.taps_fastest = p.weight_w < p.weight_m;
  for (int a = 0; a < 2; ++a) p.axis[a] = geometry(problem, a);
  p.plan = plan;
  constexpr int kThreads = 256;
  const int64_t pieces = static_cast<int64_t>(p.groups) * plan.m_tiles * plan.bands * (plan.tile.channels() / 16) *
                         (kSm80BandBytes / sm80::kStepBytes) * 32 * p.axis[0].kernel * p.axis[1].kernel;
  return launch_kernel(sm80::pack_weight_kernel<T, kRounds>, (pieces + kThreads - 1) / kThreads, kThreads, 0, stream,
                       p);
}

template <class T, bool kSplit, sm80::SourceKind kSource>
cudaError_t launch_sm80_tile(const sm80::ConvParams<T>& params, cudaStream_t stream) {
  const IgemmSm80Plan& plan = params.plan;
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, kSm80Threads, plan.shared_bytes, stream, params,
                         plan.starts_early ? Start::kEarly : Start::kAfter);
  };
  if (plan.tile.rows == 4) return launch_with(sm80::conv_kernel<sm80::ConvConfig<T, 4, kSplit, kSource>>);
  if (plan.tile.rows == 2) return launch_with(sm80::conv_kernel<sm80::ConvConfig<T, 2, kSplit, kSource>>);
  return cudaErrorInvalidValue;
}

template <class T, bool kSplit>
cudaError_t launch_igemm_sm80(const Problem& problem, const IgemmSm80Plan& plan, const Operands& operands,
                              cudaStream_t stream) {
  if (plan.together > 1 && !is_aligned(operands.result, 16)) return cudaErrorInvalidValue;  // no allocator gives it
  constexpr bool kTf32 = sizeof(T) == 4 && !kSplit;
  constexpr sm80::SourceKind kRepacked = kTf32 ? sm80::SourceKind::kRounded : sm80::SourceKind::kVector;
  cudaError_t error = launch_sm80_pack<T, kTf32>(problem, plan, operands, stream);
  const sm80::ConvParams<T> params = sm80_conv_params<T>(problem, plan, operands);
  const bool vector = vector_source(problem) && is_aligned(params.source, 16);
  const Correlation c = correlation(problem);
  unsigned char* const after_weights = static_cast<unsigned char*>(operands.workspace) + plan.packed_bytes;
  T* const repacked = reinterpret_cast<T*>(after_weights);
  T* const unpacked = reinterpret_cast<T*>(after_weights + plan.repacked_bytes);
  for (int64_t first = 0; first < problem.batch && error == cudaSuccess; first += plan.slice) {
    sm80::ConvParams<T> p = params;
    p.batch = static_cast<int>(std::min<int64_t>(plan.slice, problem.batch - first));
    p.source += first * p.source_n;
    p.result += first * p.result_n;
    if (plan.repack) {
      Tensor4 layout = repacked_source(problem);
      layout.size[0] = p.batch;
      error = launch_repack<T, kTf32>(describe_repack<T>(c.source, problem.groups, layout, p.source, repacked), stream,
                                      Start::kEarly);
      if (error != cudaSuccess) return error;
      p.source = repacked;
      p.source_n = layout.stride[0];
      p.source_c = layout.stride[1];
      p.source_h = layout.stride[2];
      p.source_w = layout.stride[3];
      p.source_group = layout.size[1] / problem.groups;
    }
    T* const result = p.result;
    if (plan.unpack) {
      const Tensor4 layout = dense(c.result.size, Layout::kChannelsLast);
      p.result = unpacked;
      p.result_n = layout.stride[0];
      p.result_m = layout.stride[1];
      p.result_h = layout.stride[2];
      p.result_w = layout.stride[3];
    }
    error = plan.repack ? launch_sm80_tile<T, kSplit, kRepacked>(p, stream)
            : vector    ? launch_sm80_tile<T, kSplit, sm80::SourceKind::kVector>(p, stream)
                        : launch_sm80_tile<T, kSplit, sm80::SourceKind::kAny>(p, stream);
    if (plan.unpack && error == cudaSuccess) {
      error = launch_unpack<T>(unpacked, result, p.batch, static_cast<int>(c.result.size[2] * c.result.size[3]),
                               static_cast<int>(c.result.size[1]), stream);
    }
  }
  return error;
}

}  // namespace deconv
