// Launcher of the Hopper family's grad_weight of float32 by strips; one .cu file a way of computing instantiates it.
#pragma once

#include <algorithm>

#include "../correlation.h"
#include "../kernels/hopper/weight_strips.cuh"
#include "../kernels/hopper/weight_strips_pack.cuh"
#include "../plan_arithmetic.h"
#include "add_splits.cuh"
#include "kernel_launch.cuh"
#include "launchers.h"
#include "weight_gradient.cuh"

namespace deconv {

// What packing the input and packing grad_output have in common.
inline hopper::StripsPackParams strips_pack_params(const Tensor4& tensor, int64_t groups, const void* at,
                                                   const HopperWeightStripsPlan& plan) {
  hopper::StripsPackParams p{};
  p.at = static_cast<const float*>(at);
  p.n = tensor.stride[0];
  p.c = tensor.stride[1];
  p.h = tensor.stride[2];
  p.w = tensor.stride[3];
  p.batch = static_cast<int>(tensor.size[0]);
  p.channels = static_cast<int>(tensor.size[1] / groups);
  p.groups = static_cast<int>(groups);
  p.height = static_cast<int>(tensor.size[2]);
  p.width = static_cast<int>(tensor.size[3]);
  p.fold = plan.fold;
  p.strip_width = plan.width;
  while (1 << p.strips_shift < plan.strips_w) ++p.strips_shift;
  p.tiles_w = divide_by(plan.tiles_w);
  p.by_pixels = tensor.stride[1] != 1;
  return p;
}

inline hopper::StripsPackParams pack_input(const Problem& problem, const HopperWeightStripsPlan& plan,
                                           const Operands& operands) {
  hopper::StripsPackParams p = strips_pack_params(problem.x, problem.groups, operands.x, plan);
  p.packed = static_cast<unsigned char*>(operands.workspace) + plan.input_at;
  p.part = plan.x_part;
  p.box_bytes = plan.x_box_bytes;
  p.rows = p.height;
  p.planes = p.step = 1;
  p.positions = plan.width;
  p.group_chunks = plan.blocks_m * plan.x_chunks;
  p.chunks = plan.blocks_group * p.group_chunks;
  return p;
}

inline hopper::StripsPackParams pack_grad_output(const Problem& problem, const HopperWeightStripsPlan& plan,
                                                 const Operands& operands) {
  hopper::StripsPackParams p = strips_pack_params(problem.y, problem.groups, operands.y, plan);
  const AxisGeometry axis = geometry(problem, 1);
  p.packed = static_cast<unsigned char*>(operands.workspace) + plan.grad_output_at;
  p.part = plan.y_part;
  p.box_bytes = plan.y_box_bytes;
  p.rows = plan.rows;
  p.first_row = -static_cast<int>(problem.axis[0].padding);
  p.step = axis.stride;
  for (int i = 0; i < axis.kernel; ++i) {  // the first tap of each plane has the first position
    const auto plane_of = [&](int place) { return tap_place(axis, plan.kernel_column[place]).plane; };
    if (i > 0 && plane_of(i) == plane_of(i - 1)) continue;
    p.origin[p.planes++] = plan.kernel_column[i] * axis.dilation - axis.padding;
  }
  p.positions = plan.positions;
  p.group_chunks = plan.blocks_n * plan.y_chunks;
  p.chunks = plan.blocks_group * p.group_chunks;
  return p;
}

template <int kParts>
cudaError_t launch_strips_pack(hopper::StripsPackParams p, int rows, int first_tile, int tiles, cudaStream_t stream) {
  p.first_tile = first_tile;
  p.block_planes = p.by_pixels ? p.planes : 1;
  const int64_t blocks = static_cast<int64_t>(tiles) * p.rows * (p.planes / p.block_planes) * p.chunks;
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, blocks, hopper::kStripsPackThreads, p.block_planes * kParts * p.box_bytes, stream, p);
  };
  return rows == 32   ? launch_with(hopper::strips_pack_kernel<32, kParts>)
         : rows == 64 ? launch_with(hopper::strips_pack_kernel<64, kParts>)
                      : launch_with(hopper::strips_pack_kernel<128, kParts>);
}

template <int kParts>
cudaError_t launch_hopper_weight_strips(const Problem& problem, const HopperWeightStripsPlan& plan,
                                        const Operands& operands, cudaStream_t stream) {
  hopper::WeightStripsParams p;
  static_assert(sizeof(p) <= 4096, "a kernel's parameters");
  const Axis& h = problem.axis[0];
  auto* const workspace = static_cast<unsigned char*>(operands.workspace);
  set_weight_result<float>(p, problem, operands);
  p.x = workspace + plan.input_at;
  p.y = workspace + plan.grad_output_at;
  p.axis_w = geometry(problem, 1);
  p.stride_h = static_cast<int>(h.stride);
  p.dilation_h = static_cast<int>(h.dilation);
  p.height = divide_by(h.input);
  p.kernel_rows = divide_by(h.kernel);
  p.plan = plan;
  const hopper::StripsPackParams input = pack_input(problem, plan, operands);
  const hopper::StripsPackParams grad_output = pack_grad_output(problem, plan, operands);
  const int64_t item_tiles = static_cast<int64_t>(plan.blocks_tap) * plan.blocks_n * plan.blocks_m * plan.blocks_group;
  p.partial = plan.splits > 0 ? reinterpret_cast<float*>(workspace) : nullptr;
  cudaError_t error = cudaErrorInvalidValue;
  for (int first = 0; first < plan.tiles; first += plan.slice_tiles) {
    const int tiles = std::min(plan.slice_tiles, plan.tiles - first);
    error = launch_strips_pack<kParts>(input, kHopperWeightChannels, first, tiles, stream);
    if (error == cudaSuccess) error = launch_strips_pack<kParts>(grad_output, plan.tile.n, first, tiles, stream);
    if (error != cudaSuccess) return error;
    p.steps = static_cast<int>(tiles * h.input);
    p.adds = first > 0;
    const int64_t blocks = item_tiles * ceil_div(p.steps, plan.steps_per_split);
    error = cudaErrorInvalidValue;
#define DECONV_HOPPER_TILE(WARPGROUPS, COLUMNS, N)                                                                   \
  if (plan.tile.warpgroups == WARPGROUPS && plan.tile.columns == COLUMNS && plan.tile.n == N) {                      \
    using Config = hopper::WeightStripsConfig<WARPGROUPS, COLUMNS, N, kParts>;                                       \
    error = launch_kernel(hopper::weight_strips_kernel<Config>, blocks, Config::kThreads, plan.shared_bytes, stream, \
                          p);                                                                                        \
  }
    if constexpr (kParts == 1) {
      DECONV_HOPPER_TILE(3, 3, 64)
      DECONV_HOPPER_TILE(2, 4, 64)
      DECONV_HOPPER_TILE(2, 6, 64)
      DECONV_HOPPER_TILE(2, 2, 128)
      DECONV_HOPPER_TILE(3, 4, 32)
    } else {
      DECONV_HOPPER_TILE(2, 3, 64)
      DECONV_HOPPER_TILE(2, 2, 64)
    }
#undef DECONV_HOPPER_TILE
    if (error != cudaSuccess) return error;
  }
  if (plan.splits == 0) return error;
  return launch_add_splits<float>(problem, p, plan.splits, true, plan.padded_m, plan.padded_n, stream, Start::kEarly);
}

}  // namespace deconv
