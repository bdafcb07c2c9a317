// Launches the kernel that writes grad_output as a matrix (kernels/im2col.cuh).
#pragma once

#include "../kernels/im2col.cuh"
#include "../problem.h"
#include "kernel_launch.cuh"

namespace deconv {

// The images of `y`, which lie at `source`, for a grad_weight; layout: of the matrix (weight_im2col.h).
template <class T>
cudaError_t launch_weight_im2col(const Problem& problem, const Tensor4& y, const Tensor4& layout, const T* source,
                                 T* rows, cudaStream_t stream) {
  const Axis &h = problem.axis[0], &w = problem.axis[1];
  Im2colParams<T> p;
  p.source = source;
  p.source_n = y.stride[0];
  p.source_c = y.stride[1];
  p.source_h = y.stride[2];
  p.source_w = y.stride[3];
  p.rows = rows;
  p.row = static_cast<int>(layout.size[1]);
  p.channels = static_cast<int>(problem.w.size[1]);
  p.pixels = static_cast<int>(layout.size[0] * layout.size[2] * layout.size[3]);
  p.taps_fastest = im2col_taps_fastest(problem);
  p.source_height = static_cast<int>(h.output);
  p.source_width = static_cast<int>(w.output);
  p.kernel_w = static_cast<int>(w.kernel);
  p.taps = static_cast<int>(h.kernel * w.kernel);
  p.stride_h = static_cast<int>(h.stride);
  p.stride_w = static_cast<int>(w.stride);
  p.padding_h = static_cast<int>(h.padding);
  p.padding_w = static_cast<int>(w.padding);
  p.dilation_h = static_cast<int>(h.dilation);
  p.dilation_w = static_cast<int>(w.dilation);
  p.width = divide_by(w.input);
  p.height = divide_by(h.input);
  const int64_t blocks = (int64_t{p.pixels} + kIm2colThreads - 1) / kIm2colThreads;
  return launch_kernel(im2col_kernel<T>, blocks, kIm2colThreads, 0, stream, p);
}

}  // namespace deconv
