// Contiguous sources: TMA brings boxes as they lie into a ring of raw slots, and producer warps turn them into pixels
// of a halo (source.cuh). A box holds plan.raw_row_bytes of channels of all the halo's pixels, with the columns of all
// planes of the width: [image][row][channel][column].
#pragma once

#include "families/igemm_sm90/load_source.cuh"

namespace deconv::hopper {

// A raw box begins at a multiple of 16 bytes, so many columns before the halo.
template <class T>
__device__ __forceinline__ int skipped_columns(const ConvParams<T>& p, const Item& item) {
  return (item.w + p.plan.origin_w) * p.axis[1].source_step() & (16 / static_cast<int>(sizeof(T)) - 1);
}
// One thread asks for the raw box of channels from `channel` on.
template <class T>
__device__ __forceinline__ void copy_raw(const ConvParams<T>& p, const Item& item, int plane, int channel,
                                         uint32_t shared, uint32_t barrier) {
  barrier_arrive_expecting(barrier, p.plan.raw_bytes);
  copy_tensor(shared, &p.source_map[plane], barrier,
              (item.w + p.plan.origin_w) * p.axis[1].source_step() - skipped_columns(p, item), channel,
              item.h + p.plan.origin_h, item.n, item.group);
}

// A group of producer threads turns raw boxes into halos. kParts 2 writes the low parts plan.halo_bytes behind.
template <class T, int kParts, int kRowBytes, int kThreads>
class RawSource {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kMatrices = kSize == 2;
  static constexpr int kPiece = 16 / kSize;  // channels of one 16-byte store
  static constexpr int kPlaces = (hopper_places(kSize) + kThreads - 1) / kThreads;
  static constexpr uint32_t kNowhere = ~0u;

 public:
  __device__ __forceinline__ RawSource(const ConvParams<T>& params, int thread) : p(params), thread_(thread) {}

  // What a thread takes of each box lies at the same places, so these are found once, or as often as `skipped` changes.
  // float: a pixel a place. 16-bit: a row of an 8x8 matrix to load, and one to store; a warp takes two octets of
  // columns, 16 channels each.
  struct Places {
    uint32_t raw[kPlaces], halo[kPlaces];  // bytes in the box and in the halo; kNowhere outside the halo
    int skipped = -1;  // columns of the box before the halo, that these places assume
  };

  __device__ __forceinline__ void find_places(Places& places, int skipped) const {
    const HopperConvPlan& plan = p.plan;
    const int step = p.axis[1].source_step(), lane = thread_ % 32, line_bytes = plan.raw_row_bytes * plan.raw_width;
    places.skipped = skipped;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      // Which line of the box, which column of it.
      const int unit = kMatrices ? 2 * (thread_ / 32 + i * (kThreads / 32)) + lane / 16 : thread_ + i * kThreads;
      const int units_of_line = kMatrices ? plan.raw_octets : plan.halo.w * step;
      const int line = unit / units_of_line, at = unit - line * units_of_line;
      const int n = line / plan.halo.h, h = line - n * plan.halo.h;
      const int column = kMatrices ? at * 8 + lane % 8 - skipped : at;
      const int w = floor_div(column, step), plane = find_plane(p, column - w * step);
      const uint32_t row = plane * plan.plane_rows + n * plan.row.n + h * plan.row.h + w * plan.row.w;
      places.raw[i] = kMatrices ? line * line_bytes + (lane / 8 % 2 * 8 + lane % 8) * plan.raw_width * 2 + at * 16
                                : line * line_bytes + (at + skipped) * kSize;
      places.halo[i] = swizzled(row * kRowBytes, kRowBytes) ^ (kMatrices ? lane / 8 % 2 * 16 : 0);
      if (n >= plan.halo.n || w < 0 || w >= plan.halo.w || plane < 0) places.halo[i] = kNowhere;
      if (n >= plan.halo.n) places.raw[i] = 0;
    }
  }

  // Box `box` of a chunk; `nowhere` takes what no pixel needs.
  __device__ __forceinline__ void transpose(const Places& places, uint32_t raw_box, int box, uint32_t shared,
                                            uint32_t nowhere) const {
    if constexpr (kMatrices) {
      transpose_matrices(places, raw_box, box * (kHopperRawBytes / 16), shared, nowhere);
    } else if (p.plan.raw_row_bytes == kHopperRawBytes) {
      transpose_pixels<kHopperRawBytes / 16>(places, raw_box, box, shared);
    } else {
      transpose_pixels<kHopperWideRawBytes / 16>(places, raw_box, box, shared);
    }
  }

 private:
  __device__ __forceinline__ void transpose_matrices(const Places& places, uint32_t raw_box, int piece, uint32_t shared,
                                                     uint32_t nowhere) const {
    constexpr int kAhead = 4;
    const HopperConvPlan& plan = p.plan;
    const int pairs = (plan.halo.n * plan.halo.h * plan.raw_octets + 1) / 2;
    int left = pairs - __shfl_sync(~0u, thread_ / 32, 0);  // until this warp's last pair
#pragma unroll
    for (int first = 0; first < kPlaces; first += kAhead, left -= kAhead * (kThreads / 32)) {
      if (left <= 0) break;
      Matrices m[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (a * (kThreads / 32) < left) m[a] = load_transposed(raw_box + places.raw[first + a]);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t to = places.halo[first + a];
        if (a * (kThreads / 32) < left) store_matrices(to == kNowhere ? nowhere : shared + (to ^ piece * 16), m[a]);
      }
    }
  }

  // kPieces: of a pixel, in one box.
  template <int kPieces>
  __device__ __forceinline__ void transpose_pixels(const Places& places, uint32_t raw_box, int box,
                                                   uint32_t shared) const {
    constexpr int kAhead = 2;
    const HopperConvPlan& plan = p.plan;
    const int pixels = plan.halo.n * plan.halo.h * plan.halo.w * p.axis[1].source_step();
    const uint32_t channel_bytes = plan.raw_width * kSize;
#pragma unroll
    for (int first = 0; first < kPlaces; first += kAhead) {
      if (first * kThreads >= pixels) break;
      uint32_t raw[kAhead][kPieces][kPiece];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        uint32_t address = raw_box + places.raw[first + a];
#pragma unroll
        for (int c = 0; c < kPieces * kPiece; ++c, address += channel_bytes) {
          raw[a][c / kPiece][c % kPiece] = load_shared(address);
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t to = places.halo[first + a];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          store_piece<T, kParts>(shared + (to ^ (box * kPieces + i) * 16), plan.halo_bytes, raw[a][i], to != kNowhere);
        }
      }
    }
  }

  // Four 8x8 matrices of 16-bit elements; each lane names a row of 16 bytes.
  struct Matrices {
    uint32_t value[4];
  };
  __device__ __forceinline__ static Matrices load_transposed(uint32_t address) {
    Matrices m;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m.value[0]), "=r"(m.value[1]), "=r"(m.value[2]), "=r"(m.value[3])
                 : "r"(address)
                 : "memory");
    return m;
  }
  __device__ __forceinline__ static void store_matrices(uint32_t address, const Matrices& m) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m.value[0]),
                 "r"(m.value[1]), "r"(m.value[2]), "r"(m.value[3])
                 : "memory");
  }

  const ConvParams<T>& p;
  int thread_;
};

}  // namespace deconv::hopper
