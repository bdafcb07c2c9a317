#include "core/problem.h"

#include <algorithm>
#include <sstream>

namespace deconv {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw InvalidArgument("conv_transpose2d: " + text.str());
}

std::string show(const Sizes& values) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < values.size(); ++i) text << (i ? ", " : "") << values[i];
  text << ']';
  return text.str();
}

std::array<int64_t, 2> pair(const char* argument, const Sizes& values, int64_t minimum) {
  if (values.size() != 1 && values.size() != 2) {
    refuse(argument, " must be one integer or a list of 1 or 2, (height, width), but got ", show(values));
  }
  const std::array<int64_t, 2> both{values.front(), values.back()};
  for (int64_t value : both) {
    if (value < minimum || value > INT32_MAX) {
      refuse(argument, " must be between ", minimum, " and ", INT32_MAX, ", but got ", show(values));
    }
  }
  return both;
}

// Adds the batch dimension to a 3-D tensor.
Tensor4 batched(const char* argument, const TensorArg& tensor, bool& unbatched) {
  Tensor4 out;
  unbatched = tensor.size.size() == 3;
  if (!unbatched && tensor.size.size() != 4) {
    refuse(argument, " must be 3-D (channels, height, width) or 4-D (batch, channels, height, width), but got size ",
           show(tensor.size));
  }
  const size_t skip = unbatched ? 1 : 0;
  out.size[0] = 1;
  for (size_t i = skip; i < 4; ++i) {
    out.size[i] = tensor.size[i - skip];
    out.stride[i] = tensor.stride[i - skip];
  }
  if (unbatched) out.stride[0] = out.size[1] * out.stride[1];
  return out;
}

void read_args(Problem& problem, const ConvArgs& args) {
  const auto stride = pair("stride", args.stride, 1);
  const auto padding = pair("padding", args.padding, 0);
  const auto output_padding = pair("output_padding", args.output_padding, 0);
  const auto dilation = pair("dilation", args.dilation, 1);
  if (args.groups < 1) refuse("groups must be at least 1, but got ", args.groups);
  problem.groups = args.groups;
  for (int a = 0; a < 2; ++a) {
    if (output_padding[a] >= std::max(stride[a], dilation[a])) {
      refuse("output_padding must be smaller than stride or dilation on each axis, but got output_padding ",
             show(args.output_padding), " with stride ", show(args.stride), " and dilation ", show(args.dilation));
    }
    Axis& axis = problem.axis[a];
    axis.stride = stride[a];
    axis.padding = padding[a];
    axis.output_padding = output_padding[a];
    axis.dilation = dilation[a];
  }
}

void read_weight(Problem& problem, const TensorArg& weight) {
  if (weight.size.size() != 4) {
    refuse("weight must be 4-D (in_channels, out_channels / groups, kernel height, kernel width), but got size ",
           show(weight.size));
  }
  for (size_t dimension : {0, 2, 3}) {
    if (weight.size[dimension] < 1) {
      refuse("weight must have at least 1 element on each dimension except out_channels, but got size ",
             show(weight.size));
    }
  }
  std::copy(weight.size.begin(), weight.size.end(), problem.w.size.begin());
  std::copy(weight.stride.begin(), weight.stride.end(), problem.w.stride.begin());
  problem.in_channels = weight.size[0];
  problem.out_channels = weight.size[1] * problem.groups;
  problem.axis[0].kernel = weight.size[2];
  problem.axis[1].kernel = weight.size[3];
  if (problem.in_channels % problem.groups != 0) {
    refuse("groups must divide weight's dimension 0 (in_channels), but got groups ", problem.groups,
           " and weight of size ", show(weight.size));
  }
}

// Infers the output's extents from the input's, for all three directions.
void infer_output(Problem& problem, int64_t height, int64_t width, const char* argument, const Sizes& given) {
  const std::array<int64_t, 2> input{height, width};
  for (int a = 0; a < 2; ++a) {
    Axis& axis = problem.axis[a];
    axis.input = input[a];
    if (axis.input < 1) refuse(argument, " must have a height and a width of at least 1, but got size ", show(given));
    axis.output = (axis.input - 1) * axis.stride - 2 * axis.padding + axis.dilation * (axis.kernel - 1) +
                  axis.output_padding + 1;
    if (axis.output < 0) {
      refuse("the output's ", a ? "width" : "height", " must not be negative, but input ", axis.input, ", kernel ",
             axis.kernel, ", stride ", axis.stride, ", padding ", axis.padding, ", output_padding ",
             axis.output_padding, " and dilation ", axis.dilation, " make it ", axis.output);
    }
    if (axis.output > INT32_MAX / 2 || axis.input > INT32_MAX / 2 || axis.dilation * axis.kernel > INT32_MAX / 2) {
      refuse("height and width must stay below ", INT32_MAX / 2, ", but input ", axis.input, " gives output ",
             axis.output);
    }
  }
}

