// Lowers a layer whose stride divides its kernel to one with stride 1. The output is counted in blocks of stride x
// stride pixels, and each block is one pixel with stride^2 times the channels (Shi et al., arXiv 1609.07009). With k =
// a * stride + r, pixel r of block i + a reads tap a of sub-kernel r; no tap is a zero.
//
// With an input of one pixel, the block is the whole kernel and the layer is a matrix product: images are its pixels,
// and operands are mostly in blocks already.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "core/problem.h"
#include "planner/cost_model.h"

namespace deconv {

inline constexpr int kSubPixelAlignment = 16;  // bytes; each block begins at a multiple

// Rewriting pays with few channels only: with more, each phase fills a tile of tensor cores by itself. If adjacent
// columns belong to many phases, a phase's stores leave gaps; blocks stored in place do not.
inline constexpr int64_t kMostSubPixelChannels = 64;  // of the output, a group: fewer are rewritten
inline constexpr int64_t kLeastSubPixelRow = 3;  // phases of the width from which blocks stored in place pay
inline constexpr int64_t kMostSubPixelBytes = 256 << 20;  // of the rewritten output

// Pixels of a block along an axis.
inline int64_t sub_pixel_stride(const Axis& axis) {
  return axis.input == 1 && axis.dilation == 1 ? axis.kernel : axis.stride;
}
inline bool is_one_pixel(const Problem& problem) { return problem.axis[0].input == 1 && problem.axis[1].input == 1; }

// A tensor (N, C, H, W), and how it is stored in blocks: (N, blocks down, blocks across, elements of a block), dense.
struct Blocks {
  Tensor4 plain;
  int64_t down = 1, across = 1;  // blocks of an image
  int64_t height = 1, width = 1;  // pixels of a block
  int64_t shift_h = 0, shift_w = 0;  // pixels of the first block that lie before the image
  bool channels_fastest = false;  // of a block: [row][column][channel], else [channel][row][column]
  int64_t pitch = 1;  // elements from one block to the next

