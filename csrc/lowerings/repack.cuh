// Rewrites one or two tensors of any strides channels_last, for TMA or 16-byte loads.
#pragma once

#include <optional>

#include "core/problem.h"
#include "device/mma_sm80.cuh"
#include "device/primitives.cuh"
#include "launch/kernel_launch.cuh"

namespace deconv {

inline constexpr int kRepackChannels = 64, kRepackThreads = 256;  // of a block
inline constexpr int kRepackRowBytes = 256;  // of a channel's pixels

template <class T>
struct RepackTensor {
  const T* source;
  int64_t source_n, source_c, source_line, source_w;
  T* repacked;  // [image][pixel][padded_channels]; each group's channels begin at a multiple of padded_group_channels
  int lines, line_pixels;  // of an image: its rows, or all of it where its rows follow each other
  int group_channels, padded_group_channels, padded_channels;
  int tiles_pixels, tiles_channels;  // of a line
  bool whole_pieces;  // columns adjacent, every piece of a line begins at a multiple of 16 bytes
};

template <class T, int kTensors>
struct RepackParams {
  RepackTensor<T> tensor[kTensors];
  unsigned first_blocks;  // of tensor[0]; those of tensor[1] follow
};

template <class T>
inline constexpr int kRepackPixels = kRepackRowBytes / static_cast<int>(sizeof(T));  // of a block

// A block transposes kRepackChannels channels of kRepackPixels pixels in shared memory. A piece is 16 bytes: pixels of
// a channel on the way in, channels of a pixel on the way out.
template <class T>
class RepackTile {
  static constexpr int kSize = static_cast<int>(sizeof(T)), kPiece = 16 / kSize;
  static constexpr int kPieces = kRepackRowBytes / 16;  // of a channel's pixels
  static constexpr int kAtOnce = kRepackThreads / kPieces;  // channels
  static constexpr int kPerThread = kRepackChannels / kAtOnce;

 public:
  static constexpr int kBytes = kRepackChannels * kRepackRowBytes;

  __device__ __forceinline__ RepackTile(const RepackTensor<T>& tensor, unsigned block, uint32_t shared)
      : p(tensor), shared_(shared) {
    unsigned rest = block;
    const auto take = [&](unsigned count) {
      const unsigned quotient = rest / count, digit = rest - quotient * count;
      rest = quotient;
      return static_cast<int>(digit);
    };
    first_channel_ = take(p.tiles_channels) * kRepackChannels;
    first_pixel_ = take(p.tiles_pixels) * kRepackPixels<T>;
    line_ = take(p.lines);
    image_ = static_cast<int>(rest);
  }

  __device__ __forceinline__ void load() const {
    const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;
    const int pixel = first_pixel_ + piece * kPiece, pixels = min(p.line_pixels - pixel, kPiece);
    const T* const line = p.source + image_ * p.source_n + line_ * p.source_line + pixel * p.source_w;
    const bool unpadded = p.group_channels == p.padded_group_channels;
    const T* source[kPerThread];
    int count[kPerThread];  // of pixels
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int padded = first_channel_ + first + i * kAtOnce;
      int channel = padded;
      count[i] = padded < p.padded_channels ? pixels : 0;
      if (!unpadded) {
        const int group = padded / p.padded_group_channels, of_group = padded - group * p.padded_group_channels;
        channel = group * p.group_channels + of_group;
        if (of_group >= p.group_channels) count[i] = 0;
      }
      source[i] = line + channel * p.source_c;
    }
    uint4 value[kPerThread];
    if (p.whole_pieces) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        value[i] = count[i] > 0 ? __ldcs(reinterpret_cast<const uint4*>(source[i])) : make_uint4(0, 0, 0, 0);
      }
    } else if (p.source_w == 1) {
      uint4 next[kPerThread];
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const int skipped = static_cast<int>(reinterpret_cast<uintptr_t>(source[i]) & 15);
        const uint4* const aligned = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(source[i]) - skipped);
        value[i] = count[i] > 0 ? __ldg(aligned) : make_uint4(0, 0, 0, 0);
        next[i] = skipped + count[i] * kSize > 16 && count[i] > 0 ? __ldg(aligned + 1) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        value[i] = shifted(value[i], next[i], static_cast<int>(reinterpret_cast<uintptr_t>(source[i]) & 15));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        T element[kPiece];
