#include "families/wgrad_sm90/tensor_map_nchw.h"

#include <array>

#include "families/tensor_map.h"

namespace deconv {
namespace {

struct Dimension {
  int64_t size, bytes;  // from one to the next
  int box;
};

// order: from the innermost dimension on.
bool encode_lines(const Problem& problem, const void* base, const std::array<Dimension, 4>& order,
                  CUtensorMapSwizzle swizzle, CUtensorMap* map) {
  const TensorMapEncode encode = tensor_map_encode();
  if (encode == nullptr) return false;
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4];
  for (int i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(order[i].size);
    box[i] = static_cast<cuuint32_t>(order[i].box);
    // An axis of one pixel may have any stride, also one that TMA refuses.
    if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(order[i].size == 1 ? 16 : order[i].bytes);
  }
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUtensorMapDataType type = problem.dtype == DType::kFloat16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : problem.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : problem.allow_tf32                ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return encode(map, type, 4, const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool encode_lines_maps(const Problem& problem, const WgradRsNchwPlan& plan, const void* x, const void* y,
                       CUtensorMap* x_map, CUtensorMap* y_map) {
  const auto size = static_cast<int64_t>(element_size(problem.dtype));
  const auto axis_of = [&](const Tensor4& tensor, int axis, int step, int box) {
    return Dimension{tensor.size[axis] / step, tensor.stride[axis] * step * size, box};
  };
  const Tensor4 &of_x = problem.x, &of_y = problem.y;
  const int kinds = plan.channel_kinds;
  const int64_t image = (of_y.size[2] - 1) * of_y.stride[2] + of_y.size[3];
  const int64_t line = (kinds - 1) * of_y.stride[1] + image;  // elements
  return encode_lines(problem, x,
                      {axis_of(of_x, 3, 1, plan.columns), axis_of(of_x, 1, 1, plan.block_m), axis_of(of_x, 2, 1, 1),
                       axis_of(of_x, 0, 1, 1)},
                      plan.rows == 1 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, x_map) &&
         encode_lines(problem, y,
                      {Dimension{line, size, plan.y_pitch / static_cast<int>(size)},
                       axis_of(of_y, 1, kinds, plan.y_channels / kinds), axis_of(of_y, 0, 1, 1), Dimension{1, 16, 1}},
                      CU_TENSOR_MAP_SWIZZLE_NONE, y_map);
}

}  // namespace deconv
