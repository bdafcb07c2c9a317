// Sets the parameters that kernels of grad_weight share, by member name.
#pragma once

#include "core/operands.h"
#include "core/problem.h"

namespace deconv {

// The result with its strides, and the sizes of the weight. m: input channel, n: output channel, within a group.
template <class T, class Params>
void set_weight_result(Params& p, const Problem& problem, const Operands& operands) {
  p.result = static_cast<T*>(operands.result);
  p.result_m = problem.w.stride[0];
  p.result_n = problem.w.stride[1];
  p.result_h = problem.w.stride[2];
  p.result_w = problem.w.stride[3];
  p.channels_m = static_cast<int>(problem.in_channels_per_group());
  p.channels_n = static_cast<int>(problem.out_channels_per_group());
  p.groups = static_cast<int>(problem.groups);
  p.kernel_h = static_cast<int>(problem.axis[0].kernel);
  p.kernel_w = static_cast<int>(problem.axis[1].kernel);
}

// The same, and the operands with their strides, and the geometry.
template <class T, class Params>
void set_weight_gradient(Params& p, const Problem& problem, const Operands& operands) {
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  set_weight_result<T>(p, problem, operands);
  p.x = static_cast<const T*>(operands.x);
  p.y = static_cast<const T*>(operands.y);
  p.x_n = problem.x.stride[0];
  p.x_c = problem.x.stride[1];
  p.x_h = problem.x.stride[2];
  p.x_w = problem.x.stride[3];
  p.y_n = problem.y.stride[0];
  p.y_c = problem.y.stride[1];
  p.y_h = problem.y.stride[2];
  p.y_w = problem.y.stride[3];
  p.batch = static_cast<int>(problem.batch);
  p.height = static_cast<int>(h.input);
  p.width = static_cast<int>(w.input);
  p.out_height = static_cast<int>(h.output);
  p.out_width = static_cast<int>(w.output);
  p.stride_h = static_cast<int>(h.stride);
  p.stride_w = static_cast<int>(w.stride);
  p.padding_h = static_cast<int>(h.padding);
  p.padding_w = static_cast<int>(w.padding);
  p.dilation_h = static_cast<int>(h.dilation);
  p.dilation_w = static_cast<int>(w.dilation);
}

}  // namespace deconv
