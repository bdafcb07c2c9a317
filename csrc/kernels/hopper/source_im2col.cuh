// A source of few channels as a matrix, written into swizzled shared memory: the row of a pixel holds what each tap of
// each channel reads for it (im2col), so that short sums over channels become one long one. Taps come fastest, those of
// the width first (pack_weight.cuh orders the weights so).
#pragma once

#include "source.cuh"

namespace deconv::hopper {

template <class T, int kParts, int kRowBytes, int kThreads>
class Im2colSource {
 public:
  // What place k of a row reads: so many elements from the pixel that the window hangs on, and as many pixels, height
  // in the lower half. Places without a tap are outside every image.
  static __device__ __forceinline__ void write_table(const ConvParams<T>& p, uint32_t table) {
    const int kernel_w = p.window[1].kernel, taps = p.window[0].kernel * kernel_w;
    for (int k = threadIdx.x; k < p.plan.chunks * kChunk; k += blockDim.x) {
      const int channel = k / taps, tap = k - channel * taps, tap_h = tap / kernel_w;
      const int h = shift(p.window[0], tap_h), w = shift(p.window[1], tap - tap_h * kernel_w);
      const bool exists = channel < p.window_channels;
      const int64_t offset = channel * p.source_c + h * p.source_h + w * p.source_w;
      const uint32_t at = table + k * kHopperIm2colEntryBytes;
      store_shared(at, exists ? static_cast<uint32_t>(offset) : 0);
      store_shared(at + 4, exists ? (h & 0xFFFF) | static_cast<uint32_t>(w) << 16 : 0x80008000u);
    }
  }

  __device__ __forceinline__ Im2colSource(const ConvParams<T>& params, int thread, uint32_t table)
      : p(params), thread_(thread), table_(table) {}

  // A warp reads neighbouring columns for the same place of their rows.
  __device__ __forceinline__ void load(const Item& item, int chunk, uint32_t shared) const {
    const HopperConvPlan& plan = p.plan;
    const T* const image = p.source + item.n * p.source_n +
                           static_cast<int64_t>(item.group) * p.window_channels * p.source_c;
    const int step_h = p.window[0].source_step(), step_w = p.window[1].source_step();
    const bool inside = is_inside(p.window[0], item.h, plan.halo.h) && is_inside(p.window[1], item.w, plan.halo.w) &&
                        item.n + plan.halo.n <= p.batch;
    const int places = p.source_channels - chunk * kChunk;  // of this chunk that have taps
    const uint32_t table = table_ + chunk * kChunk * kHopperIm2colEntryBytes;
    for (int index = thread_;; index += kThreads) {
      const int line = index / plan.halo.w, w = index - line * plan.halo.w;
      const int n = line / plan.halo.h, h = line - n * plan.halo.h;
      if (n >= plan.halo.n) break;
      const uint32_t row = n * plan.row.n + h * plan.row.h + w * plan.row.w;
      const int at_h = (item.h + h) * step_h, at_w = (item.w + w) * step_w;
      const T* const pixel = image + n * p.source_n + at_h * p.source_h + at_w * p.source_w;
      const Window window{pixel, item.n + n < p.batch ? at_h : kOutside, at_w};
#pragma unroll
      for (int first = 0; first < kChunk; first += kAhead) {
        uint32_t raw[kAhead / kPiece][kPiece] = {};
        const uint32_t entries = table + first * kHopperIm2colEntryBytes;
        if (inside && first + kAhead <= places) {
          read<true>(window, entries, raw);
        } else if (first < places) {
          read<false>(window, entries, raw);
        }
#pragma unroll
        for (int i = 0; i < kAhead / kPiece; ++i) {
          const uint32_t at = swizzled(row * kRowBytes + (first / kPiece + i) * 16, kRowBytes);
          store_piece<T, kParts>(shared + at, plan.halo_bytes, raw[i]);
        }
      }
    }
  }

 private:
  static constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T)), kPiece = kPackSize<T>;
  static constexpr int kAhead = 16;  // loads under way
  static constexpr int kOutside = INT32_MIN / 2;
  struct Window {
    const T* pixel;
    int h, w;
  };

  // Where tap k reads, from the pixel that the window hangs on.
  __device__ __forceinline__ static int shift(const AxisGeometry& axis, int k) {
    return axis.is_forward ? axis.padding - k * axis.dilation : k * axis.dilation - axis.padding;
  }
  // Whether all taps of `count` pixels from `first` on read pixels that exist.
  __device__ __forceinline__ static bool is_inside(const AxisGeometry& axis, int first, int count) {
    const int one = shift(axis, 0), other = shift(axis, axis.kernel - 1);
    const int begin = first * axis.source_step(), last = (first + count - 1) * axis.source_step();
    return begin + min(one, other) >= 0 && last + max(one, other) < axis.source_size;
  }

  template <bool kInside>
  __device__ __forceinline__ void read(const Window& window, uint32_t entries,
                                       uint32_t (&raw)[kAhead / kPiece][kPiece]) const {
#pragma unroll
    for (int i = 0; i < kAhead; i += 2) {
      const uint4 two = load_shared_vector(entries + i * kHopperIm2colEntryBytes);
      raw[i / kPiece][i % kPiece] = read_one<kInside>(window, two.x, two.y);
      raw[(i + 1) / kPiece][(i + 1) % kPiece] = read_one<kInside>(window, two.z, two.w);
    }
  }
  template <bool kInside>
  __device__ __forceinline__ uint32_t read_one(const Window& window, uint32_t offset, uint32_t shifts) const {
    const int h = window.h + static_cast<int16_t>(shifts), w = window.w + (static_cast<int>(shifts) >> 16);
    const bool exists = kInside || (static_cast<unsigned>(h) < static_cast<unsigned>(p.window[0].source_size) &&
                                    static_cast<unsigned>(w) < static_cast<unsigned>(p.window[1].source_size));
    return exists ? load_bits(window.pixel + static_cast<int>(offset)) : 0;
  }

  const ConvParams<T>& p;
  int thread_;
  uint32_t table_;
};

}  // namespace deconv::hopper
