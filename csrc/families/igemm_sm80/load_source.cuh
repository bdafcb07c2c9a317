// igemm_sm80's source in shared memory: the halo of a tile, one k_block of one source phase. A pixel is a row of
// sm80_row_pitch bytes; zeros outside the image and past the last channel.
//
// A table holds each pixel's offset, found once a tile; kOutside where the image has no such pixel. A block's threads
// copy kSm80PassRows pixels a pass; a thread reads its entries of kSm80TablePasses passes at once.
#pragma once

#include "families/igemm_sm80/params.cuh"

namespace deconv::sm80 {

struct Plane {
  int h = 0, w = 0;
};

// kAny: any strides. kVector: 16 bytes of adjacent channels at once. kRounded: the same, values are TF32 already.
enum class SourceKind { kAny, kVector, kRounded };

template <class T, bool kVector>
class Source {
 public:
  // table: its address in shared memory.
  __device__ __forceinline__ Source(const ConvParams<T>& params, const Work& work, uint32_t table)
      : p(params), table_(table), channels_(params.source + work.group * params.source_group) {}

  // Fills the table for a tile: for `plane`, or for all source phases if the table has room for them.
  __device__ __forceinline__ void enter(const Tile& tile, Plane plane) {
    const IgemmSm80Plan& plan = p.plan;
    const int step_h = p.axis[0].source_step(), step_w = p.axis[1].source_step();
    const int first_h = (tile.h + plan.origin_h) * step_h, first_w = (tile.w + plan.origin_w) * step_w;
    first_ = reinterpret_cast<const char*>(channels_ + tile.n * p.source_n + first_h * p.source_h +
                                           first_w * p.source_w);
    for (int i = 0; i < plan.table_planes; ++i) {
      if (plan.table_planes > 1) plane.h = p.planes_w.quotient(i), plane.w = i - plane.h * plan.planes_w;
      for (int row = threadIdx.x; row < table_rows(); row += kSm80Threads) {
        const int line = p.halo_w.quotient(row), image = p.halo_h.quotient(line);
        const int h = (line - image * plan.halo.h) * step_h + plane.h,
                  w = (row - line * plan.halo.w) * step_w + plane.w;
        const bool exists = row < rows() & tile.n + image < p.batch &
                            static_cast<unsigned>(first_h + h) < static_cast<unsigned>(p.axis[0].source_size) &
                            static_cast<unsigned>(first_w + w) < static_cast<unsigned>(p.axis[1].source_size);
        const int64_t offset = (image * p.source_n + h * p.source_h + w * p.source_w) * static_cast<int>(sizeof(T));
        store_shared(place(row, i), exists ? static_cast<uint32_t>(offset) : kOutside);
      }
    }
  }

  // By cp.async: 16 bytes of adjacent channels at once, or 4 bytes of float32.
  static constexpr bool kCopies = kVector || sizeof(T) == 4;
  __device__ __forceinline__ void copy(int chunk, Plane plane, uint32_t halo) const {
    const int channel = first_channel(chunk) + own_channel(), channels = p.source_channels - channel;
    const int pitch = sm80_row_pitch(p.plan.row_bytes), pass_bytes = kSm80PassRows * pitch;
    const int64_t channel_bytes = p.source_c * static_cast<int64_t>(sizeof(T));
    const char* const from = first_ + channel * channel_bytes;
    uint32_t to = halo + own_row() * pitch + own_channel() * static_cast<int>(sizeof(T));
    uint32_t places = place(own_row(), plane_of_table(plane));
    const bool both = p.plan.row_bytes > kSm80BandBytes && first_channel(chunk) + kBand<T> < p.source_channels;
    const int size = channels > 0 ? 16 : 0, second_size = channels > kBand<T> ? 16 : 0;
#pragma unroll 1
    for (int left = passes(); left > 0; left -= kSm80TablePasses) {
      const uint4 offsets = load_shared_16(places);
#pragma unroll
      for (int i = 0; i < kSm80TablePasses; ++i) {
        // No branches, and own registers for each copy: a copy holds its address registers for long.
        const uint32_t offset = (&offsets.x)[i], at = to + i * pass_bytes;
        const char* const pixel = from + offset;
        const bool wanted = i < left;
        if constexpr (kVector) {
          copy_16_if(wanted, at, pixel, offset != kOutside ? size : 0);
          copy_16_if(wanted & both, at + kSm80BandBytes, pixel + kSm80BandBytes, offset != kOutside ? second_size : 0);
        } else {
          const int exist = offset != kOutside ? channels : 0;
          copy_words(wanted, at, pixel, 4 * channel_bytes, exist);
          if (both) {
            copy_words(wanted, at + kSm80BandBytes, pixel + kBand<T> * channel_bytes, 4 * channel_bytes,
                       exist - kBand<T>);
          }
        }
      }
      to += kSm80TablePasses * pass_bytes;
      places += kTableStep;
    }
  }