void check_output(const Problem& problem, const Tensor4& grad_output, const Sizes& given) {
  const bool fits = grad_output.size[1] == problem.out_channels && grad_output.size[2] == problem.axis[0].output &&
                    grad_output.size[3] == problem.axis[1].output;
  if (!fits) {
    refuse("grad_output must have ", problem.out_channels, " channels, height ", problem.axis[0].output, " and width ",
           problem.axis[1].output, ", but got size ", show(given));
  }
}

// Torch's rule: channels_last if either operand is; never for float64, nor where cuDNN refuses the call.
Layout choose_layout(const Problem& problem, const Tensor4& a, const Tensor4& b) {
  const bool cudnn_refuses = problem.axis[0].output_padding >= problem.axis[0].stride ||
                             problem.axis[1].output_padding >= problem.axis[1].stride;
  const bool channels_last = problem.dtype != DType::kFloat64 && !cudnn_refuses &&
                             (a.is_channels_last() || b.is_channels_last());
  return channels_last ? Layout::kChannelsLast : Layout::kContiguous;
}

}  // namespace

const char* name(Direction direction) {
  switch (direction) {
    case Direction::kForward: return "forward";
    case Direction::kGradInput: return "grad_input";
    case Direction::kGradWeight: return "grad_weight";
  }
  return "?";
}

const char* name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kOther: return "other";
  }
  return "?";
}

const char* name(Layout layout) { return layout == Layout::kChannelsLast ? "channels_last" : "contiguous"; }

int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kFloat32: return 4;
    default: return 8;
  }
}

bool Tensor4::is_channels_last() const {
  if (stride[1] == 0) return false;
  int64_t smallest = 0;
  for (int d : {1, 3, 2, 0}) {
    if (size[d] == 0 || stride[d] < smallest) return false;
    if (d == 0 && smallest == stride[1]) return false;  // N111: ambiguous, contiguous by convention
    smallest = stride[d] * std::max<int64_t>(size[d], 1);
  }
  return true;
}

Tensor4 dense(std::array<int64_t, 4> size, Layout layout) {
  static constexpr std::array<int, 4> kContiguousOrder{3, 2, 1, 0};
  static constexpr std::array<int, 4> kChannelsLastOrder{1, 3, 2, 0};
  Tensor4 out;
  out.size = size;
  int64_t step = 1;
  for (int d : layout == Layout::kChannelsLast ? kChannelsLastOrder : kContiguousOrder) {
    out.stride[d] = step;
    step *= std::max<int64_t>(size[d], 1);
  }
  return out;
}

const Tensor4& Problem::result() const {
  switch (direction) {
    case Direction::kForward: return y;
    case Direction::kGradInput: return x;
    default: return w;
  }
}

std::vector<int64_t> Problem::result_sizes() const {
  const auto& size = result().size;
  const bool drop = unbatched && direction != Direction::kGradWeight;
  return {size.begin() + (drop ? 1 : 0), size.end()};
}

std::vector<int64_t> Problem::result_strides() const {
  const auto& stride = result().stride;
  const bool drop = unbatched && direction != Direction::kGradWeight;
  return {stride.begin() + (drop ? 1 : 0), stride.end()};
}

double Problem::flops() const {
  return 2.0 * static_cast<double>(batch * in_channels) * static_cast<double>(axis[0].input * axis[1].input) *
         static_cast<double>(out_channels_per_group() * axis[0].kernel * axis[1].kernel);
}

int64_t Problem::bytes() const { return (x.numel() + w.numel() + y.numel()) * element_size(dtype); }

