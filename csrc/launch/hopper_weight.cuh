// Launcher of the Hopper family's grad_weight; one .cu file a way of computing instantiates it.
#pragma once

#include <algorithm>

#include "../kernels/hopper/weight.cuh"
#include "../operands.h"
#include "../problem.h"
#include "kernel_launch.cuh"

namespace deconv {

template <class T>
hopper::WeightParams<T> hopper_weight_params(const Problem& problem, const HopperWeightPlan& plan,
                                             const Operands& operands) {
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  hopper::WeightParams<T> p;
  p.x = static_cast<const T*>(operands.x);
  p.y = static_cast<const T*>(operands.y);
  p.result = static_cast<T*>(operands.result);
  p.partial = plan.splits > 1 ? static_cast<float*>(operands.workspace) : nullptr;
  p.x_n = problem.x.stride[0];
  p.x_c = problem.x.stride[1];
  p.x_h = problem.x.stride[2];
  p.x_w = problem.x.stride[3];
  p.y_n = problem.y.stride[0];
  p.y_c = problem.y.stride[1];
  p.y_h = problem.y.stride[2];
  p.y_w = problem.y.stride[3];
  p.result_m = problem.w.stride[0];
  p.result_n = problem.w.stride[1];
  p.result_h = problem.w.stride[2];
  p.result_w = problem.w.stride[3];
  p.batch = static_cast<int>(problem.batch);
  p.height = static_cast<int>(h.input);
  p.width = static_cast<int>(w.input);
  p.out_height = static_cast<int>(h.output);
  p.out_width = static_cast<int>(w.output);
  p.channels_m = static_cast<int>(problem.in_channels_per_group());
  p.channels_n = static_cast<int>(problem.out_channels_per_group());
  p.groups = static_cast<int>(problem.groups);
  p.kernel_h = static_cast<int>(h.kernel);
  p.kernel_w = static_cast<int>(w.kernel);
  p.stride_h = static_cast<int>(h.stride);
  p.stride_w = static_cast<int>(w.stride);
  p.padding_h = static_cast<int>(h.padding);
  p.padding_w = static_cast<int>(w.padding);
  p.dilation_h = static_cast<int>(h.dilation);
  p.dilation_w = static_cast<int>(w.dilation);
  p.plan = plan;
  // A base that is off 16 bytes: single elements.
  constexpr int kSize = static_cast<int>(sizeof(T));
  if (!is_aligned(p.x, plan.x_piece)) p.plan.x_piece = kSize;
  if (!is_aligned(p.y, plan.y_piece)) p.plan.y_piece = kSize;
  const int unit = p.plan.y_piece / kSize;
  p.strip_steps = divide_by(p.height);
  p.tiles_w = divide_by(plan.tiles_w);
  p.image_octets = divide_by(plan.image_octets);
  p.x_pieces = divide_by(plan.octets * 8 * kSize / 16);
  p.y_image_units = divide_by(plan.y_columns / unit);
  p.y_pieces = divide_by(plan.y_channels / unit);
  p.x_at_once = std::max<int>(1, 32 / static_cast<int>(p.x_pieces.divisor));
  p.y_at_once = std::max<int>(1, 32 / static_cast<int>(p.y_pieces.divisor));
  p.pixel_pitch = plan.y_column_pitch * (plan.channels ? 1 : p.stride_w);
  for (int octet = 0; octet < kHopperWeightOctets; ++octet) {
    const int image = octet / plan.image_octets, pixel = octet % plan.image_octets * 8;
    const bool exists = octet < plan.octets && image < plan.images;
    p.octet_at[octet] = exists ? image * plan.y_columns * plan.y_column_pitch + pixel * p.pixel_pitch : 0;
  }
  return p;
}

template <class T, int kParts>
cudaError_t launch_hopper_weight(const Problem& problem, const HopperWeightPlan& plan, const Operands& operands,
                                 cudaStream_t stream) {
  const hopper::WeightParams<T> params = hopper_weight_params<T>(problem, plan, operands);
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_with = [&](auto config) {
    using Config = decltype(config);
    error = launch_kernel(hopper::weight_kernel<Config>, plan.blocks, Config::kThreads, plan.shared_bytes, stream,
                          params);
  };
  constexpr bool kMayHaveChannels = sizeof(T) == 2;
#define DECONV_HOPPER_TILE(WARPGROUPS, TAPS, N)                                              \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.taps == TAPS && plan.tile.n == N) {    \
    if (kMayHaveChannels && plan.channels) {                                                 \
      launch_with(hopper::WeightConfig<T, WARPGROUPS, TAPS, N, kParts, kMayHaveChannels>{}); \
    } else {                                                                                 \
      launch_with(hopper::WeightConfig<T, WARPGROUPS, TAPS, N, kParts, false>{});            \
    }                                                                                        \
  }
  if constexpr (kParts == 1) {
    DECONV_HOPPER_TILE(3, 3, 64)
    DECONV_HOPPER_TILE(2, 4, 64)
    DECONV_HOPPER_TILE(2, 2, 128)
  } else {
    DECONV_HOPPER_TILE(3, 1, 64)
    DECONV_HOPPER_TILE(2, 2, 64)
  }
#undef DECONV_HOPPER_TILE
  if (error != cudaSuccess || plan.splits == 1) return error;
  const int64_t blocks = (problem.w.numel() + hopper::kAddSplitsThreads - 1) / hopper::kAddSplitsThreads;
  return launch_kernel(hopper::add_weight_splits<T>, blocks, hopper::kAddSplitsThreads, 0, stream, params);
}

}  // namespace deconv