  // Otherwise (16-bit) through registers, loads now and stores later. A unit is 16 bytes of a pixel; a warp takes one
  // piece of each band, of kSm80PassRows adjacent pixels at once.
  struct Unit {
    T value[kPiece<T>];
    uint32_t to;  // kNowhere: none
  };
  __device__ __forceinline__ int units(int bands) const { return passes() * bands; }  // of each thread
  __device__ __forceinline__ Unit load(int index, int end, int bands, int chunk, Plane plane, uint32_t halo) const {
    static_assert(kSm80PassRows == 32 && kSm80Threads / 32 * 16 == kSm80BandBytes, "a pass of a band for each thread");
    const int band = bands > 1 ? index & 1 : 0, pass = bands > 1 ? index >> 1 : index;
    const int row = pass * kSm80PassRows + threadIdx.x % 32, piece = threadIdx.x / 32;
    const int channel = first_channel(chunk) + band * kBand<T> + piece * kPiece<T>;
    const uint32_t offset = index < end ? load_shared(place(row, plane_of_table(plane))) : kOutside;
    const int channels = offset != kOutside ? p.source_channels - channel : 0;
    const T* from = reinterpret_cast<const T*>(first_ + offset) + channel * p.source_c;
    Unit unit;
    unit.to = index < end ? halo + row * sm80_row_pitch(p.plan.row_bytes) + band * kSm80BandBytes + piece * 16
                          : kNowhere;
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i, from += p.source_c) {
      unit.value[i] = i < channels ? *from : narrow<T>(0.0f);
    }
    return unit;
  }
  __device__ __forceinline__ static void store(const Unit& unit) {
    Pack<T, kPiece<T>> pack;
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i) pack.value[i] = unit.value[i];
    if (unit.to != kNowhere) store_shared(unit.to, reinterpret_cast<const uint4&>(pack));
  }

 private:
  static constexpr uint32_t kOutside = 1u << 31, kNowhere = ~0u;  // kOutside: aligned as a pixel's offset is
  static constexpr int kTableRows = kSm80PassRows * kSm80TablePasses;  // entries that a warp's loads take together
  static constexpr int kTableStep = kTableRows * kSm80OffsetBytes;

  __device__ __forceinline__ int rows() const { return static_cast<int>(p.halo_rows.divisor); }
  __device__ __forceinline__ int passes() const { return (rows() + kSm80PassRows - 1) / kSm80PassRows; }
  __device__ __forceinline__ int table_rows() const { return (rows() + kTableRows - 1) / kTableRows * kTableRows; }
  // A pixel's entry; a thread's passes are adjacent.
  __device__ __forceinline__ uint32_t place(int row, int plane) const {
    const int pass = row / kSm80PassRows;
    return table_ + plane * table_rows() * kSm80OffsetBytes + row / kTableRows * kTableStep +
           (row % kSm80PassRows * kSm80TablePasses + pass % kSm80TablePasses) * kSm80OffsetBytes;
  }
  __device__ __forceinline__ int plane_of_table(Plane plane) const {
    return p.plan.table_planes > 1 ? plane.h * p.plan.planes_w + plane.w : 0;
  }
  __device__ __forceinline__ int first_channel(int chunk) const {
    return chunk * (p.plan.row_bytes / static_cast<int>(sizeof(T)));
  }

  // Which pixel of a pass this thread copies, and which channels of a band.
  // kVector: 16 bytes, four threads a pixel; eight threads take two pixels that lie half of the banks apart.
  // Otherwise every fourth channel; a warp takes eight pixels x four channels: whole sectors of columns, and all banks.
  __device__ __forceinline__ static int own_row() {
    const int lane = threadIdx.x % 32;
    return threadIdx.x / 32 * 8 + (kVector ? lane / 4 % 2 * 4 + lane / 8 : lane % 8);
  }
  __device__ __forceinline__ static int own_channel() {
    return kVector ? threadIdx.x % 4 * kPiece<T> : threadIdx.x % 32 / 8;
  }
  __device__ __forceinline__ static void copy_words(bool wanted, uint32_t to, const char* from, int64_t step,
                                                    int exist) {
#pragma unroll
    for (int i = 0; i < kBand<T>; i += 4, from += step) copy_if<4, true>(wanted, to + 4 * i, from, i < exist);
  }

  const ConvParams<T>& p;
  uint32_t table_;
  const T* channels_;  // of the group
  const char* first_ = nullptr;  // of the halo, in source phase (0, 0); may be outside the image
};

}  // namespace deconv::sm80
