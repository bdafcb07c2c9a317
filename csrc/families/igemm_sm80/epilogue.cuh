// igemm_sm80's epilogue: adds the bias to a warp's sums, rounds once, stores whole sectors where the strides allow.
//
//   channels adjacent   rows of operand A are permuted (channel_of_row), so a lane has 16 bytes of adjacent channels of
//                       a pixel; 16-bit types transpose 8x8 matrices in registers first
//   columns adjacent    a warp passes 8 channels at a time through shared memory and stores adjacent pixels together
//   together = 2        two phases of the width alternate in columns: the first waits in shared memory for the second,
//                       then a lane stores four adjacent columns of a channel, and four lanes whole sectors
#pragma once

#include <cstdint>
#include <type_traits>

#include "families/igemm_sm80/params.cuh"

namespace deconv::sm80 {

// A pixel of a tile in the result: elements from the tile's first pixel of the phase, and its place in the tile. n is
// kNoImage if the tile has no such pixel.
struct alignas(kSm80PlaceBytes) ResultPlace {
  int64_t offset;
  int16_t n, h;
  int w;
};
inline constexpr int kNoImage = INT16_MAX;

// Finds the places of a tile, the same for all phases and tiles. Needs a barrier before they are used.
template <class T>
__device__ __forceinline__ void find_result_places(const ConvParams<T>& p, uint32_t places) {
  for (int index = threadIdx.x; index < p.plan.tile.pixels(); index += kSm80Threads) {
    const int line = p.pixels_w.quotient(index), image = p.pixels_h.quotient(line);
    const int w = index - line * p.plan.pixels.w, h = line - image * p.plan.pixels.h;
    const int64_t offset = image * p.result_n + static_cast<int64_t>(h * p.axis[0].result_step()) * p.result_h +
                           static_cast<int64_t>(w * p.axis[1].result_step()) * p.result_w;
    const ResultPlace place{offset, static_cast<int16_t>(image < p.plan.pixels.n ? image : kNoImage),
                            static_cast<int16_t>(h), w};
    store_shared(places + index * kSm80PlaceBytes, reinterpret_cast<const uint4&>(place));
  }
}

template <class T, int kRows, int kColumns>
class Result {
 public:
  using Sums = float[kRows][kColumns][4];

  // row: the warp's first row of 16 channels in the tile; pixel: its first pixel.
  __device__ __forceinline__ Result(const ConvParams<T>& params, const Work& work, const Tile& tile, const Phase& phase,
                                    int row, int pixel, uint32_t shared)
      : p(params),
        work_(work),
        row_(row),
        pixel_(pixel),
        lane_(threadIdx.x % 32),
        left_n_(min(params.batch - tile.n, kNoImage)),
        left_h_(params.axis[0].phase_size(phase.h) - tile.h),
        left_w_(params.plan.together > 1 ? params.axis[1].result_size - tile.w * params.plan.together
                                         : params.axis[1].phase_size(phase.w) - tile.w),
        phase_w_(phase.w),
        places_(shared + params.plan.places_at),
        kept_(shared + params.plan.kept_at),
        staging_(shared + params.plan.staging_at + threadIdx.x / 32 * params.plan.staged_bytes) {
    const int first_phase = params.plan.together > 1 ? 0 : phase.w;
    first_ = work.m_tile * p.plan.tile.channels();
    base_ = p.result + tile.n * p.result_n +
            (static_cast<int64_t>(work.group) * p.result_channels + first_) * p.result_m +
            (static_cast<int64_t>(tile.h) * p.axis[0].result_step() + phase.h) * p.result_h +
            (static_cast<int64_t>(tile.w) * p.axis[1].result_step() + first_phase) * p.result_w;
  }

  __device__ __forceinline__ void store(const Sums& sums) {
    find_bias();
    if (p.result_m == 1) {
      store_channels(sums);
    } else if (phase_w_ + 1 < p.plan.together) {
      keep(sums);
    } else {
      p.plan.together > 1 ? store_alternating(sums) : store_columns(sums);
    }
  }

