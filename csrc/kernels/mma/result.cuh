// From a warp's sums to the result: bias, one rounding, and stores of whole sectors where the strides allow.
//
// Channels adjacent: rows of operand A are permuted (channel_of_row), so that a lane holds 16 bytes of neighbouring
// channels of a pixel; of 16-bit types after the 8x8 matrices are transposed in registers. Else a warp passes 16
// channels at a time through shared memory and stores neighbouring pixels together.
#pragma once

#include "params.cuh"

namespace deconv::mma {

template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  const Pack<T, 2> pair{narrow<T>(low), narrow<T>(high)};
  return reinterpret_cast<const uint32_t&>(pair);
}

template <class T, int kRows, int kColumns>
class Result {
 public:
  using Sums = float[kRows][kColumns][4];

  // row: the warp's first of the tile's rows of 16 channels; pixel: its first pixel; shared: its staging area.
  __device__ __forceinline__ Result(const ConvParams<T>& params, const Work& work, const Tile& tile, const Phase& phase,
                                    int row, int pixel, uint32_t shared)
      : p(params),
        work_(work),
        tile_(tile),
        phase_(phase),
        row_(row),
        pixel_(pixel),
        lane_(threadIdx.x % 32),
        shared_(shared) {
    first_ = work.m_tile * p.plan.tile.channels();
    base_ = p.result + tile.n * p.result_n +
            (static_cast<int64_t>(work.group) * p.result_channels + first_) * p.result_m +
            (static_cast<int64_t>(tile.h) * p.axis[0].result_step() + phase.h) * p.result_h +
            (static_cast<int64_t>(tile.w) * p.axis[1].result_step() + phase.w) * p.result_w;
  }

  __device__ __forceinline__ void store(Sums& sums) const {
    add_bias(sums);
    if (p.result_m == 1) {
      store_channels(sums);
    } else {
      store_columns(sums);
    }
  }

 private:
  struct Pixel {
    int64_t offset;
    bool exists;
  };
  __device__ __forceinline__ Pixel pixel(int index) const {
    const int line = p.pixels_w.quotient(index), image = p.pixels_h.quotient(line);
    const int w = index - line * p.plan.pixels.w, h = line - image * p.plan.pixels.h;
    return {image * p.result_n + static_cast<int64_t>(h * p.axis[0].result_step()) * p.result_h +
                static_cast<int64_t>(w * p.axis[1].result_step()) * p.result_w,
            image < p.plan.pixels.n && tile_.n + image < p.batch && tile_.h + h < p.axis[0].phase_size(phase_.h) &&
                tile_.w + w < p.axis[1].phase_size(phase_.w)};
  }

  __device__ __forceinline__ void add_bias(Sums& sums) const {
    if (p.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = first_ + channel_of_row<T>(row_ + i, lane_ / 4 + 8 * half);
        const float bias = m < p.result_channels ? widen(p.bias[work_.group * p.result_channels + m]) : 0.0f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          sums[i][j][2 * half] += bias;
          sums[i][j][2 * half + 1] += bias;
        }
      }
    }
  }

  // 16 bytes of neighbouring channels from `m` of the tile on.
  __device__ __forceinline__ void store_pack(const Pixel& at, int m, uint4 bits) const {
    T* const to = base_ + at.offset + m;
    const int channels = at.exists ? p.result_channels - first_ - m : 0;
    if (p.vector_result) {
      if (channels > 0) *reinterpret_cast<uint4*>(to) = bits;
    } else {
      const Pack<T, kPiece<T>> values = reinterpret_cast<const Pack<T, kPiece<T>>&>(bits);
#pragma unroll
      for (int c = 0; c < kPiece<T>; ++c) {
        if (c < channels) to[c] = values.value[c];
      }
    }
  }

  __device__ __forceinline__ void store_channels(Sums& sums) const {
    static_assert(kRows % 2 == 0, "two rows of matrices share 32 channels");
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if constexpr (sizeof(T) == 2) {
        const Pixel at = pixel(pixel_ + 8 * j + lane_ / 4);
#pragma unroll
        for (int i = 0; i < kRows; i += 2) {
          uint4 bits;
#pragma unroll
          for (int q = 0; q < 4; ++q) {
            const float* s = sums[i + q / 2][j] + q % 2 * 2;
            (&bits.x)[q] = transposed(pack_pair<T>(s[0], s[1]));
          }
          store_pack(at, channel_of_row<T>(row_ + i, lane_ % 4 * 2), bits);
        }
      } else {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const Pixel at = pixel(pixel_ + 8 * j + lane_ % 4 * 2 + b);
#pragma unroll
          for (int i = 0; i < kRows; i += 2) {
            const uint4 bits{__float_as_uint(sums[i][j][b]), __float_as_uint(sums[i][j][b + 2]),
                             __float_as_uint(sums[i + 1][j][b]), __float_as_uint(sums[i + 1][j][b + 2])};
            store_pack(at, channel_of_row<T>(row_ + i, lane_ / 4), bits);
          }
        }
      }
    }
  }

  static constexpr int kPitch = mma_staging_pitch(sizeof(T));  // words: four or eight lanes' columns further in banks

  __device__ __forceinline__ void store_columns(Sums& sums) const {
    constexpr bool kShort = sizeof(T) == 2;
    // A lane stores two pixels of each channel: neighbours where they share a word, else 32 apart.
    const Pixel at[2] = {pixel(pixel_ + (kShort ? 2 * lane_ : lane_)),
                         pixel(pixel_ + (kShort ? 2 * lane_ + 1 : lane_ + 32))};
    T* const to[2] = {base_ + at[0].offset, base_ + at[1].offset};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const uint32_t row = shared_ + (lane_ / 4 + 8 * half) * kPitch * 4;
          const float* s = sums[i][j] + 2 * half;
          if constexpr (kShort) {
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + (4 * j + lane_ % 4) * 4), "r"(pack_pair<T>(s[0], s[1]))
                         : "memory");
          } else {
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(row + (8 * j + 2 * (lane_ % 4)) * 4), "f"(s[0]),
                         "f"(s[1])
                         : "memory");
          }
        }
      }
      __syncwarp();
#pragma unroll 4
      for (int row = 0; row < 16; ++row) {
        const int m = channel_of_row<T>(row_ + i, row);
        if (first_ + m >= p.result_channels) continue;
        const uint32_t from = shared_ + (row * kPitch + lane_) * 4;
        uint32_t bits[2];
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits[0]) : "r"(from) : "memory");
        if constexpr (kShort) {
          const Pack<T, 2> pair = reinterpret_cast<const Pack<T, 2>&>(bits[0]);
          if (p.vector_result) {
            if (at[0].exists) *reinterpret_cast<uint32_t*>(to[0] + m * p.result_m) = bits[0];
          } else {
            if (at[0].exists) to[0][m * p.result_m] = pair.value[0];
            if (at[1].exists) to[1][m * p.result_m] = pair.value[1];
          }
        } else {
          asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits[1]) : "r"(from + 32 * 4) : "memory");
          if (at[0].exists) to[0][m * p.result_m] = __uint_as_float(bits[0]);
          if (at[1].exists) to[1][m * p.result_m] = __uint_as_float(bits[1]);
        }
      }
    }
  }

  const ConvParams<T>& p;
  const Work& work_;
  const Tile& tile_;
  const Phase& phase_;
  int row_, pixel_, lane_, first_;
  uint32_t shared_;
  T* base_;
};

}  // namespace deconv::mma
