// One convolution, described and checked; no torch, no CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace deconv {

enum class Direction { kForward, kGradInput, kGradWeight };
enum class DType { kFloat16, kBFloat16, kFloat32, kFloat64, kOther };
enum class Layout { kContiguous, kChannelsLast };

const char* name(Direction direction);
const char* name(DType dtype);
const char* name(Layout layout);
int64_t element_size(DType dtype);

// An argument that the operator refuses. The text names the argument, its value and the valid range.
struct InvalidArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A 4-D tensor in memory; sizes and strides in elements, order (N, C, H, W).
struct Tensor4 {
  std::array<int64_t, 4> size{};
  std::array<int64_t, 4> stride{};

  int64_t numel() const { return size[0] * size[1] * size[2] * size[3]; }
  bool is_channels_last() const;  // at::suggest_memory_format's answer, ambiguities included
};

Tensor4 dense(std::array<int64_t, 4> size, Layout layout);

// One axis (height or width) of the operator.
struct Axis {
  int64_t input = 0;   // extent of the forward input
  int64_t output = 0;  // extent of the forward output
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t output_padding = 0;
  int64_t dilation = 1;
};

// Where to store a result whose pixels are blocks of another result (lowerings/sub_pixel). Element k of row r of
// channel m of the block at (h, w), k fastest, then r, is pixel (h * height + r - shift_h, w * width + k - shift_w) of
// channel m there, if that exists.
struct ResultBlocks {
  int64_t height = 1, width = 1;  // of a block
  int64_t shift_h = 0, shift_w = 0;  // below height and width
  int64_t size_h = 1, size_w = 1;  // of an image
  int64_t stride_n = 0, stride_c = 0, stride_h = 0;  // elements; columns are adjacent
  int64_t line = 1;  // adjacent columns that are channels of the bias, in order
  // Elements of the weight from one channel to the next, and from one row of a block; columns use the weight's stride.
  int64_t weight_c = 0, weight_h = 0;
  bool weight_in_blocks = true;  // the weight's own strides give the same addresses
};

struct Problem {
  Direction direction = Direction::kForward;
  DType dtype = DType::kFloat32;
  bool allow_tf32 = false;  // float32 operands may be rounded to TF32
  // True if an operand's address is not a multiple of 16 bytes. First: input, or grad_output in grad_input. Second:
  // weight, or grad_output in grad_weight.
  bool unaligned_first = false, unaligned_second = false;
  std::array<Axis, 2> axis;  // height, width
  int64_t batch = 0;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t groups = 1;
  bool unbatched = false;  // a 3-D call; the tensors below carry a batch of 1
  bool has_bias = false;
  Tensor4 x;  // forward input or its gradient
  Tensor4 w;  // weight (in_channels, out_channels / groups, kernel height, kernel width) or its gradient
  Tensor4 y;  // forward output or its gradient
  Layout result_layout = Layout::kContiguous;
  std::optional<ResultBlocks> blocks;  // forward: stores the result there instead of in `y` (lowerings/sub_pixel)

  int64_t in_channels_per_group() const { return in_channels / groups; }
  int64_t out_channels_per_group() const { return out_channels / groups; }
  const Tensor4& result() const;
  std::vector<int64_t> result_sizes() const;  // without the batch dimension for a 3-D call
  std::vector<int64_t> result_strides() const;
  double flops() const;  // multiplications and additions of a dense kernel, edge taps included
  int64_t bytes() const;  // each tensor read or written once
  std::string describe() const;
};

using Sizes = std::vector<int64_t>;

// A tensor argument as the caller gave it.
struct TensorArg {
  Sizes size;
  Sizes stride;
};

struct ConvArgs {
  Sizes stride{1};
  Sizes padding{0};
  Sizes output_padding{0};
  int64_t groups = 1;
  Sizes dilation{1};
};

// Each describes and checks one direction; raises InvalidArgument.
Problem describe_forward(DType dtype, const TensorArg& input, const TensorArg& weight,
                         const std::optional<Sizes>& bias_size, const ConvArgs& args);
Problem describe_grad_input(DType dtype, const TensorArg& grad_output, const TensorArg& weight, const Sizes& input_size,
                            const ConvArgs& args);
Problem describe_grad_weight(DType dtype, const TensorArg& input, const TensorArg& grad_output,
                             const Sizes& kernel_size, const ConvArgs& args);

}  // namespace deconv
