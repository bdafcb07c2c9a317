// Launcher of igemm_sm80's grad_weight: repacks operands as the plan says, runs the kernel, adds the splits.
#pragma once

#include "families/igemm_sm80/wgrad.cuh"
#include "launch/kernel_launch.cuh"
#include "launch/weight_gradient.cuh"
#include "lowerings/repack.cuh"
#include "lowerings/repack.h"
#include "lowerings/split_k_reduce.cuh"

// instances: launch_wgrad_sm80<T, kSplit>(WgradSm80Plan): float16 false, bfloat16 false, tf32 false, float32 true
namespace deconv {

// One operand, in place or repacked channels_last at `repacked_at`.
template <class T>
sm80::WeightOperand<T> wgrad_sm80_operand(const Problem& problem, const Tensor4& tensor, const void* data,
                                          const void* repacked_at, int width, int threads) {
  const Tensor4 seen = repacked_at ? repacked(tensor, problem.groups, problem.dtype) : tensor;
  sm80::WeightOperand<T> o;
  o.data = static_cast<const T*>(repacked_at ? repacked_at : data);
  o.n = seen.stride[0];
  o.c = seen.stride[1];
  o.h = seen.stride[2];
  o.w = seen.stride[3];
  o.group = seen.size[1] / problem.groups * o.c;
  o.channels = static_cast<int>(tensor.size[1] / problem.groups);
  o.size_h = static_cast<int>(tensor.size[2]);
  o.size_w = static_cast<int>(tensor.size[3]);
  o.step_h = o.step_w = 1;
  o.vector = packs_along_channels(seen, seen.size[1] / problem.groups, sm80::kPiece<T>) && is_aligned(o.data, 16);
  const int pieces = width / sm80::kPiece<T>;
  o.pieces = divide_by(pieces);
  o.at_once = threads / pieces;
  return o;
}

template <class T, bool kSplit>
cudaError_t launch_wgrad_sm80(const Problem& problem, const WgradSm80Plan& plan, const Operands& operands,
                              cudaStream_t stream) {
  sm80::WeightParams<T> params{};
  static_assert(sizeof(params) <= 4096, "a kernel's parameters");
  auto* const workspace = static_cast<unsigned char*>(operands.workspace);
  const auto rewritten = [&](bool repack, const Tensor4& tensor, const void* from, int64_t at) {
    std::optional<Repack<T>> one;
    if (repack) {
      one = describe_repack<T>(tensor, problem.groups, repacked(tensor, problem.groups, problem.dtype),
                               static_cast<const T*>(from), reinterpret_cast<T*>(workspace + at));
    }
    return one;
  };
  cudaError_t error = launch_repack(rewritten(plan.repack_x, problem.x, operands.x, plan.repacked_x_at),
                                    rewritten(plan.repack_y, problem.y, operands.y, plan.repacked_y_at), stream);
  if (error != cudaSuccess) return error;

  const int threads = 32 * plan.warps();
  params.x = wgrad_sm80_operand<T>(problem, problem.x, operands.x,
                                   plan.repack_x ? workspace + plan.repacked_x_at : nullptr, plan.channels_m(),
                                   threads);
  params.y = wgrad_sm80_operand<T>(problem, problem.y, operands.y,
                                   plan.repack_y ? workspace + plan.repacked_y_at : nullptr, plan.channels_n(),
                                   threads);
  const int most[] = {plan.taps_h, plan.taps_w}, pixels[] = {plan.pixels.h, plan.pixels.w};
  for (int a = 0; a < 2; ++a) {
    const AxisGeometry axis = geometry(problem, a);
    wgrad_sm80_taps(axis.kernel, axis.stride, axis.padding, axis.dilation, most[a], pixels[a], params.taps[a]);
    (a == 0 ? params.y.step_h : params.y.step_w) = axis.stride;
  }
  set_weight_result<T>(params, problem, operands);
  params.partial = plan.splits > 1 ? static_cast<float*>(operands.workspace) : nullptr;
  params.batch = static_cast<int>(problem.batch);
  params.tiles_w = divide_by(plan.tiles.w);
  params.tiles_h = divide_by(plan.tiles.h);
  params.plan = plan;
  error = cudaErrorInvalidValue;
#define DECONV_SM80_TILE(ROWS, UNITS)                                                                            \
  if (plan.tile.rows == ROWS && plan.tile.units == UNITS) {                                                      \
    error = launch_kernel(sm80::weight_kernel<sm80::WeightConfig<T, ROWS, UNITS, kSplit>>, plan.blocks, threads, \
                          plan.shared_bytes, stream, params);                                                    \
  }
  if constexpr (!kSplit) {
    DECONV_SM80_TILE(4, 4)
  }
  DECONV_SM80_TILE(4, 3)
  DECONV_SM80_TILE(2, 4)
#undef DECONV_SM80_TILE
  if (error != cudaSuccess || plan.splits == 1) return error;
  return launch_add_splits<T>(problem, params, plan.splits, plan.blocks_m * plan.channels_m(),
                              plan.blocks_n * plan.channels_n(), stream, Start::kAfter);
}

}  // namespace deconv
