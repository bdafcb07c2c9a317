// Launcher of the direct family; one .cu file an element type instantiates it.
#pragma once

#include "../kernels/direct/conv.cuh"
#include "correlation.cuh"
#include "kernel_launch.cuh"

namespace deconv {

template <class T>
DirectConvParams<T> direct_conv_params(const Problem& problem, const DirectConvPlan& plan, const Operands& operands) {
  DirectConvParams<T> p{};
  set_images<T>(p, problem, operands);
  set_weight<T>(p, problem, operands);
  const Correlation c = correlation(problem);
  constexpr int kPack = kDirectChannels;
  const int64_t result_pack = std::min<int64_t>(plan.channels, 16 / sizeof(T));
  p.vector_source = sizeof(T) * kPack <= 16 && packs_along_channels(c.source, c.source_channels, kPack) &&
                    is_aligned(p.source, sizeof(T) * kPack);
  p.vector_result = packs_along_channels(c.result, c.result_channels, result_pack) &&
                    is_aligned(p.result, sizeof(T) * static_cast<uintptr_t>(result_pack));
  for (int a = 0; a < 2; ++a) {
    for (int phase = 0; phase < p.axis[a].phases(); ++phase) p.taps[a][phase] = window_taps(p.axis[a], phase);
  }
  p.by_taps = divide_by(int64_t{p.axis[0].kernel} * p.axis[1].kernel);
  p.by_kernel_w = divide_by(p.axis[1].kernel);
  p.by_source_channels = divide_by(p.source_channels);
  p.plan = plan;
  return p;
}

template <class T>
cudaError_t launch_direct_conv(const Problem& problem, const DirectConvPlan& plan, const Operands& operands,
                               cudaStream_t stream) {
  const DirectConvParams<T> params = direct_conv_params<T>(problem, plan, operands);
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, kDirectThreads, plan.shared_bytes, stream, params);
  };
  switch (plan.channels) {
    case 2: return launch_with(direct_conv_kernel<T, 2>);
    case 4: return launch_with(direct_conv_kernel<T, 4>);
    case 8:
      if constexpr (direct_channels(sizeof(AccumulatorOf<T>)) == 8) return launch_with(direct_conv_kernel<T, 8>);
  }
  return cudaErrorInvalidValue;
}

}  // namespace deconv
