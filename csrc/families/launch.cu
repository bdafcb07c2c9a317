// Direction and element type to launcher.
#include "families/launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "families/launchers.h"
#include "lowerings/group_merge/launch.h"
#include "lowerings/sub_pixel/launch.h"

namespace deconv {
namespace {

template <class T>
cudaError_t launch_as(const Problem& problem, const Plan& plan, const Operands& operands, cudaStream_t stream) {
  if (const auto* tile = std::get_if<GatherConvPlan>(&plan.tile)) {
    return launch_gather_conv<T>(problem, *tile, operands, stream);
  }
  if (const auto* tile = std::get_if<DepthwiseStripsPlan>(&plan.tile)) {
    return launch_depthwise<T>(problem, *tile, operands, stream);
  }
  if (const auto* tile = std::get_if<DepthwiseBlocksPlan>(&plan.tile)) {
    if constexpr (sizeof(T) <= 4) return launch_depthwise<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<DepthwisePacksPlan>(&plan.tile)) {
    if constexpr (sizeof(T) <= 4) return launch_depthwise<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<DepthwiseRowsPlan>(&plan.tile)) {
    if constexpr (sizeof(T) <= 4) return launch_depthwise<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperConvPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 4) {
      if (tile->parts == 2) return launch_hopper_conv<T, 2>(problem, *tile, operands, stream);
    }
    if constexpr (sizeof(T) <= 4) return launch_hopper_conv<T, 1>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperPlanesPlan>(&plan.tile)) {
    if constexpr (sizeof(T) <= 4) return launch_hopper_planes<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperFoldedPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 2) return launch_hopper_folded<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperPicturesPlan>(&plan.tile)) {
    if constexpr (sizeof(T) <= 4) return launch_hopper_pictures<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperStridedPlan>(&plan.tile)) {
    if constexpr (sizeof(T) <= 4) return launch_hopper_strided<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperWeightLinesPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 4) {
      if (tile->parts == 2) return launch_hopper_weight_lines<T, 2>(problem, *tile, operands, stream);
    }
    if constexpr (sizeof(T) <= 4) return launch_hopper_weight_lines<T, 1>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperWeightTensorPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 2) return launch_hopper_weight_tensor<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<HopperWeightTurnedPlan>(&plan.tile)) {
    if constexpr (std::is_same_v<T, float>) return launch_hopper_weight_turned(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<MmaConvPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 4) {
      if (tile->split) return launch_mma_conv<T, true>(problem, *tile, operands, stream);
    }
    if constexpr (sizeof(T) <= 4) return launch_mma_conv<T, false>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<MmaWeightPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 4) {
      if (tile->split) return launch_mma_weight<T, true>(problem, *tile, operands, stream);
    }
    if constexpr (sizeof(T) <= 4) return launch_mma_weight<T, false>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<NarrowConvPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 4) {
      if (tile->parts == 2) return launch_narrow_conv<T, 2>(problem, *tile, operands, stream);
    }
    if constexpr (sizeof(T) <= 4) return launch_narrow_conv<T, 1>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<Col2imConvPlan>(&plan.tile)) {
    if constexpr (sizeof(T) == 4) {
      if (tile->parts == 2) return launch_col2im_conv<T, 2>(problem, *tile, operands, stream);
    }
    if constexpr (sizeof(T) <= 4) return launch_col2im_conv<T, 1>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  if (const auto* tile = std::get_if<Col2imHopperPlan>(&plan.tile)) {
    if constexpr (sizeof(T) <= 4) return launch_col2im_hopper<T>(problem, *tile, operands, stream);
    return cudaErrorInvalidValue;
  }
  return launch_gather_weight<T>(problem, std::get<GatherWeightPlan>(plan.tile), operands, stream);
}

}  // namespace

cudaError_t launch(const Problem& problem, const Plan& plan, const Operands& operands, cudaStream_t stream) {
  if (const auto* tile = std::get_if<SubpixelPlan>(&plan.tile)) {
    return launch_subpixel(problem, *tile, operands, stream);
  }
  if (const auto* tile = std::get_if<MergedPlan>(&plan.tile)) return launch_merged(problem, *tile, operands, stream);
  switch (problem.dtype) {
    case DType::kFloat16: return launch_as<__half>(problem, plan, operands, stream);
    case DType::kBFloat16: return launch_as<__nv_bfloat16>(problem, plan, operands, stream);
    case DType::kFloat32: return launch_as<float>(problem, plan, operands, stream);
    case DType::kFloat64: return launch_as<double>(problem, plan, operands, stream);
    case DType::kOther: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace deconv
