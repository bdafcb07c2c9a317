// Launcher of conv.cuh: forward and grad_input.
#pragma once

#include <algorithm>
#include <optional>

#include "families/igemm_sm90/conv.cuh"
#include "families/igemm_sm90/planner.h"
#include "families/igemm_sm90/tap_order.h"
#include "families/tensor_map.h"
#include "launch/correlation.cuh"
#include "launch/kernel_launch.cuh"
#include "lowerings/nonfinite_repair.cuh"
#include "lowerings/pack_weight_launch.cuh"
#include "lowerings/repack.cuh"
#include "lowerings/repack.h"

// instances: launch_igemm_sm90<T, kParts>(IgemmSm90Plan): float16 1, bfloat16 1, tf32 1, float32 2
namespace deconv {

// problem: after lowering (merged groups, im2col); original: before.
template <class T>
sm90::ConvParams<T> sm90_conv_params(const Problem& problem, const Problem& original, const IgemmSm90Plan& plan,
                                     const Operands& operands) {
  sm90::ConvParams<T> p{};
  set_images<T>(p, problem, operands);
  p.window_channels = static_cast<int>(correlation(original).source_channels);
  if (!problem.blocks) {
    for (int a = 0; a < 2; ++a) p.apart.window[a] = geometry(original, a);
  }
  p.packed = static_cast<const unsigned char*>(operands.workspace);
  p.not_finite = not_finite_at(plan, operands);
  for (int a = 0; a < 2; ++a) {
    const std::vector<int> starts = used_planes(p.axis[a]);
    std::copy(starts.begin(), starts.end(), p.plane_start[a]);
    p.weight_stride[a] = static_cast<int>(problem.w.stride[2 + a]);
    p.tap_step[a] = sm90_tap_step(p.axis[a]);
    const int planes = a == 1 ? plan.planes_w : plan.planes_h;
    const std::vector<Sm90Tap> taps = sm90_taps(p.axis[a], plan, a == 1);
    for (size_t i = 0; i < taps.size(); ++i) {
      sm90::TapRange& range = p.taps[a][taps[i].phase * planes + taps[i].plane];
      if (range.count++ == 0) {
        range.first = static_cast<uint8_t>(i);
        range.k = static_cast<uint8_t>(taps[i].k);
      }
      p.tap_row[a][i] = static_cast<uint16_t>(taps[i].row);
    }
    for (int f = 1; a == 1 && f < plan.tile.fold; ++f) {  // folded columns: lowerings/pack_weight.cuh
      p.tap_row[a][p.taps[a][0].count] = static_cast<uint16_t>(taps.back().row + f * plan.row.w);
      ++p.taps[a][0].count;
    }
  }
  p.columns = divide_by(plan.columns);
  p.phase_parts = divide_by(plan.phase_groups / plan.item_groups);
  p.m_tiles = divide_by(plan.m_tiles);
  p.tiles_w = divide_by(plan.tiles.w);
  p.tiles_h = divide_by(plan.tiles.h);
  p.planes_w = divide_by(plan.planes_w);
  p.halo_w = divide_by(plan.halo.w);
  p.halo_h = divide_by(plan.halo.h);
  p.step_w = divide_by(p.axis[1].source_step());
  for (int a = 0; a < 2; ++a) p.result_step[a] = divide_by(p.axis[a].result_step());
  if (const auto& blocks = problem.blocks) {
    p.result_n = blocks->stride_n;
    p.result_m = blocks->stride_c;
    p.result_h = blocks->height * blocks->stride_h;
    p.result_w = blocks->width;
    p.apart.blocks = sm90::blocked_result(*blocks);
  }
  p.phases_across = divide_by((plan.phases_w + plan.tile.phases - 1) / plan.tile.phases);
  p.plan = plan;
  p.vector_source = vector_source(problem) && is_aligned(p.source, 16);
  p.vector_result = is_aligned(p.result, 16) ? sm90_vector_result(problem, plan) : 1;
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  return p;
}

// Parameters for the images [first, first + images) alone.
template <class T>
sm90::ConvParams<T> of_images(const sm90::ConvParams<T>& params, int64_t first, int64_t images) {
  sm90::ConvParams<T> p = params;
  p.source += first * p.source_n;
  p.result += first * p.result_n;
  p.batch = static_cast<int>(images);
  p.plan.tiles.n = static_cast<int>((images + p.plan.pixels.n - 1) / p.plan.pixels.n);
  p.plan.items = p.plan.tiles.n * p.plan.tiles.h * p.plan.tiles.w * p.plan.columns;
  p.plan.blocks = std::min(p.plan.blocks, p.plan.items * p.plan.split);
  return p;
}

template <class T, int kParts>
cudaError_t launch_sm90_tile(const sm90::ConvParams<T>& params, Sm90Source source, cudaStream_t stream, Start start) {
  const IgemmSm90Plan& plan = params.plan;
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, plan.blocks, sm90_threads(source, plan.tile), plan.shared_bytes, stream, params, start,
                         plan.split);
  };
