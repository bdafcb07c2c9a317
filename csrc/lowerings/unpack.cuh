// Transposes a result computed channels_last in the workspace to where it belongs, contiguous.
#pragma once

#include "core/divisor.h"
#include "device/primitives.cuh"
#include "launch/kernel_launch.cuh"

namespace deconv {

inline constexpr int kUnpackChannels = 64, kUnpackThreads = 256;  // of a block
inline constexpr int kUnpackRowBytes = 256;                      // of a channel's pixels

template <class T>
inline constexpr int kUnpackPixels = kUnpackRowBytes / static_cast<int>(sizeof(T));  // of a block

template <class T>
struct UnpackParams {
  const T* packed;  // [image][pixel][channel]
  T* result;  // [image][channel][pixel]
  int pixels;  // of an image
  int channels;  // whole pieces of 16 bytes
  Divisor tiles_channels, tiles_pixels;  // of an image
};

// A pixel's row of shared memory. 16-bit: even pixels first, so that lanes with every second pixel meet all banks.
template <class T>
__device__ __forceinline__ int unpack_row(int pixel) {
  return sizeof(T) == 4 ? pixel : pixel / 2 + pixel % 2 * (kUnpackPixels<T> / 2);
}

// A block transposes kUnpackChannels channels of kUnpackPixels pixels in shared memory: in, 16-byte pieces of a pixel's
// channels; out, adjacent pixels of a channel. 16-bit: a word in shared memory holds two channels; lanes make words of
// two pixels that begin where a word of the result does.
template <class T>
__global__ void __launch_bounds__(kUnpackThreads) unpack_kernel(const __grid_constant__ UnpackParams<T> p) {
  constexpr int kSize = static_cast<int>(sizeof(T)), kPiece = 16 / kSize, kPixels = kUnpackPixels<T>;
  constexpr int kPieces = kUnpackChannels / kPiece;  // of a pixel
  constexpr int kAtOnce = kUnpackThreads / kPieces, kPerThread = kPixels / kAtOnce;  // pixels
  constexpr int kWarps = kUnpackThreads / 32, kOfWord = 4 / kSize;  // kOfWord: channels, or pixels
  constexpr int kPitch = kUnpackChannels / kOfWord + 1;  // words of a pixel: adjacent pixels begin in different banks
  __shared__ uint32_t words[kPixels * kPitch];
  start_dependents();
  await_predecessors();
  const int tile = p.tiles_channels.quotient(blockIdx.x), image = p.tiles_pixels.quotient(tile);
  const int first_channel = p.tiles_channels.remainder(blockIdx.x) * kUnpackChannels;
  const int first_pixel = p.tiles_pixels.remainder(tile) * kPixels;
  const int channels = min(p.channels - first_channel, kUnpackChannels);
  const int pixels = min(p.pixels - first_pixel, kPixels);

  const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;
  const int64_t row = static_cast<int64_t>(image) * p.pixels + first_pixel;
  const T* const from = p.packed + row * p.channels + first_channel + piece * kPiece;
  uint4 value[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int pixel = first + i * kAtOnce;
    value[i] = pixel < pixels && piece * kPiece < channels
                   ? __ldcs(reinterpret_cast<const uint4*>(from + static_cast<int64_t>(pixel) * p.channels))
                   : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    uint32_t* const to = words + unpack_row<T>(first + i * kAtOnce) * kPitch + piece * 4;
    to[0] = value[i].x, to[1] = value[i].y, to[2] = value[i].z, to[3] = value[i].w;
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* const result = p.result + (static_cast<int64_t>(image) * p.channels + first_channel) * p.pixels + first_pixel;
  const auto word = [&](int pixel, int channel) { return words[unpack_row<T>(pixel) * kPitch + channel / kOfWord]; };
#pragma unroll 2
  for (int channel = warp * kOfWord; channel < channels; channel += kWarps * kOfWord) {
    T* const to = result + static_cast<int64_t>(channel) * p.pixels;
    if constexpr (kSize == 4) {
#pragma unroll
      for (int pixel = lane; pixel < kPixels; pixel += 32) {
        if (pixel < pixels) *reinterpret_cast<uint32_t*>(to + pixel) = word(pixel, channel);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPixels; i += 64) {
        const int pixel = i + 2 * lane;
        const uint32_t three[3] = {word(pixel, channel), word(pixel + 1, channel),
                                   pixel + 2 < kPixels ? word(pixel + 2, channel) : 0};
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          T* const at = to + c * p.pixels + pixel;
          const bool odd = reinterpret_cast<uintptr_t>(at) % 4 != 0;  // a word begins with the next pixel
          const uint32_t pair = __byte_perm(odd ? three[1] : three[0], odd ? three[2] : three[1], c ? 0x7632 : 0x5410);
          const Pack<T, 2> both = reinterpret_cast<const Pack<T, 2>&>(pair);
          const int count = pixels - pixel - odd;
          if (count >= 2) {
            *reinterpret_cast<Pack<T, 2>*>(at + odd) = both;
          } else if (count == 1) {
            at[odd] = both.value[0];
          }
          if (odd && pixel == 0) *at = reinterpret_cast<const Pack<T, 2>&>(three[0]).value[c];
        }
      }
    }
  }
}

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
