// im2col: a tensor of few channels as a matrix. The row of each pixel of a window's grid holds what all taps of all
// channels read for it; zeros outside the image and at the row's end.
#pragma once

#include "core/correlation.h"
#include "core/divisor.h"
#include "core/taps.h"
#include "device/primitives.cuh"
#include "launch/kernel_launch.cuh"
#include "lowerings/wgrad_im2col.h"

namespace deconv {

inline constexpr int kIm2colThreads = 256;

template <class T>
struct Im2colParams {
  const T* source;
  int64_t source_n, source_c, source_h, source_w;
  T* rows;  // [pixel][row]
  int row, channels, pixels;  // elements of a row; pixels of all images
  bool taps_fastest;  // in a row, else channels
  AxisGeometry window[2];
  Divisor width, height;  // of the grid
};

inline constexpr int kIm2colChunkBytes = 64;  // of a row: what a warp writes for 32 pixels at a time

// A lane reads for one pixel, so adjacent lanes read adjacent pixels. The warp writes 32 rows from shared memory, where
// the 16-byte pieces of a row are permuted so that both ways meet every bank once.
template <class T>
__global__ void __launch_bounds__(kIm2colThreads) im2col_kernel(const __grid_constant__ Im2colParams<T> p) {
#if __CUDA_ARCH__ >= 800
  start_dependents();
  constexpr int kPiece = kPackSize<T>, kPieces = kIm2colChunkBytes / 16, kAtOnce = 32 / kPieces;
  using Piece = Pack<T, kPiece>;
  // What an element of a row reads: rows, columns and elements from the pixel's own place.
  struct alignas(16) Place {
    int h, w, offset;
  };
  __shared__ Place places[kMostIm2colRow];
  __shared__ Piece chunks[kIm2colThreads][kPieces];
  constexpr int kChunk = kPieces * kPiece;
  static_assert(kMostIm2colRow % kChunk == 0, "whole chunks");
  const int kernel_w = p.window[1].kernel, taps = p.window[0].kernel * kernel_w;
  for (int i = threadIdx.x; i < (p.row + kChunk - 1) / kChunk * kChunk; i += kIm2colThreads) {
    const int channel = p.taps_fastest ? i / taps : i % p.channels;
    const int tap = p.taps_fastest ? i - channel * taps : i / p.channels, tap_h = tap / kernel_w;
    const int h = window_shift(p.window[0], tap_h), w = window_shift(p.window[1], tap - tap_h * kernel_w);
    const bool exists = channel < p.channels && tap < taps;
    const int64_t offset = channel * p.source_c + h * p.source_h + w * p.source_w;
    places[i] = exists ? Place{h, w, static_cast<int>(offset)} : Place{INT32_MIN / 2, 0, 0};
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int first_pixel = blockIdx.x * kIm2colThreads + threadIdx.x - lane, pixel = first_pixel + lane;
  const int line = p.width.quotient(pixel), image = p.height.quotient(line);
  const int of_image = line - image * static_cast<int>(p.height.divisor);
  const int h = pixel < p.pixels ? of_image * p.window[0].source_step() : INT32_MIN / 2;
  const int w = (pixel - line * static_cast<int>(p.width.divisor)) * p.window[1].source_step();
  const T* const source = p.source + image * p.source_n + h * p.source_h + w * p.source_w;
  T* const rows = p.rows + static_cast<int64_t>(first_pixel) * p.row;
  Piece(*const chunk)[kPieces] = chunks + (threadIdx.x - lane);
  const int pieces = p.row / kPiece;
  for (int begin = 0; begin < pieces; begin += kPieces) {
    Piece piece[kPieces];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const Place place = places[begin * kPiece + i];
      const bool exists = static_cast<unsigned>(h + place.h) < static_cast<unsigned>(p.window[0].source_size) &&
                          static_cast<unsigned>(w + place.w) < static_cast<unsigned>(p.window[1].source_size);
      piece[i / kPiece].value[i % kPiece] = exists ? source[place.offset] : narrow<T>(0.0f);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) chunk[lane][i ^ lane / 2 % kPieces] = piece[i];
    __syncwarp();
    const int i = lane % kPieces;
#pragma unroll
    for (int first = 0; first < 32; first += kAtOnce) {
      const int of = first + lane / kPieces;
      if (begin + i < pieces && first_pixel + of < p.pixels) {
        *reinterpret_cast<Piece*>(rows + of * p.row + (begin + i) * kPiece) = chunk[of][i ^ of / 2 % kPieces];
      }
    }
    __syncwarp();
  }
#endif
}

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