#pragma unroll
        for (int e = 0; e < kPiece; ++e) element[e] = e < count[i] ? source[i][e * p.source_w] : narrow<T>(0.0f);
        value[i] = reinterpret_cast<const uint4&>(element);
      }
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int channel = first + i * kAtOnce;
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place(channel, piece)), "r"(value[i].x),
                   "r"(value[i].y), "r"(value[i].z), "r"(value[i].w)
                   : "memory");
    }
  }

  template <bool kRounds>
  __device__ __forceinline__ void store() const {
    constexpr int kPixels = kSize == 2 ? 8 : 4;  // of a warp at once, 32 channels each
    constexpr int kWarps = kRepackThreads / 32, kUnits = kRepackPixels<T> / kPixels * 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int half = warp % 2 * 32;
    const int of_lane = kSize == 2 ? lane / 4 : lane % 4;  // pixel
    const int channel = half + (kSize == 2 ? lane % 4 * 8 : lane / 4 * 4);
    const int64_t row = (static_cast<int64_t>(image_) * p.lines + line_) * p.line_pixels + first_pixel_;
    T* const repacked = p.repacked + row * p.padded_channels + first_channel_ + channel;
    if (kSize == 4 && first_channel_ + channel >= p.padded_channels) return;
#pragma unroll
    for (int i = 0; i < kUnits / kWarps; ++i) {
      const int piece = warp / 2 + i * (kWarps / 2), pixel = piece * kPixels + of_lane;
      uint32_t v[4];
      if constexpr (kSize == 2) {
        // Rows 2 r and 2 r + 1 of matrix j are channels 8 r + 2 j and 8 r + 2 j + 1, so a lane gets 8 adjacent.
        const int from = half + lane % 8 / 2 * 8 + lane / 8 * 2 + lane % 2;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(place(from, piece))
                     : "memory");
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          asm volatile("ld.shared.b32 %0, [%1];"
                       : "=r"(v[j])
                       : "r"(place(channel + j, piece) + of_lane * 4)
                       : "memory");
          if constexpr (kRounds) v[j] = round_to_tf32(v[j]);
        }
      }
      if (first_pixel_ + pixel >= p.line_pixels || first_channel_ + channel >= p.padded_channels) continue;
      *reinterpret_cast<uint4*>(repacked + static_cast<int64_t>(pixel) * p.padded_channels) = make_uint4(v[0], v[1],
                                                                                                         v[2], v[3]);
    }
  }

 private:
  // Permutes the pieces of a row, so that both ways through shared memory meet every bank once.
  __device__ __forceinline__ uint32_t place(int channel, int piece) const {
    const int turn = kSize == 2 ? channel / 8 % 4 * 2 + channel % 2 : channel / 4 % 8;
    return shared_ + channel * kRepackRowBytes + (piece ^ turn) * 16;
  }

  // 16 bytes from byte `bytes` on of two adjacent pieces.
  __device__ __forceinline__ static uint4 shifted(uint4 a, uint4 b, int bytes) {
    uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int step = 2; step >= 1; step /= 2) {
#pragma unroll
      for (int i = 0; i + step < 8; ++i) w[i] = (bytes & 4 * step) != 0 ? w[i + step] : w[i];
    }
    if constexpr (kSize == 4) return make_uint4(w[0], w[1], w[2], w[3]);
    const int bits = bytes % 4 * 8;
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }

  const RepackTensor<T>& p;
  uint32_t shared_;
  int first_pixel_, first_channel_, line_, image_;
};

// May start early: only the stores await the kernels before, which may read the slice before. kRounds: to TF32.
template <class T, int kTensors, bool kRounds>
__global__ void __launch_bounds__(kRepackThreads) repack_kernel(const __grid_constant__ RepackParams<T, kTensors> p) {
#if __CUDA_ARCH__ >= 800
  __shared__ __align__(16) unsigned char shared[RepackTile<T>::kBytes];
  start_dependents();
  const bool second = kTensors == 2 && blockIdx.x >= p.first_blocks;
  const RepackTile<T> tile(p.tensor[second], blockIdx.x - (second ? p.first_blocks : 0), shared_address(shared));
  tile.load();
  __syncthreads();
  await_predecessors();
  tile.template store<kRounds>();
#endif
}

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