std::string Problem::describe() const {
  std::ostringstream text;
  text << name(direction) << ' ' << name(dtype) << (allow_tf32 ? " (TF32 allowed)" : "");
  text << " input (" << batch << ", " << in_channels << ", " << axis[0].input << ", " << axis[1].input
       << ") -> output (" << batch << ", " << out_channels << ", " << axis[0].output << ", " << axis[1].output
       << "), kernel " << axis[0].kernel << 'x' << axis[1].kernel << ", stride " << axis[0].stride << 'x'
       << axis[1].stride << ", padding " << axis[0].padding << 'x' << axis[1].padding << ", output_padding "
       << axis[0].output_padding << 'x' << axis[1].output_padding << ", dilation " << axis[0].dilation << 'x'
       << axis[1].dilation << ", groups " << groups << (has_bias ? ", bias" : "");
  return text.str();
}

Problem describe_forward(DType dtype, const TensorArg& input, const TensorArg& weight,
                         const std::optional<Sizes>& bias_size, const ConvArgs& args) {
  Problem problem;
  problem.direction = Direction::kForward;
  problem.dtype = dtype;
  read_args(problem, args);
  problem.x = batched("input", input, problem.unbatched);
  read_weight(problem, weight);
  if (problem.x.size[1] != problem.in_channels) {
    refuse("input must have ", problem.in_channels, " channels, weight's dimension 0, but got input of size ",
           show(input.size), " and weight of size ", show(weight.size));
  }
  if (bias_size && (bias_size->size() != 1 || bias_size->front() != problem.out_channels)) {
    refuse("bias must be 1-D with ", problem.out_channels, " elements, but got size ", show(*bias_size));
  }
  problem.has_bias = bias_size.has_value();
  infer_output(problem, problem.x.size[2], problem.x.size[3], "input", input.size);
  problem.batch = problem.x.size[0];
  problem.result_layout = choose_layout(problem, problem.x, problem.w);
  problem.y = dense({problem.batch, problem.out_channels, problem.axis[0].output, problem.axis[1].output},
                    problem.result_layout);
  return problem;
}

Problem describe_grad_input(DType dtype, const TensorArg& grad_output, const TensorArg& weight, const Sizes& input_size,
                            const ConvArgs& args) {
  Problem problem;
  problem.direction = Direction::kGradInput;
  problem.dtype = dtype;
  read_args(problem, args);
  problem.y = batched("grad_output", grad_output, problem.unbatched);
  read_weight(problem, weight);
  const auto extent = pair("input_size", input_size, 1);
  infer_output(problem, extent[0], extent[1], "input_size", input_size);
  check_output(problem, problem.y, grad_output.size);
  problem.batch = problem.y.size[0];
  problem.result_layout = choose_layout(problem, problem.y, problem.w);
  problem.x = dense({problem.batch, problem.in_channels, extent[0], extent[1]}, problem.result_layout);
  return problem;
}

Problem describe_grad_weight(DType dtype, const TensorArg& input, const TensorArg& grad_output,
                             const Sizes& kernel_size, const ConvArgs& args) {
  Problem problem;
  problem.direction = Direction::kGradWeight;
  problem.dtype = dtype;
  read_args(problem, args);
  bool grad_unbatched = false;
  problem.x = batched("input", input, problem.unbatched);
  problem.y = batched("grad_output", grad_output, grad_unbatched);
  const auto kernel = pair("kernel_size", kernel_size, 1);
  problem.axis[0].kernel = kernel[0];
  problem.axis[1].kernel = kernel[1];
  problem.in_channels = problem.x.size[1];
  problem.out_channels = problem.y.size[1];
  if (problem.unbatched != grad_unbatched || problem.x.size[0] != problem.y.size[0]) {
    refuse("grad_output must have input's batch size, but got input of size ", show(input.size),
           " and grad_output of size ", show(grad_output.size));
  }
  if (problem.in_channels < 1 || problem.in_channels % problem.groups != 0) {
    refuse("groups must divide input's channels, but got groups ", problem.groups, " and input of size ",
           show(input.size));
  }
  if (problem.out_channels % problem.groups != 0) {
    refuse("groups must divide grad_output's channels, but got groups ", problem.groups, " and grad_output of size ",
           show(grad_output.size));
  }
  infer_output(problem, problem.x.size[2], problem.x.size[3], "input", input.size);
  check_output(problem, problem.y, grad_output.size);
  problem.batch = problem.x.size[0];
  problem.result_layout = choose_layout(problem, problem.x, problem.y);
  problem.w = dense({problem.in_channels, problem.out_channels_per_group(), kernel[0], kernel[1]},
                    problem.result_layout);
  return problem;
}

}  // namespace deconv
