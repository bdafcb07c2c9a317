#include "tensor_map.h"

#include <cuda_runtime.h>

#include "../correlation.h"
#include "../tap_span.h"

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

}  // namespace

TensorMapEncode tensor_map_encode() {
  static const TensorMapEncode encode = find_encode();
  return encode;
}

bool encode_source_maps(const Problem& problem, const HopperConvPlan& plan, const Tensor4& layout, int64_t group_stride,
                        const void* source, CUtensorMap* maps) {
  const TensorMapEncode encode = tensor_map_encode();
  if (encode == nullptr) return false;
  const int64_t channels = correlation(problem).source_channels;
  const AxisGeometry axis[2] = {geometry(problem, 0), geometry(problem, 1)};
  const int64_t size = element_size(problem.dtype);
  // TF32 is rounded on the way, unless producer warps see it before the tensor cores do.
  const CUtensorMapDataType type = problem.dtype == DType::kFloat32
                                       ? (plan.source == HopperSource::kTensor && plan.parts == 1
                                              ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT32)
                                   : problem.dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const bool raw = plan.source == HopperSource::kTransposed;
  const std::vector<int> planes[2] = {used_planes(axis[0]), used_planes(axis[1])};
  for (int plane = 0; plane < plan.planes_h * plan.planes_w; ++plane) {
    const int start[2] = {planes[0][plane / plan.planes_w], planes[1][plane % plan.planes_w]};
    cuuint64_t extent[2], bytes[2];
    int64_t offset = 0;
    for (int a = 0; a < 2; ++a) {
      const bool all = raw && a == 1;  // a raw row holds the columns of all planes
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
    // As kernels/hopper/source.cuh asks for it: the channels, then the axes of a halo from the innermost on, then the
    // group; or raw (width, channel, height, image, group).
    struct Dimension {
      cuuint64_t size, stride;
      cuuint32_t box;
    };
    const Dimension n{batch, image_bytes, extent_of(plan.halo.n)}, h{extent[0], bytes[0], extent_of(plan.halo.h)},
        w{extent[1], bytes[1], extent_of(raw ? plan.raw_width : plan.halo.w)},
        c{channel_count, channel_bytes, extent_of((raw ? kHopperRawBytes : plan.row_bytes) / size)},
        g{groups, group_bytes, 1};
    const Dimension raw_order[5] = {w, c, h, n, g};
    const Dimension by_height[5] = {c, h, w, n, g}, by_batch[5] = {c, n, w, h, g}, by_width[5] = {c, w, h, n, g};
    const Dimension* order = raw                                  ? raw_order
                             : plan.inner == HopperInner::kHeight ? by_height
                             : plan.inner == HopperInner::kBatch  ? by_batch
                                                                  : by_width;
    cuuint64_t sizes[5], strides[4];
    cuuint32_t box[5];
    for (int i = 0; i < 5; ++i) {
      sizes[i] = order[i].size;
      box[i] = order[i].box;
      if (i > 0) strides[i - 1] = order[i].stride;
    }
    const CUtensorMapSwizzle swizzle = raw                                 ? CU_TENSOR_MAP_SWIZZLE_NONE
                                       : plan.row_bytes == kHopperRowBytes ? CU_TENSOR_MAP_SWIZZLE_128B
                                                                           : CU_TENSOR_MAP_SWIZZLE_64B;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    const auto* base = static_cast<const unsigned char*>(source) + offset * size;
    if (encode(&maps[plane], type, 5, const_cast<unsigned char*>(base), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
      return false;
    }
  }
  return true;
}

}  // namespace deconv