  int64_t elements() const { return plain.size[1] * height * width; }  // of a block
  int64_t numel() const { return plain.size[0] * down * across * pitch; }
  // True if the tensor is in blocks already: one block an image, without gaps.
  bool in_place() const {
    const std::array<int64_t, 4> steps = channels_fastest
                                             ? std::array<int64_t, 4>{pitch, 1, width * plain.size[1], plain.size[1]}
                                             : std::array<int64_t, 4>{pitch, height * width, width, 1};
    bool lies = down * across == 1 && elements() == pitch && plain.size[2] == height && plain.size[3] == width;
    for (int d = 0; d < 4; ++d) lies = lies && (plain.size[d] == 1 || plain.stride[d] == steps[d]);
    return lies;
  }
};

// True if a line's pixels, with all their channels, have no gaps.
inline bool is_line_of_channels(const Tensor4& tensor) {
  return tensor.stride[1] == 1 && tensor.stride[3] == tensor.size[1];
}

inline Blocks sub_pixel_blocks(const Problem& problem, const Tensor4& plain) {
  Blocks b;
  b.plain = plain;
  b.height = sub_pixel_stride(problem.axis[0]);
  b.width = sub_pixel_stride(problem.axis[1]);
  b.channels_fastest = problem.groups == 1 && is_line_of_channels(problem.y);
  b.pitch = round_up(b.elements(), kSubPixelAlignment / element_size(problem.dtype));
  return b;
}
inline Blocks sub_pixel_output(const Problem& problem) {
  Blocks b = sub_pixel_blocks(problem, problem.y);
  b.shift_h = problem.axis[0].padding % b.height;
  b.shift_w = problem.axis[1].padding % b.width;
  b.down = ceil_div(problem.axis[0].output + b.shift_h, b.height);
  b.across = ceil_div(problem.axis[1].output + b.shift_w, b.width);
  return b;
}
inline Blocks sub_pixel_weight(const Problem& problem) {
  Blocks b = sub_pixel_blocks(problem, problem.w);
  b.down = problem.axis[0].kernel / b.height;
  b.across = problem.axis[1].kernel / b.width;
  return b;
}
// The bias as blocks: one value for each channel, whatever the pixel.
inline Blocks sub_pixel_bias(const Problem& problem) {
  return sub_pixel_blocks(
      problem,
      {{1, problem.out_channels, sub_pixel_stride(problem.axis[0]), sub_pixel_stride(problem.axis[1])}, {0, 1, 0, 0}});
}

// Blocks as pixels: the elements of a block are channels.
inline Tensor4 as_pixels(const Blocks& blocks) {
  return {{blocks.plain.size[0], blocks.elements(), blocks.down, blocks.across},
          {blocks.down * blocks.across * blocks.pitch, 1, blocks.across * blocks.pitch, blocks.pitch}};
}

// The output's blocks, to be stored in place; nothing if the elements of a block's row are not adjacent there.
inline std::optional<ResultBlocks> sub_pixel_result_blocks(const Problem& problem) {
  const Blocks b = sub_pixel_output(problem);
  const bool is_line = b.channels_fastest && is_line_of_channels(b.plain);
  if (b.plain.stride[3] != (is_line ? b.plain.size[1] : 1) || (b.channels_fastest && !is_line)) return std::nullopt;
  const int64_t line = is_line ? b.plain.size[1] : 1;  // a pixel's channels count as columns of one channel
  ResultBlocks r;
  r.height = b.height;
  r.width = b.width * line;
  r.shift_h = b.shift_h;
  r.shift_w = b.shift_w * line;
  r.size_h = b.plain.size[2];
  r.size_w = b.plain.size[3] * line;
  r.stride_n = b.plain.stride[0];
  r.stride_c = is_line ? 0 : b.plain.stride[1];
  r.stride_h = b.plain.stride[2];
  r.line = line;
  r.weight_c = is_line ? 0 : problem.w.stride[1];
  r.weight_h = problem.w.stride[2];
  r.weight_in_blocks = sub_pixel_weight(problem).in_place();
  if (is_line && !is_line_of_channels(problem.w)) return std::nullopt;  // a block's row is not adjacent in the weight
  const int64_t channels = is_line ? 1 : b.plain.size[1];
  const int64_t reach = channels * r.stride_c + (r.size_h + 2 * r.height) * r.stride_h + r.size_w + 2 * r.width;
  if (reach > INT32_MAX) return std::nullopt;  // 32-bit offsets within an image
  return r;
}

// True if every image is one pixel and one block, and can be a column of one image.
inline bool has_columns(const Problem& problem) {
  const Blocks y = sub_pixel_output(problem), w = sub_pixel_weight(problem);
  const Axis &rows = problem.axis[0], &columns = problem.axis[1];
  return is_one_pixel(problem) && y.down * y.across * w.down * w.across == 1 && rows.padding < y.height &&
         columns.padding < y.width;
}

// Images of one pixel as columns of one image.
inline Tensor4 as_columns(const Tensor4& tensor) {
  const int64_t step = tensor.stride[0], image = tensor.size[0] * step;
  return {{1, tensor.size[1], 1, tensor.size[0]}, {image, tensor.stride[1], image, step}};
}

// Why the problem has no such form; empty if it has one.
inline std::string sub_pixel_refusal(const Problem& problem) {
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  if (element_size(problem.dtype) > 4) return "takes float16, bfloat16 and float32";
  const int64_t stride_h = sub_pixel_stride(h), stride_w = sub_pixel_stride(w);
  if (stride_h * stride_w == 1) return "takes strides above 1, and inputs of one pixel with larger kernels";
  if (h.dilation != 1 || w.dilation != 1) return "takes dilation 1";
  if (h.kernel % stride_h != 0 || w.kernel % stride_w != 0) return "takes strides that divide the kernel";
  return "";
}
// Why its output, or grad_output, is not rewritten; empty if it may be.
inline std::string sub_pixel_rewriting_refusal(const Problem& problem) {
  if (problem.out_channels_per_group() >= kMostSubPixelChannels && !is_one_pixel(problem)) {
    return "takes fewer than " + std::to_string(kMostSubPixelChannels) + " output channels a group";
  }
  const Blocks output = sub_pixel_output(problem);
  const int64_t bytes = output.numel() * element_size(problem.dtype);
  if (bytes > kMostSubPixelBytes && !output.in_place())
    return "takes outputs up to " + std::to_string(kMostSubPixelBytes >> 20) + " MiB";
  return "";
}

// The problem in blocks.
inline Problem sub_pixel_problem(const Problem& problem) {
  Problem p = problem;
  const Blocks y = sub_pixel_output(problem), w = sub_pixel_weight(problem);
  const int64_t blocks[2] = {y.down, y.across};
  for (int a = 0; a < 2; ++a) {
    const Axis& axis = problem.axis[a];
    const int64_t stride = sub_pixel_stride(axis);
    p.axis[a] = {axis.input, blocks[a], axis.kernel / stride, 1, axis.padding / stride, 0, 1};
  }
  p.out_channels *= y.height * y.width;
  p.result_layout = Layout::kChannelsLast;
  p.y = as_pixels(y);
  p.w = as_pixels(w);
  if (has_columns(problem)) {
    p.axis[1].input = p.axis[1].output = p.batch;
    p.batch = 1;
    p.x = as_columns(p.x);
    p.y = as_columns(p.y);
  }
  return p;
}

// The same with the output stored in place, and the weight read in place.
inline Problem sub_pixel_stored_problem(const Problem& problem) {
  Problem p = sub_pixel_problem(problem);
  p.blocks = sub_pixel_result_blocks(problem);
  if (!p.blocks->weight_in_blocks) {
    const std::array<int64_t, 4>& stride = problem.w.stride;
    p.w.stride = {stride[0], p.blocks->line > 1 ? 1 : stride[3], p.blocks->height * stride[2],
                  p.blocks->width / p.blocks->line * stride[3]};
  }
  return p;
}

// Bytes of one access to a tensor and to its blocks, if pointers are aligned to them.
inline int sub_pixel_unit(const Blocks& b, int64_t element) {
  const bool is_line = b.channels_fastest && is_line_of_channels(b.plain);
  const int64_t line = is_line ? b.plain.size[1] : 1;  // elements of a pixel
  if (b.plain.stride[3] != line || (b.channels_fastest && !is_line)) return static_cast<int>(element);
  int64_t bytes = kSubPixelAlignment;
  const auto fits = [&](int64_t elements) { return elements * element % bytes == 0; };
  const auto steps_fit = [&](int axis) { return b.plain.size[axis] == 1 || fits(b.plain.stride[axis]); };
  while (bytes > element && !(fits(b.width * line) && fits(b.shift_w * line) && fits(b.plain.size[3] * line) &&
                              steps_fit(0) && (is_line || steps_fit(1)) && steps_fit(2))) {
    bytes /= 2;
  }
  return static_cast<int>(bytes);
}

}  // namespace deconv