 private:
  struct Pixel {
    int64_t offset;
    bool exists;
  };
  __device__ __forceinline__ Pixel pixel(int index) const {
    const uint4 bits = load_shared_16(places_ + index * kSm80PlaceBytes);
    const ResultPlace place = reinterpret_cast<const ResultPlace&>(bits);
    const int exists = place.n < left_n_ & place.h < left_h_ & place.w * p.plan.together < left_w_;
    return {place.offset, exists != 0};
  }

  __device__ __forceinline__ void find_bias() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = first_ + channel_of_row<T>(row_ + i, lane_ / 4 + 8 * half);
        const bool has = p.bias != nullptr && m < p.result_channels;
        bias_[i][half] = has ? widen(p.bias[work_.group * p.result_channels + m]) : -0.0f;  // adding -0 changes nothing
      }
    }
  }
  // Element e of the sums of a row of 16 channels and 8 pixels, bias added.
  __device__ __forceinline__ float value(const Sums& sums, int row, int column, int e) const {
    return sums[row][column][e] + bias_[row][e / 2];
  }
  __device__ __forceinline__ uint32_t bits(const Sums& sums, int row, int column, int e) const {
    return __float_as_uint(value(sums, row, column, e));
  }
  __device__ __forceinline__ uint32_t pair(const Sums& sums, int row, int column, int half) const {
    return pack_pair<T>(value(sums, row, column, 2 * half), value(sums, row, column, 2 * half + 1));
  }

  // 16 bytes of adjacent channels, from channel `m` of the tile on.
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

  __device__ __forceinline__ void store_channels(const Sums& sums) const {
    static_assert(kRows % 2 == 0, "two rows of matrices share 32 channels");
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if constexpr (sizeof(T) == 2) {
        const Pixel at = pixel(pixel_ + 8 * j + lane_ / 4);
#pragma unroll
        for (int i = 0; i < kRows; i += 2) {
          uint4 pack;
#pragma unroll
          for (int q = 0; q < 4; ++q) (&pack.x)[q] = transposed(pair(sums, i + q / 2, j, q % 2));
          store_pack(at, channel_of_row<T>(row_ + i, lane_ % 4 * 2), pack);
        }
      } else {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const Pixel at = pixel(pixel_ + 8 * j + lane_ % 4 * 2 + b);
#pragma unroll
          for (int i = 0; i < kRows; i += 2) {
            const uint4 pack{bits(sums, i, j, b), bits(sums, i, j, b + 2), bits(sums, i + 1, j, b),
                             bits(sums, i + 1, j, b + 2)};
            store_pack(at, channel_of_row<T>(row_ + i, lane_ / 4), pack);
          }
        }
      }
    }
  }

  static constexpr int kPitch = sm80_staging_pitch(sizeof(T)) * 4;  // bytes from one staged channel to the next
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));  // pixels of a word
  static constexpr int kQuads = kColumns / kPerWord;  // groups of four words that a thread keeps of a row

  // Address of four words that this thread keeps of a row: the sums of 8 columns (float32), or pairs of one half of the
  // row in four times 8 columns (16-bit).
  __device__ __forceinline__ uint32_t kept(int row, int quad) const {
    return kept_ + ((row * kQuads + quad) * kSm80Threads + threadIdx.x) * 16;
  }
  __device__ __forceinline__ void keep(const Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        uint4 v;
        if constexpr (kPerWord == 2) {
          constexpr int kOfHalf = kQuads / 2;
          const int half = q / kOfHalf, j = q % kOfHalf * 4;
#pragma unroll
          for (int k = 0; k < 4; ++k) (&v.x)[k] = pair(sums, i, j + k, half);
        } else {
          v = {bits(sums, i, q, 0), bits(sums, i, q, 1), bits(sums, i, q, 2), bits(sums, i, q, 3)};
        }
        store_shared(kept(i, q), v);
      }
    }
  }

  // Interleaves with the phase kept: four adjacent columns of each channel.
  __device__ __forceinline__ void store_alternating(const Sums& sums) const {
    using Four = std::conditional_t<kPerWord == 2, uint2, uint4>;
#pragma unroll
    for (int first = 0; first < kColumns; first += 4) {
      Pixel at[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) at[k] = pixel(pixel_ + 8 * (first + k) + lane_ % 4 * 2);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int m = channel_of_row<T>(row_ + i, lane_ / 4 + 8 * half);
          asm volatile("" : "+r"(m));  // keep the compiler from holding the addresses of all channels
          const bool exists = first_ + m < p.result_channels;
          T* const of_channel = base_ + m * p.result_m;
          Four four[4];
          if constexpr (kPerWord == 2) {
            const uint4 before = load_shared_16(kept(i, half * (kQuads / 2) + first / 4));
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              const uint32_t even = (&before.x)[k], odd = pair(sums, i, first + k, half);
              four[k] = {__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632)};
            }
          } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
              const uint2 even = load_shared_8(kept(i, first + k) + half * 8);
              four[k] = {even.x, bits(sums, i, first + k, 2 * half), even.y, bits(sums, i, first + k, 2 * half + 1)};
            }
          }
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (exists && at[k].exists) *reinterpret_cast<Four*>(of_channel + at[k].offset) = four[k];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store_columns(const Sums& sums) const {
    const uint32_t to = staging_ + lane_ / 4 * kPitch;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        __syncwarp();
        stage(sums, i, half, to);
        __syncwarp();
        int m = channel_of_row<T>(row_ + i, 8 * half);
        asm volatile("" : "+r"(m));  // keep the compiler from holding the addresses of all channels
        store_staged(m);
      }
    }
  }
  // Stages eight channels, in the order of the pixels.
  __device__ __forceinline__ void stage(const Sums& sums, int row, int half, uint32_t to) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int index = 4 * j + lane_ % 4;
      if constexpr (kPerWord == 2) {
        store_shared(to + index * 4, pair(sums, row, j, half));
      } else {
        store_shared(to + index * 8, make_uint2(bits(sums, row, j, 2 * half), bits(sums, row, j, 2 * half + 1)));
      }
    }
  }

  // Stores eight channels of the warp's pixels, a word at a time; m: the first, in the tile.
  __device__ __forceinline__ void store_staged(int m) const {
    const int channels = p.result_channels - first_ - m;
    T* const of_channel = base_ + m * p.result_m;
#pragma unroll 1
    for (int word = lane_; word < kSm80WarpPixels / kPerWord; word += 32) {
      const uint32_t from = staging_ + word * 4;
      uint32_t bits[8];
#pragma unroll
      for (int g = 0; g < 8; ++g) bits[g] = load_shared(from + g * kPitch);
      const Pixel at = pixel(pixel_ + word * kPerWord);
      if (kPerWord == 1 || p.vector_result) {
        for_each_channel(of_channel + at.offset, at.exists ? channels : 0,
                         [&](int g, T* to) { *reinterpret_cast<uint32_t*>(to) = bits[g]; });
      } else {
        const Pixel second = pixel(pixel_ + word * kPerWord + 1);
        const int64_t between = second.offset - at.offset;
        for_each_channel(of_channel + at.offset, channels, [&](int g, T* to) {
          const Pack<T, kPerWord> pair = reinterpret_cast<const Pack<T, kPerWord>&>(bits[g]);
          if (at.exists) *to = pair.value[0];
          if (second.exists) to[between] = pair.value[kPerWord - 1];
        });
      }
    }
  }
  // Calls store(g, address) for each of 8 channels that exists; channels: how many the result has from `to` on.
  template <class Store>
  __device__ __forceinline__ void for_each_channel(T* to, int channels, const Store& store) const {
    int last = 0;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const int c = channel_of_row<T>(0, g);
      to += (c - last) * p.result_m;
      last = c;
      if (c < channels) store(g, to);
    }
  }

  const ConvParams<T>& p;
  const Work& work_;
  int row_, pixel_, lane_, first_;
  int left_n_, left_h_, left_w_;  // images, rows, columns from the tile's first on, of the phase or of all together
  int phase_w_;
  uint32_t places_, kept_, staging_;
  T* base_;
  float bias_[kRows][2];  // of the halves of a row
};

}  // namespace deconv::sm80
