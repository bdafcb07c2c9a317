// Launches the kernel that writes grad_output as a matrix (wgrad_im2col.cuh).
#pragma once

#include "core/correlation.h"
#include "launch/kernel_launch.cuh"
#include "lowerings/wgrad_im2col.cuh"

namespace deconv {

// Rewrites the images of `y`, at `source`, for a grad_weight; layout: of the matrix (wgrad_im2col.h).
template <class T>
cudaError_t launch_weight_im2col(const Problem& problem, const Tensor4& y, const Tensor4& layout, const T* source,
                                 T* rows, cudaStream_t stream) {
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
  for (int a = 0; a < 2; ++a) p.window[a] = geometry(problem, a);
  p.width = divide_by(problem.axis[1].input);
  p.height = divide_by(problem.axis[0].input);
  const int64_t blocks = (int64_t{p.pixels} + kIm2colThreads - 1) / kIm2colThreads;
  return launch_kernel(im2col_kernel<T>, blocks, kIm2colThreads, 0, stream, p);
}

}  // namespace deconv
