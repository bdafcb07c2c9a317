// Sets the parameters that kernels of forward and grad_input share, by member name, as a correlation (core/taps.h).
#pragma once

#include "core/correlation.h"
#include "core/operands.h"

namespace deconv {

// Source, result and their strides, bias, batch, channels of a group, axes.
template <class T, class Params>
void set_images(Params& p, const Problem& problem, const Operands& operands) {
  const Correlation c = correlation(problem);
  p.source = static_cast<const T*>(problem.direction == Direction::kForward ? operands.x : operands.y);
  p.source_n = c.source.stride[0];
  p.source_c = c.source.stride[1];
  p.source_h = c.source.stride[2];
  p.source_w = c.source.stride[3];
  p.bias = static_cast<const T*>(operands.bias);
  p.result = static_cast<T*>(operands.result);
  p.result_n = c.result.stride[0];
  p.result_m = c.result.stride[1];
  p.result_h = c.result.stride[2];
  p.result_w = c.result.stride[3];
  p.batch = static_cast<int>(problem.batch);
  p.source_channels = static_cast<int>(c.source_channels);
  p.result_channels = static_cast<int>(c.result_channels);
  p.axis[0] = geometry(problem, 0);
  p.axis[1] = geometry(problem, 1);
}

// The weight and its strides; m: result channel, c: source channel, within a group.
template <class T, class Params>
void set_weight(Params& p, const Problem& problem, const Operands& operands) {
  const bool forward = problem.direction == Direction::kForward;
  p.weight = static_cast<const T*>(operands.w);
  p.weight_m = problem.w.stride[forward ? 1 : 0];
  p.weight_c = problem.w.stride[forward ? 0 : 1];
  p.weight_h = problem.w.stride[2];
  p.weight_w = problem.w.stride[3];
  p.weight_group = problem.in_channels_per_group() * problem.w.stride[0];
}

}  // namespace deconv
