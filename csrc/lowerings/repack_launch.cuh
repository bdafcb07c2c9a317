// Launches the kernel that repacks tensors (lowerings/repack.cuh).
#pragma once

#include <optional>

#include "core/problem.h"
#include "launch/kernel_launch.cuh"
#include "lowerings/repack.cuh"

namespace deconv {

// A tensor to repack, and the blocks that it takes.
template <class T>
struct Repack {
  RepackTensor<T> tensor;
  int64_t blocks;
};

// Describes the first layout.size[0] images of `tensor`, at `source`; layout: of the repacked tensor (repack.h).
template <class T>
Repack<T> describe_repack(const Tensor4& tensor, int64_t groups, const Tensor4& layout, const T* source, T* repacked) {
  RepackTensor<T> p;
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
  return {p, layout.size[0] * p.lines * p.tiles_pixels * p.tiles_channels};
}

template <class T, bool kRounds = false>
cudaError_t launch_repack(const Repack<T>& one, cudaStream_t stream, Start start) {
  const RepackParams<T, 1> p{{one.tensor}, static_cast<unsigned>(one.blocks)};
  return launch_kernel(repack_kernel<T, 1, kRounds>, one.blocks, kRepackThreads, 0, stream, p, start);
}
template <class T>
cudaError_t launch_repack(const Repack<T>& first, const Repack<T>& second, cudaStream_t stream, Start start) {
  const RepackParams<T, 2> p{{first.tensor, second.tensor}, static_cast<unsigned>(first.blocks)};
  return launch_kernel(repack_kernel<T, 2, false>, first.blocks + second.blocks, kRepackThreads, 0, stream, p, start);
}

// Repacks those operands of a grad_weight that are given, in one launch.
template <class T>
cudaError_t launch_repack(const std::optional<Repack<T>>& x, const std::optional<Repack<T>>& y, cudaStream_t stream) {
  if (x && y) return launch_repack(*x, *y, stream, Start::kAfter);
  if (x) return launch_repack(*x, stream, Start::kAfter);
  return y ? launch_repack(*y, stream, Start::kAfter) : cudaSuccess;
}

}  // namespace deconv
