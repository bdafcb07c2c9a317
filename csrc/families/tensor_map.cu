#include "families/tensor_map.h"

#include <cuda_runtime.h>

#include <array>

#include "core/correlation.h"
#include "core/tap_span.h"
#include "families/igemm_sm90/plan_1tap.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

TensorMapEncode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                             cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<TensorMapEncode>(function);
}

// Type of the elements that tensor cores read. For float32, TMA rounds to TF32.
CUtensorMapDataType type_of(DType dtype) {
  return dtype == DType::kFloat32   ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
         : dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}
CUtensorMapSwizzle swizzle_of(int row_bytes) {
  return row_bytes == kSm90RowBytes ? CU_TENSOR_MAP_SWIZZLE_128B
         : row_bytes == 64          ? CU_TENSOR_MAP_SWIZZLE_64B
                                    : CU_TENSOR_MAP_SWIZZLE_32B;
}

struct Dimension {
  cuuint64_t size, stride;  // elements, bytes
  cuuint32_t box;
};
template <size_t kRank>
using DimensionsOf = std::array<Dimension, kRank>;  // the innermost first
using Dimensions = DimensionsOf<5>;

template <size_t kRank>
bool encode_map(CUtensorMap* map, CUtensorMapDataType type, const void* base, const DimensionsOf<kRank>& order,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion fetched = CU_TENSOR_MAP_L2_PROMOTION_L2_128B) {
  const TensorMapEncode encode = tensor_map_encode();
  if (encode == nullptr) return false;
  cuuint64_t sizes[kRank], strides[kRank - 1];
  cuuint32_t box[kRank];
  for (size_t i = 0; i < kRank; ++i) {
    sizes[i] = order[i].size;
    box[i] = order[i].box;
    if (i > 0) strides[i - 1] = order[i].stride;
  }
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  return encode(map, type, kRank, const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle, fetched, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Makes dimensions from strides in elements.
struct DimensionOf {
  int64_t element;  // bytes

  Dimension operator()(int64_t count, int64_t stride, int64_t box) const {
    return {static_cast<cuuint64_t>(count), static_cast<cuuint64_t>(stride * element), static_cast<cuuint32_t>(box)};
  }
};

// Columns adjacent: runs of columns; channels; runs of a line; lines; images.
bool encode_column_maps(const Problem& problem, const IgemmSm90Plan& plan, const void* result, int64_t images,
                        CUtensorMap* maps) {
  const Correlation c = correlation(problem);
  const AxisGeometry h_axis = geometry(problem, 0);
  const int64_t size = element_size(problem.dtype), run = kSm90CopiedRun;
  const DimensionOf dimension{size};
  for (int phase = 0; phase < plan.phase_groups; ++phase) {
    const Dimensions order{dimension(run, 1, run),
                           dimension(problem.groups * c.result_channels, c.result.stride[1], kSm90TileM),
                           dimension(c.result.size[3] / run, run, plan.pixels.w * plan.tile.phases / run),
                           dimension(h_axis.phase_size(phase), h_axis.result_step() * c.result.stride[2], 1),
                           dimension(images, c.result.stride[0], 1)};
    const auto* base = static_cast<const unsigned char*>(result) + phase * c.result.stride[2] * size;
    if (!encode_map(&maps[sm90_result_map(phase)], type_of(problem.dtype), base, order, CU_TENSOR_MAP_SWIZZLE_NONE)) {
      return false;
    }
  }
  return true;
}

// Boxes of `channel_bytes` of channels, `columns` columns and `rows` rows of one image and group. planes: columns are
// adjacent, boxes are not swizzled; otherwise boxes hold swizzled pixels.
bool encode_halo_map(const Problem& problem, const Tensor4& layout, bool planes, int64_t channel_bytes, int rows,
                     int columns, const void* source, CUtensorMap* map) {
  const int64_t channels = correlation(problem).source_channels;
  const int64_t size = element_size(problem.dtype), unit = 16 / size;
  const DimensionOf dimension{size};
  const auto step = [&](int d) { return layout.size[d] > 1 ? layout.stride[d] : unit; };
  const Dimension channel = dimension(channels, step(1), channel_bytes / size),
                  column = dimension(layout.size[3], step(3), columns), row = dimension(layout.size[2], step(2), rows),
                  n = dimension(layout.size[0], step(0), 1),
                  group = dimension(problem.groups, problem.groups > 1 ? channels * step(1) : unit, 1);
  return encode_map(map, type_of(problem.dtype), source,
                    planes ? Dimensions{column, channel, row, n, group} : Dimensions{channel, column, row, n, group},
                    planes ? CU_TENSOR_MAP_SWIZZLE_NONE : swizzle_of(static_cast<int>(channel_bytes)));
}

}  // namespace

TensorMapEncode tensor_map_encode() {
  static const TensorMapEncode encode = find_encode();
  return encode;
}

bool encode_source_maps(const Problem& problem, const IgemmSm90Plan& plan, const Tensor4& layout, int64_t group_stride,
                        const void* source, CUtensorMap* maps) {
  const int64_t channels = correlation(problem).source_channels;
  const AxisGeometry axis[2] = {geometry(problem, 0), geometry(problem, 1)};
  const int64_t size = element_size(problem.dtype);
  const bool seen_by_warps = plan.source != Sm90Source::kTensor || plan.parts == 2;  // TMA must not round
  const CUtensorMapDataType type = problem.dtype == DType::kFloat32 && seen_by_warps ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                                                     : type_of(problem.dtype);
  const bool raw = plan.source == Sm90Source::kTransposed;
  // Pixels that no tap reads lie between others: fetch whole pixels, 256 bytes at a time.
  const bool apart = layout.stride[1] == 1 && layout.size[1] * size % 256 == 0 && plan.planes_w < axis[1].source_step();
  const CUtensorMapL2promotion fetched = apart ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                                               : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  const std::vector<int> planes[2] = {used_planes(axis[0]), used_planes(axis[1])};
  for (int plane = 0; plane < plan.planes_h * plan.planes_w; ++plane) {
    const int start[2] = {planes[0][plane / plan.planes_w], planes[1][plane % plan.planes_w]};
    cuuint64_t extent[2], bytes[2];
    int64_t offset = 0;
    for (int a = 0; a < 2; ++a) {
      const bool all = raw && a == 1;  // a raw row holds the columns of all source phases
      const int step = all ? 1 : axis[a].source_step(), first = all ? 0 : start[a];
      extent[a] = (axis[a].source_size - first - 1) / step + 1;
      bytes[a] = static_cast<cuuint64_t>(layout.stride[2 + a] * step * size);
      offset += first * layout.stride[2 + a];
    }
    const auto batch = static_cast<cuuint64_t>(layout.size[0]);
    const auto image_bytes = static_cast<cuuint64_t>(layout.stride[0] * size);
    const auto channel_count = static_cast<cuuint64_t>(channels), groups = static_cast<cuuint64_t>(problem.groups);
    const auto channel_bytes = static_cast<cuuint64_t>(layout.stride[1] * size);
    const auto group_bytes = static_cast<cuuint64_t>(groups > 1 ? group_stride * size : 16);
    const auto extent_of = [](int64_t n) { return static_cast<cuuint32_t>(n); };
    // The order of coordinates in load_source.cuh: channels, the axes of a halo from the innermost on, group. Raw boxes
    // (load_source_nchw.cuh): width, channel, height, image, group.
    const Dimension n{batch, image_bytes, extent_of(plan.halo.n)}, h{extent[0], bytes[0], extent_of(plan.halo.h)},
        w{extent[1], bytes[1], extent_of(raw ? plan.raw_width : plan.halo.w)},
        c{channel_count, channel_bytes, extent_of((raw ? plan.raw_row_bytes : plan.row_bytes) / size)},
        g{groups, group_bytes, 1};
    const Dimensions order = raw                                ? Dimensions{w, c, h, n, g}
                             : plan.inner == Sm90Inner::kHeight ? Dimensions{c, h, w, n, g}
                             : plan.inner == Sm90Inner::kBatch  ? Dimensions{c, n, w, h, g}
                                                                : Dimensions{c, w, h, n, g};
    const auto* base = static_cast<const unsigned char*>(source) + offset * size;
    if (!encode_map(&maps[plane], type, base, order, raw ? CU_TENSOR_MAP_SWIZZLE_NONE : swizzle_of(plan.row_bytes),
                    fetched)) {
      return false;
    }
  }
  return true;
}

bool encode_one_tap_map(const Problem& problem, int classes, const void* source, CUtensorMap* map) {
  const Correlation c = correlation(problem);
  const int64_t size = element_size(problem.dtype), unit = 16 / size, pixels = c.source.size[2] * c.source.size[3];
  const DimensionOf dimension{size};
  const auto step = [&](int d) { return c.source.size[d] > 1 ? c.source.stride[d] : unit; };
  const Dimensions order{dimension((classes - 1) * step(1) + pixels, 1, one_tap_row(classes)),
                         dimension(c.source_channels / classes, classes * step(1), kSm90RowBytes / size / classes),
                         dimension(problem.groups, problem.groups > 1 ? c.source_channels * step(1) : unit, 1),
                         dimension(c.source.size[0], step(0), 1), dimension(1, unit, 1)};
  return encode_map(map, type_of(problem.dtype), source, order,
                    classes > 1 ? CU_TENSOR_MAP_SWIZZLE_NONE : swizzle_of(static_cast<int>(kOneTapPiece * size)));
}

bool encode_stride2_map(const Problem& problem, const Stride2Plan& plan, const void* source, CUtensorMap* map) {
  return encode_halo_map(problem, correlation(problem).source, true, kSm90RowBytes, plan.halo_rows,
                         8 * plan.halo_octets, source, map);
}

bool encode_whole_images_maps(const Problem& problem, const WholeImagesPlan& plan, const void* source,
                              const void* weight, CUtensorMap* source_map, CUtensorMap* weight_map) {
  const int64_t size = element_size(problem.dtype), unit = 16 / size;
  const int64_t channels = problem.in_channels_per_group(), rows = problem.out_channels_per_group() * kWholeImagesTaps;
  const DimensionOf dimension{size};
  const auto step = [&](int d) { return problem.x.size[d] > 1 ? problem.x.stride[d] : unit; };
  const auto group = [&](int64_t stride) { return dimension(problem.groups, problem.groups > 1 ? stride : unit, 1); };
  const DimensionsOf<4> pixels{dimension(problem.x.size[2] * problem.x.size[3], 1, plan.run),
                               dimension(channels, step(1), kWholeImagesChunk), group(channels * step(1)),
                               dimension(problem.batch, step(0), plan.run < 64 ? 64 / plan.run : 1)};
  const DimensionsOf<4> weights{dimension(rows, 1, 64), dimension(channels, rows, kWholeImagesChunk),
                                group(channels * rows), dimension(1, unit, 1)};
  return encode_map(source_map, type_of(problem.dtype), source, pixels,
                    swizzle_of(static_cast<int>(plan.run * size))) &&
         encode_map(weight_map, type_of(problem.dtype), weight, weights, CU_TENSOR_MAP_SWIZZLE_128B);
}

bool encode_col2im_map(const Problem& problem, const Col2imSm90Plan& plan, const void* source, CUtensorMap* map) {
  return encode_halo_map(problem, correlation(problem).source, plan.planes, kCol2imChunkBytes, plan.rows,
                         plan.staged_pitch, source, map);
}

bool encode_all_phases_maps(const Problem& problem, const AllPhasesPlan& plan, const void* source, const void* result,
                            CUtensorMap* source_map, CUtensorMap* result_map) {
  const Correlation c = correlation(problem);
  const bool lines = plan.source == AllPhasesSource::kLines;
  if (!encode_halo_map(problem, lines ? as_line(c.source) : c.source, has_planes(plan.source),
                       all_phases_stage_channels(plan.source), lines ? 1 : plan.halo_rows, plan.pitch, source,
                       source_map)) {
    return false;
  }
  if (result == nullptr) return true;
  const int64_t size = element_size(problem.dtype), unit = 16 / size;
  const DimensionOf dimension{size};
  const Tensor4& y = c.result;
  const auto step = [&](int d) { return y.size[d] > 1 ? y.stride[d] : unit; };
  const bool whole_pixels = plan.staged_phase > 1;
  const int64_t channels = whole_pixels ? c.result_channels : 1;
  const Dimensions order{
      dimension(y.size[3] * channels, 1, plan.tile_columns * plan.staged_column),
      whole_pixels ? dimension(1, unit, 1) : dimension(y.size[1], step(1), c.result_channels),
      dimension(y.size[2], step(2), all_phases_strip_rows(plan.operand_rows) * geometry(problem, 0).result_step()),
      dimension(y.size[0], step(0), 1), dimension(1, unit, 1)};
  const CUtensorMapDataType type = size == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type_of(problem.dtype);
  return encode_map(result_map, type, result, order, CU_TENSOR_MAP_SWIZZLE_NONE);
}

bool encode_result_maps(const Problem& problem, const IgemmSm90Plan& plan, const void* result, int64_t images,
                        CUtensorMap* maps) {
  if (!plan.channels_adjacent) return encode_column_maps(problem, plan, result, images, maps);
  const Correlation c = correlation(problem);
  const AxisGeometry h_axis = geometry(problem, 0), w_axis = geometry(problem, 1);
  const int64_t size = element_size(problem.dtype);
  const int row_bytes = sm90_copied_bytes(static_cast<int>(size), plan.tile.fold), phases = plan.tile.phases;
  const CUtensorMapDataType type = size == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type_of(problem.dtype);
  const DimensionOf dimension{size};
  const bool by_height = plan.inner == Sm90Inner::kHeight, by_batch = plan.inner == Sm90Inner::kBatch;
  const int across = plan.phases_w / phases;
  for (int group = 0; group < plan.phase_groups; ++group) {
    const int phase_h = group / across, phase_w = group % across * phases;
    // With two phases side by side all columns are stored.
    const int64_t columns = phases > 1 ? c.result.size[3] : w_axis.phase_size(phase_w);
    const int64_t step_w = phases > 1 ? 1 : w_axis.result_step();
    // One line of a warpgroup, in the order of a halo's rows: of one image, one image row, or one row of columns.
    const Dimension channels = dimension(c.result_channels, 1, static_cast<int>(row_bytes / size)),
                    n = dimension(images, c.result.stride[0], by_batch ? 8 : 1),
                    h = dimension(h_axis.phase_size(phase_h), h_axis.result_step() * c.result.stride[2],
                                  by_height ? 8 : 1),
                    w = dimension(columns, step_w * c.result.stride[3], sm90_copied_columns(plan) * phases),
                    g = dimension(problem.groups, problem.groups > 1 ? c.result_channels : 16 / size, 1);
    const Dimensions order = by_height  ? Dimensions{channels, h, w, n, g}
                             : by_batch ? Dimensions{channels, n, w, h, g}
                                        : Dimensions{channels, w, h, n, g};
    const auto* base = static_cast<const unsigned char*>(result) +
                       (phase_h * c.result.stride[2] + phase_w * c.result.stride[3]) * size;
    if (!encode_map(&maps[sm90_result_map(group)], type, base, order, swizzle_of(row_bytes))) return false;
  }
  return true;
}

bool encode_weight_map(const Problem& problem, const IgemmSm90Plan& plan, const void* weight, CUtensorMap* map) {
  const bool forward = problem.direction == Direction::kForward, major_m = plan.weights == Sm90Weights::kMajorM;
  const int64_t size = element_size(problem.dtype), next = problem.w.stride[forward ? 1 : 0];  // result channel
  int64_t row = problem.w.size[forward == major_m ? 1 : 0];
  for (int a = 0; a < 2; ++a) row += (problem.axis[a].kernel - 1) * problem.w.stride[2 + a];
  if (major_m) {  // forward only
    const Dimension none{1, 16, 1};
    const Dimension source{static_cast<cuuint64_t>(problem.w.size[0]),
                           static_cast<cuuint64_t>(problem.w.stride[0] * size),
                           static_cast<cuuint32_t>(plan.row_bytes / size)};
    return encode_map(map, type_of(problem.dtype), weight,
                      Dimensions{Dimension{static_cast<cuuint64_t>(row), 0, kSm90TileM}, source, none, none, none},
                      swizzle_of(plan.row_bytes));
  }
  const auto channels = [&](int count, int step, int box) {
    return Dimension{static_cast<cuuint64_t>(count), static_cast<cuuint64_t>(step * next * size),
                     static_cast<cuuint32_t>(box)};
  };
  // Permuted rows count the bits of a channel within kSm90PermutedChannels in the order 0, 2, 3, 1.
  const bool permuted = sm90_permutes_rows(plan, static_cast<int>(size));
  const int64_t all = problem.w.size[forward ? 1 : 0];
  const Dimensions order{Dimension{static_cast<cuuint64_t>(row), 0, static_cast<cuuint32_t>(plan.row_bytes / size)},
                         channels(2, 1, 2), channels(4, permuted ? 4 : 2, 4), channels(2, permuted ? 2 : 8, 2),
                         channels(static_cast<int>(all / kSm90PermutedChannels), kSm90PermutedChannels,
                                  plan.tile_m / kSm90PermutedChannels)};
  return encode_map(map, type_of(problem.dtype), weight, order, swizzle_of(plan.row_bytes));
}

}  // namespace deconv
