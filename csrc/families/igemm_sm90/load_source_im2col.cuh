// Produces im2col rows in swizzled shared memory: with few channels, short sums over channels become one over all taps.
//
//   row of a pixel q:  place k holds  source[c, what tap (h, w) reads for q],   k = (c * kernel_h + h) * kernel_w + w
//                      zeros where there is no tap, or outside the image
//
// lowerings/pack_weight.cuh orders the weights alike. Each writer warp fills some places of 32 rows; a table in shared
// memory says what a place reads.
#pragma once

#include "families/igemm_sm90/load_source.cuh"

namespace deconv::sm90 {

template <class T, int kParts, int kRowBytes, int kThreads>
class Im2colSource {
 public:
  // Writes what place k reads: bytes from the pixel that the window is anchored to, and the shift in packed coordinates
  // (pixels). Places without a tap are outside every image.
  static __device__ __forceinline__ void write_table(const ConvParams<T>& p, uint32_t table) {
    const int kernel_w = p.apart.window[1].kernel, taps = p.apart.window[0].kernel * kernel_w;
    for (int k = threadIdx.x; k < p.plan.chunks * kChunk; k += blockDim.x) {
      const int channel = k / taps, tap = k - channel * taps, tap_h = tap / kernel_w;
      const int h = window_shift(p.apart.window[0], tap_h), w = window_shift(p.apart.window[1], tap - tap_h * kernel_w);
      const bool exists = channel < p.window_channels;
      const int64_t offset = (channel * p.source_c + h * p.source_h + w * p.source_w) * kSize;
      const uint32_t at = table + k * kSm90Im2colEntryBytes;
      store_shared(at, exists ? static_cast<uint32_t>(offset) : 0);
      store_shared(at + 4, exists ? pixels(h, w) : kOutside);
    }
  }

  __device__ __forceinline__ Im2colSource(const ConvParams<T>& params, int thread, uint32_t table)
      : p(params), thread_(thread), table_(table) {}

  // A warp fills kAhead places of 32 pixels' rows at a time; one load reads one place of all of them.
  __device__ __forceinline__ void load(const Item& item, int chunk, uint32_t shared) const {
    const IgemmSm90Plan& plan = p.plan;
    const char* const image = reinterpret_cast<const char*>(
        p.source + item.n * p.source_n + static_cast<int64_t>(item.group) * p.window_channels * p.source_c);
    const int step_h = p.apart.window[0].source_step(), step_w = p.apart.window[1].source_step();
    const bool inside = is_inside(p.apart.window[0], item.h, plan.halo.h) &&
                        is_inside(p.apart.window[1], item.w, plan.halo.w) && item.n + plan.halo.n <= p.batch;
    const int places = p.source_channels - chunk * kChunk;  // of this k_block that have taps
    const int rows = plan.halo.n * plan.halo.h * plan.halo.w, units = (rows + 31) / 32 * kBatches;
    for (int unit = thread_ / 32; unit < units; unit += kThreads / 32) {
      const int first = unit % kBatches * kAhead, index = unit / kBatches * 32 + thread_ % 32;
      const int line = p.halo_w.quotient(index), w = index - line * plan.halo.w;
      const int n = p.halo_h.quotient(line), h = line - n * plan.halo.h;
      const int at_h = (item.h + h) * step_h, at_w = (item.w + w) * step_w;
      const Window window{image,
                          static_cast<uint32_t>((n * p.source_n + at_h * p.source_h + at_w * p.source_w) * kSize),
                          item.n + n < p.batch && n < plan.halo.n ? pixels(at_h, at_w) : kOutside};
      uint32_t raw[kAhead / kPiece][kPiece] = {};
      const uint32_t entries = table_ + (chunk * kChunk + first) * kSm90Im2colEntryBytes;
      if (inside && first + kAhead <= places && unit / kBatches * 32 + 32 <= rows) {
        read<true>(window, entries, raw);
      } else if (first < places) {
        read<false>(window, entries, raw);
      }
      if (n >= plan.halo.n) continue;
      const uint32_t row = n * plan.row.n + h * plan.row.h + w * plan.row.w;
#pragma unroll
      for (int i = 0; i < kAhead / kPiece; ++i) {
        const uint32_t at = swizzled(row * kRowBytes + (first / kPiece + i) * 16, kRowBytes);
        store_piece<T, kParts>(shared + at, plan.halo_bytes, raw[i]);
      }
    }
  }

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T)), kChunk = kRowBytes / kSize, kPiece = kPackSize<T>;
  static constexpr int kAhead = kSm90Im2colAhead, kBatches = kChunk / kAhead;
  static_assert(kChunk % kAhead == 0, "whole batches");

  // Two coordinates in one word, w * 2^16 + h: adding words adds both. A word's h, and with it w, is right if bit 15 is
  // zero. Images are small enough (planner.cpp) that a coordinate outside sets a bit of kSigns in the sum, or in the
  // last pixel minus the sum.
  static constexpr uint32_t kSigns = 0x80008000u, kOutside = 0xC000C000u;
  __device__ __forceinline__ static uint32_t pixels(int h, int w) { return static_cast<uint32_t>(w * 65536 + h); }

  struct Window {
    const char* image;
    uint32_t offset;  // of the pixel that it is anchored to
    uint32_t at;
  };

  // True if all taps of `count` pixels from `first` on read inside the image.
  __device__ __forceinline__ static bool is_inside(const AxisGeometry& axis, int first, int count) {
    const int one = window_shift(axis, 0), other = window_shift(axis, axis.kernel - 1);
    const int begin = first * axis.source_step(), last = (first + count - 1) * axis.source_step();
    return begin + min(one, other) >= 0 && last + max(one, other) < axis.source_size;
  }

  template <bool kInside>
  __device__ __forceinline__ void read(const Window& window, uint32_t entries,
                                       uint32_t (&raw)[kAhead / kPiece][kPiece]) const {
    const uint32_t last = pixels(p.apart.window[0].source_size - 1, p.apart.window[1].source_size - 1);
#pragma unroll
    for (int i = 0; i < kAhead; i += 2) {
      const uint4 two = load_shared_16(entries + i * kSm90Im2colEntryBytes);
      raw[i / kPiece][i % kPiece] = read_one<kInside>(window, two.x, two.y, last);
      raw[(i + 1) / kPiece][(i + 1) % kPiece] = read_one<kInside>(window, two.z, two.w, last);
    }
  }
  template <bool kInside>
  __device__ __forceinline__ uint32_t read_one(const Window& window, uint32_t offset, uint32_t shifts,
                                               uint32_t last) const {
    const uint32_t at = window.at + shifts;
    const bool exists = kInside || ((at | (last - at)) & kSigns) == 0;
    return exists ? load_bits(reinterpret_cast<const T*>(window.image + (window.offset + offset))) : 0;
  }

  const ConvParams<T>& p;
  int thread_;
  uint32_t table_;
};

}  // namespace deconv::sm90
