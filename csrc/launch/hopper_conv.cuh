// Launcher of the Hopper family's forward and grad_input; one .cu file a way of computing instantiates it.
#pragma once

#include "../kernels/hopper/conv.cuh"
#include "../kernels/hopper/pack_weight.cuh"
#include "../plan_hopper.h"
#include "correlation.cuh"
#include "kernel_launch.cuh"
#include "repack.cuh"
#include "tensor_map.h"

namespace deconv {

template <class T>
hopper::ConvParams<T> hopper_conv_params(const Problem& problem, const HopperConvPlan& plan, const Operands& operands) {
  hopper::ConvParams<T> p{};
  set_images<T>(p, problem, operands);
  p.packed = static_cast<const unsigned char*>(operands.workspace);
  p.weight_is_infinite = reinterpret_cast<const int*>(p.packed + plan.packed_bytes);
  for (int a = 0; a < 2; ++a) {
    const int row = a == 1 ? plan.row.w : plan.row.h;
    const int origin = a == 1 ? plan.origin_w : plan.origin_h, planes = p.axis[a].planes();
    for (int i = 0; i < p.axis[a].phases() * planes; ++i) {
      const AxisTaps taps = axis_taps(p.axis[a], i / planes, i % planes);
      p.taps[a][i] = {taps.count, (taps.first_shift - origin) * row, taps.shift_step * row};
    }
  }
  p.columns = divide_by(plan.columns);
  p.phase_groups = divide_by(plan.phase_groups);
  p.m_tiles = divide_by(plan.m_tiles);
  p.tiles_w = divide_by(plan.tiles.w);
  p.tiles_h = divide_by(plan.tiles.h);
  p.phases_across = divide_by((plan.phases_w + plan.tile.phases - 1) / plan.tile.phases);
  p.plan = plan;
  p.vector_source = hopper_vector_source(problem) && is_aligned(p.source, 16);
  p.vector_result = is_aligned(p.result, 16) ? hopper_vector_result(problem, plan) : 1;
  return p;
}

template <class T, int kParts>
cudaError_t launch_pack_weight(const Problem& problem, const HopperConvPlan& plan, const Operands& operands,
                               cudaStream_t stream) {
  const Correlation c = correlation(problem);
  hopper::PackParams<T> p;
  set_weight<T>(p, problem, operands);
  p.packed = static_cast<unsigned char*>(operands.workspace);
  p.is_infinite = reinterpret_cast<int*>(p.packed + plan.packed_bytes);
  p.source_channels = static_cast<int>(c.source_channels);
  p.result_channels = static_cast<int>(c.result_channels);
  p.groups = static_cast<int>(problem.groups);
  p.taps_fastest = p.weight_w < p.weight_m;
  p.axis[0] = geometry(problem, 0);
  p.axis[1] = geometry(problem, 1);
  p.plan = plan;
  if (kParts == 2) {
    const cudaError_t error = cudaMemsetAsync(p.is_infinite, 0, sizeof(int), stream);
    if (error != cudaSuccess) return error;
  }
  constexpr int kThreads = 256;
  const int64_t pieces = static_cast<int64_t>(p.groups) * plan.m_tiles * plan.chunks * 8 * kHopperTileM *
                         p.axis[0].kernel * p.axis[1].kernel;
  return launch_kernel(hopper::pack_weight_kernel<T, kParts>, (pieces + kThreads - 1) / kThreads, kThreads, 0, stream,
                       p);
}

template <class T, int kParts>
cudaError_t launch_hopper_conv(const Problem& problem, const HopperConvPlan& plan, const Operands& operands,
                               cudaStream_t stream) {
  cudaError_t error = launch_pack_weight<T, kParts>(problem, plan, operands, stream);
  if (error != cudaSuccess) return error;
  hopper::ConvParams<T> params = hopper_conv_params<T>(problem, plan, operands);
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, kHopperThreads, plan.shared_bytes, stream, params);
  };
  // A pointer or a driver that refuses a tensor map leaves the producer warps, which take any tensor.
  bool has_maps = false;
  if (plan.repack) {
    const Tensor4 layout = hopper_repacked(problem);
    void* repacked = static_cast<unsigned char*>(operands.workspace) + plan.packed_bytes + kHopperFlagBytes;
    has_maps = encode_source_maps(problem, plan, layout, layout.size[1] / problem.groups, repacked, params.source_map);
    if (has_maps) error = launch_repack<T>(problem, layout, params.source, static_cast<T*>(repacked), stream);
  } else if (plan.source != HopperSource::kWarps && is_aligned(params.source, 16)) {
    const Correlation c = correlation(problem);
    has_maps = encode_source_maps(problem, plan, c.source, c.source_channels * c.source.stride[1], params.source,
                                  params.source_map);
  }
  if (error != cudaSuccess) return error;
  const HopperSource source = has_maps ? plan.source : HopperSource::kWarps;
#define DECONV_HOPPER_KERNEL(GROUPS, PHASES, SOURCE) \
  if (source == SOURCE) return launch_with(hopper::conv_kernel<hopper::ConvConfig<T, GROUPS, PHASES, kParts, SOURCE>>);
#define DECONV_HOPPER_TILE(GROUPS, PHASES)                          \
  if (plan.tile.groups == GROUPS && plan.tile.phases == PHASES) {   \
    DECONV_HOPPER_KERNEL(GROUPS, PHASES, HopperSource::kTensor)     \
    DECONV_HOPPER_KERNEL(GROUPS, PHASES, HopperSource::kTransposed) \
    DECONV_HOPPER_KERNEL(GROUPS, PHASES, HopperSource::kWarps)      \
  }
  DECONV_HOPPER_TILE(8, 1)
  DECONV_HOPPER_TILE(16, 1)
  DECONV_HOPPER_TILE(8, 2)
  if constexpr (kParts == 1) {
    DECONV_HOPPER_TILE(24, 1)
    DECONV_HOPPER_TILE(32, 1)
    DECONV_HOPPER_TILE(16, 2)
  }
#undef DECONV_HOPPER_TILE
#undef DECONV_HOPPER_KERNEL
  return cudaErrorInvalidValue;
}

}  // namespace deconv
