// Launches the kernel that moves a result from the workspace to where it belongs (lowerings/unpack.cuh).
#pragma once

#include "launch/kernel_launch.cuh"
#include "lowerings/unpack.cuh"

namespace deconv {

// `images` images of `pixels` pixels: channels_last at `packed`, contiguous at `result`.
template <class T>
cudaError_t launch_unpack(const T* packed, T* result, int images, int pixels, int channels, cudaStream_t stream) {
  const auto tiles = [](int count, int of_tile) { return divide_by((count + of_tile - 1) / of_tile); };
  const UnpackParams<T> p{
      packed, result, pixels, channels, tiles(channels, kUnpackChannels), tiles(pixels, kUnpackPixels<T>)};
  const int64_t blocks = int64_t{images} * p.tiles_pixels.divisor * p.tiles_channels.divisor;
  return launch_kernel(unpack_kernel<T>, blocks, kUnpackThreads, 0, stream, p, Start::kEarly);
}

}  // namespace deconv