#define DECONV_SM90_KERNEL(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE, SPLITS, MAJOR_M, TO_BLOCKS) \
  launch_with(sm90::conv_kernel<                                                                \
              sm90::ConvConfig<T, GROUPS, PHASES, FOLD, kParts, ROW_BYTES, SOURCE, SPLITS, MAJOR_M, TO_BLOCKS>>)
#define DECONV_SM90_SPLITS(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE, MAJOR_M)                                        \
  {                                                                                                                 \
    if constexpr (sm90_splits(Sm90Tile{GROUPS, PHASES, FOLD}) && SOURCE != Sm90Source::kIm2col) {                   \
      if (plan.split > 1) return DECONV_SM90_KERNEL(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE, true, MAJOR_M, false); \
    }                                                                                                               \
    if constexpr (sm90_stores_blocks(kParts, Sm90Tile{GROUPS, PHASES, FOLD}, SOURCE)) {                             \
      if (plan.to_blocks) return DECONV_SM90_KERNEL(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE, false, MAJOR_M, true); \
    }                                                                                                               \
    return DECONV_SM90_KERNEL(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE, false, MAJOR_M, false);                      \
  }
#define DECONV_SM90_SOURCE(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE)                                               \
  if (source == SOURCE) {                                                                                         \
    if constexpr (sm90_has_major_m(static_cast<int>(sizeof(T)), Sm90Tile{GROUPS, PHASES, FOLD}, SOURCE)) {        \
      if (plan.weights == Sm90Weights::kMajorM) DECONV_SM90_SPLITS(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE, true) \
    }                                                                                                             \
    DECONV_SM90_SPLITS(GROUPS, PHASES, FOLD, ROW_BYTES, SOURCE, false)                                            \
  }
#define DECONV_SM90_ROWS(GROUPS, PHASES, FOLD, ROW_BYTES)                        \
  if (plan.row_bytes == ROW_BYTES) {                                             \
    DECONV_SM90_SOURCE(GROUPS, PHASES, FOLD, ROW_BYTES, Sm90Source::kTensor)     \
    DECONV_SM90_SOURCE(GROUPS, PHASES, FOLD, ROW_BYTES, Sm90Source::kTransposed) \
    DECONV_SM90_SOURCE(GROUPS, PHASES, FOLD, ROW_BYTES, Sm90Source::kWarps)      \
    if constexpr (sm90_has_im2col(Sm90Tile{GROUPS, PHASES, FOLD})) {             \
      DECONV_SM90_SOURCE(GROUPS, PHASES, FOLD, ROW_BYTES, Sm90Source::kIm2col)   \
    }                                                                            \
  }
#define DECONV_SM90_TILE(GROUPS, PHASES, FOLD)                                                     \
  if (plan.tile.groups == GROUPS && plan.tile.phases == PHASES && plan.tile.fold == FOLD) {        \
    DECONV_SM90_ROWS(GROUPS, PHASES, FOLD, kSm90RowBytes)                                          \
    if constexpr (sm90_halves_rows(static_cast<int>(sizeof(T)), Sm90Tile{GROUPS, PHASES, FOLD})) { \
      DECONV_SM90_ROWS(GROUPS, PHASES, FOLD, kSm90RowBytes / 2)                                    \
    }                                                                                              \
  }
  DECONV_SM90_TILE(8, 1, 1)
  DECONV_SM90_TILE(16, 1, 1)
  DECONV_SM90_TILE(8, 2, 1)
  DECONV_SM90_TILE(16, 1, 2)
  if constexpr (kParts == 1) {
    DECONV_SM90_TILE(4, 1, 1)
    DECONV_SM90_TILE(18, 1, 1)
    DECONV_SM90_TILE(20, 1, 1)
    DECONV_SM90_TILE(24, 1, 1)
    DECONV_SM90_TILE(26, 1, 1)
    DECONV_SM90_TILE(28, 1, 1)
    DECONV_SM90_TILE(32, 1, 1)
    DECONV_SM90_TILE(12, 2, 1)
    DECONV_SM90_TILE(16, 2, 1)
    DECONV_SM90_TILE(24, 1, 2)
    DECONV_SM90_TILE(32, 1, 2)
  } else {
    DECONV_SM90_TILE(8, 1, 2)
  }
