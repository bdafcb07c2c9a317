// Launcher of the Hopper family's grad_weight; one .cu file a way of computing instantiates it.
#pragma once

#include <algorithm>

#include "../kernels/hopper/weight.cuh"
#include "add_splits.cuh"
#include "kernel_launch.cuh"
#include "weight_gradient.cuh"

namespace deconv {

template <class T>
hopper::WeightParams<T> hopper_weight_params(const Problem& problem, const HopperWeightPlan& plan,
                                             const Operands& operands) {
  hopper::WeightParams<T> p;
  set_weight_gradient<T>(p, problem, operands);
  p.partial = plan.splits > 1 ? static_cast<float*>(operands.workspace) : nullptr;
  p.plan = plan;
  // A base that is off 16 bytes: single elements.
  constexpr int kSize = static_cast<int>(sizeof(T));
  if (!is_aligned(p.x, plan.x_piece)) p.plan.x_piece = kSize;
  if (!is_aligned(p.x, 16)) p.plan.x_turned = false;
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
  const bool adjacent = sizeof(T) == 2 ? plan.channels : params.plan.x_turned;
#define DECONV_HOPPER_TILE(WARPGROUPS, TAPS, N)                                            \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.taps == TAPS && plan.tile.n == N) {  \
    adjacent ? launch_with(hopper::WeightConfig<T, WARPGROUPS, TAPS, N, kParts, true>{})   \
             : launch_with(hopper::WeightConfig<T, WARPGROUPS, TAPS, N, kParts, false>{}); \
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
  return launch_add_splits<T>(problem, params, plan.splits, false, plan.blocks_m * plan.tile.n,
                              plan.blocks_n * plan.y_channels, stream, Start::kEarly);
}

}  // namespace deconv
