// Launcher of sub_pixel: operands to blocks, the inner plan, the result back. Skips what is in blocks already.
// instances: launch_sub_pixel(SubPixelPlan)
#include "families/launch.h"
#include "launch/kernel_launch.cuh"
#include "lowerings/sub_pixel/blocks.cuh"
#include "lowerings/sub_pixel/plan.h"
#include "lowerings/sub_pixel/sub_pixel.h"

namespace deconv {
namespace {

using sub_pixel::BlocksParams;

template <int kUnitBytes, bool kToBlocks>
cudaError_t launch_units(const Blocks& blocks, int64_t element, const void* source, void* result, cudaStream_t stream,
                         Start start) {
  const int64_t unit = kUnitBytes / element;  // elements
  const bool is_line = blocks.channels_fastest && is_line_of_channels(blocks.plain);
  const Tensor4& plain = blocks.plain;
  const int64_t line = is_line ? plain.size[1] : 1;  // a pixel's channels count as columns of one channel
  const int64_t channels = is_line ? 1 : plain.size[1];
  BlocksParams p;
  p.source = source;
  p.result = result;
  p.plain_n = plain.stride[0] / unit;
  p.plain_c = plain.stride[1] / unit;
  p.plain_h = plain.stride[2] / unit;
  p.plain_w = unit > 1 || is_line ? 1 : plain.stride[3];
  p.size_h = static_cast<int>(plain.size[2]);
  p.size_w = static_cast<int>(plain.size[3] * line / unit);
  p.height = static_cast<int>(blocks.height);
  p.width = static_cast<int>(blocks.width * line / unit);
  p.shift_h = static_cast<int>(blocks.shift_h);
  p.shift_w = static_cast<int>(blocks.shift_w * line / unit);
  p.units = static_cast<int>(blocks.elements() / unit);
  p.channels_fastest = blocks.channels_fastest && !is_line;
  p.fastest = divide_by(p.channels_fastest ? channels : p.width);
  p.middle = divide_by(p.channels_fastest ? p.width : p.height);
  p.pieces = static_cast<int>(blocks.pitch * element / sub_pixel::kPieceBytes);
  p.across = static_cast<int>(blocks.across);
  const bool turns = !kToBlocks && kUnitBytes < sub_pixel::kPieceBytes && p.across >= sub_pixel::kTransposedBlocks &&
                     p.pieces >= sub_pixel::kTransposedBlocks;
  p.log_together = turns ? sub_pixel::kLogTransposedPieces : 0;
  p.log_blocks = turns ? sub_pixel::kLogTransposedBlocks : 0;
  const int64_t piece_groups = ceil_div(p.pieces, 1 << p.log_together);
  const int64_t block_groups = ceil_div(p.across, 1 << p.log_blocks);
  p.piece_groups = divide_by(piece_groups);
  p.block_groups = divide_by(block_groups);
  p.down = divide_by(blocks.down);
  p.threads = (plain.size[0] * blocks.down * block_groups * piece_groups) << (p.log_together + p.log_blocks);
  const int64_t grid = ceil_div(p.threads, sub_pixel::kBlocksThreads);
  return launch_kernel(sub_pixel::blocks_kernel<kUnitBytes, kToBlocks>, grid, sub_pixel::kBlocksThreads, 0, stream, p,
                       start);
}

template <bool kToBlocks>
cudaError_t launch_blocks(const Blocks& blocks, DType dtype, const void* source, void* result, cudaStream_t stream,
                          Start start) {
  const int64_t element = element_size(dtype);
  int64_t unit = sub_pixel_unit(blocks, element);
  while (unit > element && !is_aligned(kToBlocks ? source : result, unit)) unit /= 2;
  switch (unit) {
    case 16: return launch_units<16, kToBlocks>(blocks, element, source, result, stream, start);
    case 8: return launch_units<8, kToBlocks>(blocks, element, source, result, stream, start);
    case 4: return launch_units<4, kToBlocks>(blocks, element, source, result, stream, start);
    default: return launch_units<2, kToBlocks>(blocks, element, source, result, stream, start);
  }
}

}  // namespace

cudaError_t launch_sub_pixel(const Problem& problem, const SubPixelPlan& plan, const Operands& operands,
                             cudaStream_t stream) {
  auto* const workspace = static_cast<unsigned char*>(operands.workspace);
  void *const output = workspace + plan.output_at, *const weight = workspace + plan.weight_at;
  Operands inner = operands;
  inner.workspace = workspace + plan.inner_at;
  Start start = Start::kAfter;
  cudaError_t error = cudaSuccess;
  const auto to_blocks = [&](const Blocks& blocks, bool in_place, const void*& operand, void* at) {
    if (in_place) return;
    if (error == cudaSuccess) error = launch_blocks<true>(blocks, problem.dtype, operand, at, stream, start);
    operand = at;
    start = Start::kEarly;
  };
  if (problem.direction != Direction::kForward) {
    to_blocks(sub_pixel_output(problem), plan.output_in_place, inner.y, output);
  }
  if (problem.direction != Direction::kGradWeight) {
    to_blocks(sub_pixel_weight(problem), plan.weight_in_place || plan.stores_plain, inner.w, weight);
  }
  if (operands.bias && !plan.stores_plain)
    to_blocks(sub_pixel_bias(problem), false, inner.bias, workspace + plan.bias_at);
  const bool in_place = problem.direction == Direction::kForward      ? plan.output_in_place
                        : problem.direction == Direction::kGradWeight ? plan.weight_in_place
                                                                      : true;
  if (!in_place && !plan.stores_plain) inner.result = problem.direction == Direction::kForward ? output : weight;
  const Problem seen = plan.stores_plain ? sub_pixel_stored_problem(problem) : sub_pixel_problem(problem);
  if (error == cudaSuccess) error = launch(seen, *plan.inner, inner, stream);
  if (error != cudaSuccess || in_place || plan.stores_plain) return error;
  const Blocks blocks = problem.direction == Direction::kForward ? sub_pixel_output(problem)
                                                                 : sub_pixel_weight(problem);
  return launch_blocks<false>(blocks, problem.dtype, inner.result, operands.result, stream, Start::kAfter);
}

}  // namespace deconv