#undef DECONV_SM90_TILE
#undef DECONV_SM90_ROWS
#undef DECONV_SM90_SOURCE
#undef DECONV_SM90_SPLITS
#undef DECONV_SM90_KERNEL
  return cudaErrorInvalidValue;
}

template <class T>
cudaError_t launch_repair(const Problem& problem, const IgemmSm90Plan& plan, const Operands& operands,
                          cudaStream_t stream) {
  sm90::RepairParams<T> p{};
  set_images<T>(p, problem, operands);
  set_weight<T>(p, problem, operands);
  p.groups = static_cast<int>(problem.groups);
  p.not_finite = not_finite_at(plan, operands);
  return launch_kernel(sm90::repair_kernel<T>, plan.blocks, 256, 0, stream, p, Start::kEarly);
}

// Encodes the tensor maps of the source, in place or repacked. False if the driver refuses.
template <class T>
bool encode_source(const Problem& problem, const Operands& operands, sm90::ConvParams<T>& params, int64_t images) {
  const IgemmSm90Plan& plan = params.plan;
  if (!plan.repack) {
    const Tensor4& source = correlation(problem).source;
    return encode_source_maps(problem, plan, source, params.source_channels * source.stride[1], params.source,
                              params.source_map);
  }
  Tensor4 layout = repacked_source(problem);
  layout.size[0] = images;
  return encode_source_maps(problem, plan, layout, layout.size[1] / problem.groups, repacked_at(plan, operands),
                            params.source_map);
}

// Launches the convolution of all images, or slice by slice. Each slice follows its repacking, if there is one, and all
// follow the packing of the weights.
template <class T, int kParts>
cudaError_t launch_sm90_slices(const Problem& problem, const sm90::ConvParams<T>& params, const Operands& operands,
                               const std::optional<Packing<T>>& packing, cudaStream_t stream) {
  const IgemmSm90Plan& plan = params.plan;
  cudaError_t error = packing && !plan.repack ? launch_packing<T, kParts>(*packing, stream) : cudaSuccess;
  Start start = packing ? Start::kEarly : Start::kAfter;
  for (int64_t first = 0; first < problem.batch && error == cudaSuccess; first += plan.slice) {
    const int64_t images = std::min<int64_t>(plan.slice, problem.batch - first);
    sm90::ConvParams<T> slice = of_images(params, first, images);
    if (plan.repack) {
      if (images < plan.slice && !encode_source(problem, operands, slice, images)) {
        return cudaErrorInvalidValue;  // the driver refuses a map of fewer images
      }
      Tensor4 layout = repacked_source(problem);
      layout.size[0] = images;
      T* const repacked = reinterpret_cast<T*>(repacked_at(plan, operands));
      const Tensor4& source = correlation(problem).source;
      const Repack<T> rewriting = describe_repack<T>(source, problem.groups, layout, slice.source, repacked);
      error = packing && first == 0 ? launch_packing<T, kParts>(*packing, rewriting, stream)
                                    : launch_repack(rewriting, stream, start);
      if (error != cudaSuccess) return error;
      start = Start::kEarly;
    }
    if (plan.repack && plan.results != Sm90Results::kStored &&
        !encode_result_maps(problem, plan, slice.result, images, slice.source_map)) {
      return cudaErrorInvalidValue;  // the driver refuses a map of these images alone
    }
    error = launch_sm90_tile<T, kParts>(slice, plan.source, stream, start);
  }
  return error;
}

template <class T, int kParts>
cudaError_t launch_igemm_sm90(const Problem& problem, const IgemmSm90Plan& plan, const Operands& operands,
                              cudaStream_t stream) {
  const Problem seen = plan.source == Sm90Source::kIm2col ? im2col_problem(problem) : problem;
  const Problem merged = with_merged_groups(seen, plan.merge);
  sm90::ConvParams<T> params = sm90_conv_params<T>(merged, problem, plan, operands);
  const bool packs = plan.weights == Sm90Weights::kPacked;
  if ((sm90_asks(plan.source) && !encode_source(merged, operands, params, plan.slice)) ||
      (plan.results != Sm90Results::kStored &&
       !encode_result_maps(merged, plan, params.result, plan.slice, params.source_map)) ||
      (!packs && !encode_weight_map(problem, plan, operands.w, &params.weight_map))) {
    return cudaErrorInvalidValue;  // the driver refuses a tensor map
  }
  std::optional<Packing<T>> packing;
  if (packs) packing = describe_packing<T>(seen, problem, plan, operands);
  const cudaError_t error = launch_sm90_slices<T, kParts>(merged, params, operands, packing, stream);
  if (error != cudaSuccess || !sm90_mixes(plan.tile, plan.parts, plan.merge)) return error;
  return launch_repair<T>(problem, plan, operands, stream);
}

}  // namespace deconv
