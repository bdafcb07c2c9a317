// Launches the kernel that rewrites a source channels_last (kernels/repack.cuh).
#pragma once

#include "../correlation.h"
#include "../kernels/repack.cuh"
#include "kernel_launch.cuh"

namespace deconv {

// layout: of the rewritten source, each group's channels padded to a multiple of 16 bytes.
template <class T>
cudaError_t launch_repack(const Problem& problem, const Tensor4& layout, const T* source, T* repacked,
                          cudaStream_t stream) {
  const Correlation c = correlation(problem);
  RepackParams<T> p;
  p.source = source;
  p.source_n = c.source.stride[0];
  p.source_c = c.source.stride[1];
  p.source_h = c.source.stride[2];
  p.source_w = c.source.stride[3];
  p.repacked = repacked;
  p.width = static_cast<int>(layout.size[3]);
  p.pixels = static_cast<int>(layout.size[2] * layout.size[3]);
  p.channels = static_cast<int>(c.source_channels * problem.groups);
  p.group_channels = static_cast<int>(c.source_channels);
  p.padded_group_channels = static_cast<int>(layout.size[1] / problem.groups);
  p.padded_channels = static_cast<int>(layout.size[1]);
  p.tiles_pixels = (p.pixels + kRepackTile - 1) / kRepackTile;
  p.tiles_channels = (p.channels + kRepackTile - 1) / kRepackTile;
  const int64_t blocks = layout.size[0] * p.tiles_pixels * p.tiles_channels;
  return launch_kernel(repack_kernel<T>, blocks, kRepackThreads, 0, stream, p);
}

}  // namespace deconv
