// Launcher of conv_stride2.cuh.
#pragma once

#include "families/igemm_sm90/conv_stride2.cuh"
#include "families/tensor_map.h"
#include "lowerings/pack_weight_launch.cuh"

// instances: launch_stride2<T>(Stride2Plan): float16, bfloat16, tf32
namespace deconv {

template <class T>
sm90::Stride2Params<T> stride2_params(const Problem& problem, const Stride2Plan& plan, const Operands& operands) {
  sm90::Stride2Params<T> p{};
  p.packed = static_cast<const unsigned char*>(operands.workspace);
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.result_n = problem.y.stride[0];
  p.result_m = problem.y.stride[1];
  p.result_h = problem.y.stride[2];
  p.height = static_cast<int>(problem.y.size[2]);
  p.width = static_cast<int>(problem.y.size[3]);
  p.result_channels = static_cast<int>(problem.out_channels_per_group());
  p.columns = divide_by(plan.columns);
  p.m_tiles = divide_by(plan.weights.m_tiles);
  p.tiles_w = divide_by(plan.tiles_w);
  p.tiles_h = divide_by(plan.tiles_h);
  p.plan = plan;
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  return p;
}

template <class T, int kPattern>
cudaError_t launch_stride2_instance(const sm90::Stride2Params<T>& p, cudaStream_t stream) {
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, p.plan.blocks, kStride2Threads, p.plan.shared_bytes, stream, p, Start::kEarly);
  };
  return p.plan.resident ? launch_with(sm90::stride2_kernel<T, kPattern, true>)
                         : launch_with(sm90::stride2_kernel<T, kPattern, false>);
}

template <class T>
cudaError_t launch_stride2(const Problem& problem, const Stride2Plan& plan, const Operands& operands,
                           cudaStream_t stream) {
  sm90::Stride2Params<T> p = stride2_params<T>(problem, plan, operands);
  if (!is_aligned(p.result, 2 * sizeof(T)) || !encode_stride2_map(problem, plan, operands.x, &p.source_map)) {
    return cudaErrorInvalidValue;  // the result is misaligned, or the driver refuses the map
  }
  const Packing<T> packing = describe_packing<T>(problem, problem, plan.weights, operands);
  if (const cudaError_t error = launch_packing<T, 1>(packing, stream); error != cudaSuccess) return error;
  static_assert(std::size(kStride2Patterns) == 4);
  switch (plan.pattern) {
    case 0: return launch_stride2_instance<T, 0>(p, stream);
    case 1: return launch_stride2_instance<T, 1>(p, stream);
    case 2: return launch_stride2_instance<T, 2>(p, stream);
    default: return launch_stride2_instance<T, 3>(p, stream);
  }
}

}  // namespace deconv
