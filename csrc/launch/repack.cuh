// Launches the kernel that rewrites a source channels_last (kernels/repack.cuh).
#pragma once

#include "../kernels/repack.cuh"
#include "../problem.h"
#include "kernel_launch.cuh"

namespace deconv {

// The first layout.size[0] images of `tensor`, which lies at `source`; layout: of the rewritten ones (repack_plan.h).
template <class T>
cudaError_t launch_repack(const Tensor4& tensor, int64_t groups, const Tensor4& layout, const T* source, T* repacked,
                          cudaStream_t stream, Start start) {
  RepackParams<T> p;
  p.source = source;
  p.source_n = tensor.stride[0];
  p.source_c = tensor.stride[1];
  p.source_line = tensor.stride[2];
  p.source_w = tensor.stride[3];
  p.repacked = repacked;
  const bool whole_image = tensor.stride[2] == layout.size[3] * tensor.stride[3];
  p.lines = static_cast<int>(whole_image ? 1 : layout.size[2]);
  p.line_pixels = static_cast<int>(whole_image ? layout.size[2] * layout.size[3] : layout.size[3]);
  p.group_channels = static_cast<int>(tensor.size[1] / groups);
  p.padded_group_channels = static_cast<int>(layout.size[1] / groups);
  p.padded_channels = static_cast<int>(layout.size[1]);
  p.tiles_pixels = (p.line_pixels + kRepackPixels<T> - 1) / kRepackPixels<T>;
  p.tiles_channels = (p.padded_channels + kRepackChannels - 1) / kRepackChannels;
  constexpr int64_t kPiece = 16 / static_cast<int64_t>(sizeof(T));
  p.whole_pieces = p.source_w == 1 && is_aligned(source, 16) && p.source_n % kPiece == 0 && p.source_c % kPiece == 0 &&
                   p.source_line % kPiece == 0 && p.line_pixels % kPiece == 0;
  const int64_t blocks = layout.size[0] * p.lines * p.tiles_pixels * p.tiles_channels;
  return launch_kernel(repack_kernel<T>, blocks, kRepackThreads, 0, stream, p, start);
}

}  // namespace deconv
