// The source, whatever its strides, rewritten channels_last so that TMA, or 16 bytes at a time, can bring it.
#pragma once

#include "primitives.cuh"

namespace deconv {

inline constexpr int kRepackTile = 64, kRepackThreads = 256;

template <class T>
struct RepackParams {
  const T* source;
  int64_t source_n, source_c, source_h, source_w;
  T* repacked;  // [image][pixel][padded_channels]; each group's channels begin at a multiple of padded_group_channels
  int width, pixels, channels, group_channels, padded_group_channels, padded_channels;
  int tiles_pixels, tiles_channels;
};

// A block turns kRepackTile channels of kRepackTile pixels around: reads along the pixels, writes along the channels.
template <class T>
__global__ void __launch_bounds__(kRepackThreads) repack_kernel(const __grid_constant__ RepackParams<T> p) {
#if __CUDA_ARCH__ >= 800
  constexpr int kRows = kRepackThreads / 32, kAhead = kRepackTile / kRows;
  __shared__ T tile[kRepackTile][kRepackTile + 4 / sizeof(T)];  // [channel][pixel]
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int of_image = p.tiles_pixels * p.tiles_channels, image = blockIdx.x / of_image;
  const int rest = blockIdx.x - image * of_image, tile_c = rest / p.tiles_pixels;
  const int first_pixel = (rest - tile_c * p.tiles_pixels) * kRepackTile, first_channel = tile_c * kRepackTile;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pixel = first_pixel + lane + 32 * half, h = pixel / p.width, w = pixel - h * p.width;
    const T* source = p.source + image * p.source_n + h * p.source_h + w * p.source_w;
    T value[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int channel = first_channel + row + i * kRows;
      value[i] = pixel < p.pixels && channel < p.channels ? source[channel * p.source_c] : narrow<T>(0.0f);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) tile[row + i * kRows][lane + 32 * half] = value[i];
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int channel = first_channel + lane + 32 * half;
    if (channel >= p.channels) continue;
    const int group = channel / p.group_channels;
    T* result = p.repacked + (static_cast<int64_t>(image) * p.pixels + first_pixel) * p.padded_channels +
                group * p.padded_group_channels + (channel - group * p.group_channels);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int pixel = row + i * kRows;
      if (first_pixel + pixel < p.pixels)
        result[static_cast<int64_t>(pixel) * p.padded_channels] = tile[lane + 32 * half][pixel];
    }
  }
#endif
}

}  // namespace deconv
