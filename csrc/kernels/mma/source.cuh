// How the source comes into shared memory: the halo of a tile, one chunk of channels of one plane, a row of
// kMmaRowPitch bytes for each pixel, zeros outside the image and past the last channel.
#pragma once

#include "params.cuh"

namespace deconv::mma {

// Where a pixel of the halo lies in the source, in plane (0, 0): bytes from the group's first channel, and its place in
// the image, which is outside in every plane if the pixel is. Of grad_weight (weight_source.cuh): a pixel of a step,
// elements and rows and columns from the step's first.
struct alignas(kMmaPlaceBytes) Place {
  int64_t offset;
  int h, w;
};

struct Plane {
  int h = 0, w = 0;
};

template <class T, bool kVector>
class Source {
 public:
  __device__ __forceinline__ Source(const ConvParams<T>& params, const Work& work, Place* table)
      : p(params), table_(table), channels_(params.source + work.group * params.source_group) {}

  __device__ __forceinline__ void find_places(const Tile& tile) const {
    const int step_h = p.axis[0].source_step(), step_w = p.axis[1].source_step();
    for (int row = threadIdx.x; row < rows(); row += kMmaThreads) {
      const int line = p.halo_w.quotient(row), image = p.halo_h.quotient(line);
      const int n = tile.n + image;
      const int h = (tile.h + p.plan.origin_h + line - image * p.plan.halo.h) * step_h;
      const int w = (tile.w + p.plan.origin_w + row - line * p.plan.halo.w) * step_w;
      const int64_t offset = n * p.source_n + h * p.source_h + w * p.source_w;
      table_[row] = {offset * static_cast<int64_t>(sizeof(T)), n < p.batch ? h : -p.axis[0].source_size, w};
    }
  }

  // 16 bytes at once, 4 bytes of float32, or (16-bit) through registers. The shares of threads in asynchronous copies,
  // or in the part-th of `parts` parts through registers.
  static constexpr bool kCopies = kVector || sizeof(T) == 4;

  __device__ __forceinline__ void copy(int chunk, Plane plane, uint32_t halo) const {
    const T* const of_plane = channels_ + plane.h * p.source_h + plane.w * p.source_w;
    const int rows = this->rows();
    if constexpr (kVector) {
      constexpr int kPieces = kMmaRowBytes / 16;
      const int first = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
      const int channel = chunk * kChunk<T> + piece * kPiece<T>;
      const char* const from = reinterpret_cast<const char*>(of_plane + channel);
      const Image image = image_of(plane, channel < p.source_channels);
      constexpr int kStep = kMmaThreads / kPieces, kAhead = 4;
#pragma unroll 1
      for (int row = first; row < rows; row += kAhead * kStep) {
        Place at[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) at[i] = place(min(row + i * kStep, rows - 1));
        const uint32_t to = halo + piece * 16 + row * kMmaRowPitch;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          if (row + i * kStep < rows) {
            copy_16(to + i * kStep * kMmaRowPitch, from + at[i].offset, image.has(at[i]) ? 16 : 0);
          }
        }
      }
    } else {
      // Eight pixels and four channels a warp: whole sectors of columns, and all banks.
      constexpr int kRounds = kChunk<T> / 4;
      const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 8 + lane % 8;
      const int channel = chunk * kChunk<T> + lane / 8, channels = p.source_channels - channel;
      const char* const from = reinterpret_cast<const char*>(of_plane + channel * p.source_c);
      const int64_t step = 4 * p.source_c * static_cast<int64_t>(sizeof(T));
      const Image image = image_of(plane, true);
      uint32_t to = halo + lane / 8 * 4 + first * kMmaRowPitch;
#pragma unroll 2
      for (int row = first; row < rows; row += kMmaThreads / 4, to += kMmaThreads / 4 * kMmaRowPitch) {
        const Place at = place(row);
        const int exist = image.has(at) ? channels : 0;
#pragma unroll
        for (int i = 0; i < kRounds; ++i) copy_4(to + 16 * i, from + at.offset + i * step, 4 * i < exist ? 4 : 0);
      }
    }
  }

  // Units of 16 bytes through registers, neighbouring threads on neighbouring pixels: loads now, stores later.
  static constexpr uint32_t kNowhere = ~0u;
  struct Unit {
    T value[kPiece<T>];
    uint32_t to;  // kNowhere: none
  };
  __device__ __forceinline__ int units() const { return rows() * (kMmaRowBytes / 16); }
  __device__ __forceinline__ Unit load(int index, int chunk, Plane plane, uint32_t halo) const {
    Unit unit;
    const int piece = p.halo_rows.quotient(index), row = index - piece * rows();
    unit.to = index < units() ? halo + row * kMmaRowPitch + piece * 16 : kNowhere;
    const Place at = place(unit.to != kNowhere ? row : 0);
    const int channel = chunk * kChunk<T> + piece * kPiece<T>;
    const int channels = image_of(plane, unit.to != kNowhere).has(at) ? p.source_channels - channel : 0;
    const T* from = channels_ + plane.h * p.source_h + plane.w * p.source_w + channel * p.source_c +
                    at.offset / static_cast<int64_t>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i, from += p.source_c) unit.value[i] = i < channels ? *from : narrow<T>(0.0f);
    return unit;
  }
  __device__ __forceinline__ static void store(const Unit& unit) {
    Pack<T, kPiece<T>> pack;
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i) pack.value[i] = unit.value[i];
    if (unit.to != kNowhere) store_shared_16(unit.to, reinterpret_cast<const uint4&>(pack));
  }

 private:
  __device__ __forceinline__ int rows() const { return static_cast<int>(p.halo_rows.divisor); }
  __device__ __forceinline__ Place place(int row) const {
    const uint4 bits = *reinterpret_cast<const uint4*>(table_ + row);  // one load
    return reinterpret_cast<const Place&>(bits);
  }
  // The pixels of one plane that exist; none if not wanted.
  struct Image {
    int plane_h, plane_w;
    unsigned height, width;
    __device__ __forceinline__ bool has(const Place& at) const {
      return static_cast<unsigned>(at.h + plane_h) < height & static_cast<unsigned>(at.w + plane_w) < width;
    }
  };
  __device__ __forceinline__ Image image_of(Plane plane, bool wanted) const {
    return {plane.h, plane.w, wanted ? static_cast<unsigned>(p.axis[0].source_size) : 0u,
            static_cast<unsigned>(p.axis[1].source_size)};
  }

  const ConvParams<T>& p;
  Place* table_;
  const T* channels_;  // of the group
};

}  // namespace deconv::mma
