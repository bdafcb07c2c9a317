#include "core/problem_key.h"

namespace deconv {

ProblemKey key_of(const Problem& problem, int device_index) {
  ProblemKey key{};
  size_t at = 0;
  const auto add = [&](auto value) { key[at++] = static_cast<int64_t>(value); };
  add(problem.direction);
  add(problem.dtype);
  add(problem.allow_tf32);
  add(problem.unaligned_first);
  add(problem.unaligned_second);
  for (const Axis& axis : problem.axis) {
    for (const int64_t value :
         {axis.input, axis.output, axis.kernel, axis.stride, axis.padding, axis.output_padding, axis.dilation}) {
      add(value);
    }
  }
  add(problem.batch);
  add(problem.in_channels);
  add(problem.out_channels);
  add(problem.groups);
  add(problem.has_bias);
  for (const Tensor4* tensor : {&problem.x, &problem.w, &problem.y}) {
    for (const int64_t size : tensor->size) add(size);
    for (const int64_t stride : tensor->stride) add(stride);
  }
  add(problem.result_layout);
  add(device_index);
  return key;
}

size_t ProblemKeyHash::operator()(const ProblemKey& key) const {
  uint64_t hash = 0;
  for (const int64_t value : key) hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

}  // namespace deconv
