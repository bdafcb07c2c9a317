#include "families/wgrad_sm90/tensor_map_nhwc.h"

#include "families/tensor_map.h"

namespace deconv {
namespace {

// Maps every step[a]-th pixel from start[a] on (height, width) of a tensor, in boxes of 128 bytes of channels of
// `box_pixels`.
bool encode_plane(TensorMapEncode encode, const Problem& problem, const Tensor4& tensor, const WgradTma& plan,
                  const std::array<int, 3>& box_pixels, const int64_t (&start)[2], const int64_t (&step)[2],
                  const void* base, CUtensorMap* map) {
  const int64_t size = element_size(problem.dtype);
  struct Dimension {
    int64_t size, stride;  // elements
  };
  const auto pixels = [&](int a) {
    return Dimension{(tensor.size[2 + a] - start[a] - 1) / step[a] + 1, tensor.stride[2 + a] * step[a]};
  };
  const Dimension n{tensor.size[0], tensor.stride[0]}, h = pixels(0), w = pixels(1);
  const Dimension by_height[3] = {h, w, n}, by_batch[3] = {n, w, h}, by_width[3] = {w, h, n};
  const Dimension* axes = plan.inner == Sm90Inner::kHeight  ? by_height
                          : plan.inner == Sm90Inner::kBatch ? by_batch
                                                            : by_width;
  cuuint64_t sizes[4] = {static_cast<cuuint64_t>(tensor.size[1])}, strides[3];
  cuuint32_t box[4] = {static_cast<cuuint32_t>(kSm90RowBytes / size)};
  for (int a = 0; a < 3; ++a) {
    sizes[a + 1] = static_cast<cuuint64_t>(axes[a].size);
    // An axis of one pixel may have any stride, also one that TMA refuses.
    strides[a] = static_cast<cuuint64_t>(axes[a].size == 1 ? 16 : axes[a].stride * size);
    box[a + 1] = static_cast<cuuint32_t>(box_pixels[a]);
  }
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const int64_t offset = start[0] * tensor.stride[2] + start[1] * tensor.stride[3];
  const CUtensorMapDataType type = problem.dtype == DType::kFloat16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : problem.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : problem.allow_tf32                ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return encode(map, type, 4, const_cast<unsigned char*>(static_cast<const unsigned char*>(base) + offset * size),
                sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

bool encode_weight_maps(const Problem& problem, const WgradTma& plan, const void* x, const void* y, CUtensorMap* x_map,
                        CUtensorMap* y_maps) {
  const TensorMapEncode encode = tensor_map_encode();
  if (encode == nullptr) return false;
  if (!encode_plane(encode, problem, problem.x, plan, plan.pixels, {0, 0}, {1, 1}, x, x_map)) return false;
  for (int i = 0; i < plan.planes; ++i) {
    const int64_t start[2] = {plan.plane[i][0], plan.plane[i][1]}, step[2] = {plan.plane_step[0], plan.plane_step[1]};
    if (!encode_plane(encode, problem, problem.y, plan, plan.halo, start, step, y, &y_maps[i])) return false;
  }
  return true;
}

}  // namespace deconv
