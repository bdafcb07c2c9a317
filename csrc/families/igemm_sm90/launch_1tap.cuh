// Launcher of conv_1tap.cuh.
#pragma once

#include "families/igemm_sm90/conv_1tap.cuh"
#include "families/tensor_map.h"
#include "lowerings/pack_weight_launch.cuh"

// instances: launch_one_tap<T>(OneTapPlan): float16, bfloat16, tf32
namespace deconv {

template <class T>
sm90::OneTapParams<T> one_tap_params(const Problem& problem, const OneTapPlan& plan, const Operands& operands) {
  const ResultBlocks& blocks = *problem.blocks;
  sm90::OneTapParams<T> p{};
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T)), kGroups = kSm90RowBytes / static_cast<int>(8 * sizeof(T));
  p.class_step = plan.classes > 1 ? static_cast<int>(problem.x.stride[1]) : 0;
  p.class_skipped = p.class_step % kUnit;
  p.class_groups = divide_by(kGroups / plan.classes);
  p.packed = static_cast<const unsigned char*>(operands.workspace);
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.result_n = blocks.stride_n;
  p.result_m = blocks.stride_c;
  p.result_h = blocks.height * blocks.stride_h;
  p.result_w = blocks.width;
  p.blocks = sm90::blocked_result(blocks);
  p.pixels = static_cast<int>(problem.axis[0].input * problem.axis[1].input);
  p.images = static_cast<int>(problem.batch);
  p.result_channels = static_cast<int>(problem.out_channels_per_group());
  p.whole = one_tap_have_whole_blocks(problem);
  p.pairs = sm90_blocks_unit(problem, 2) == 2 && is_aligned(p.result, 2 * sizeof(T));
  p.columns = divide_by(plan.columns);
  p.m_tiles = divide_by(plan.weights.m_tiles);
  p.image_pieces = divide_by(plan.image_pieces);
  p.width = divide_by(problem.axis[1].input);
  p.plan = plan;
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  return p;
}

template <class T>
cudaError_t launch_one_tap(const Problem& problem, const OneTapPlan& plan, const Operands& operands,
                           cudaStream_t stream) {
  sm90::OneTapParams<T> p = one_tap_params<T>(problem, plan, operands);
  if (!encode_one_tap_map(problem, plan.classes, operands.x, &p.source_map)) {
    return cudaErrorInvalidValue;  // the driver refuses the map
  }
  const Packing<T> packing = describe_packing<T>(problem, problem, plan.weights, operands, plan.classes);
  if (const cudaError_t error = launch_packing<T, 1>(packing, stream); error != cudaSuccess) return error;
  const int threads = one_tap_threads(plan.weights.tile_m, plan.resident);
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, threads, plan.shared_bytes, stream, p, Start::kEarly);
  };
#define DECONV_ONE_TAP_SOURCE(CHANNELS, RESIDENT)                                           \
  return plan.classes == 1 ? launch_with(sm90::one_tap_kernel<T, CHANNELS, RESIDENT, true>) \
                           : launch_with(sm90::one_tap_kernel<T, CHANNELS, RESIDENT, false>)
#define DECONV_ONE_TAP(CHANNELS)                              \
  if (plan.weights.tile_m == CHANNELS) {                      \
    if (plan.resident) DECONV_ONE_TAP_SOURCE(CHANNELS, true); \
    DECONV_ONE_TAP_SOURCE(CHANNELS, false);                   \
  }
  DECONV_ONE_TAP(64)
  DECONV_ONE_TAP(128)
  DECONV_ONE_TAP(192)
  DECONV_ONE_TAP(256)
#undef DECONV_ONE_TAP
#undef DECONV_ONE_TAP_SOURCE
  return cudaErrorInvalidValue;
}

}  // namespace deconv
