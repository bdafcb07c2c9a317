// Produces halos from NCHW: TMA loads raw boxes, writer warps transpose them into a halo's pixels (load_source.cuh).
//
//   raw box  [image][row][channel][column]   plan.raw_row_bytes of channels; columns of all source phases of the width
//   halo     [pixel][channel]                swizzled rows of a k_block
//
//   one thread     issues TMA into a Pipeline of raw slots
//   writer warps   16 bits: move 8x8 matrices by ldmatrix.trans and stmatrix; float32: a thread moves a pixel
#pragma once

#include "families/igemm_sm90/load_source.cuh"

namespace deconv::sm90 {

// Columns of a raw box before the halo's first: boxes begin at multiples of 16 bytes.
template <class T>
__device__ __forceinline__ int skipped_columns(const ConvParams<T>& p, const Item& item) {
  return (item.w + p.plan.origin_w) * p.axis[1].source_step() & (16 / static_cast<int>(sizeof(T)) - 1);
}
// One thread loads the raw box of channels from `channel` on by TMA.
template <class T>
__device__ __forceinline__ void copy_raw(const ConvParams<T>& p, const Item& item, int plane, int channel,
                                         uint32_t shared, uint32_t barrier) {
  barrier_arrive_expecting(barrier, p.plan.raw_bytes);
  copy_tensor(shared, &p.source_map[plane], barrier,
              (item.w + p.plan.origin_w) * p.axis[1].source_step() - skipped_columns(p, item), channel,
              item.h + p.plan.origin_h, item.n, item.group);
}

// kThreads producer threads transpose raw boxes. tf32x3: the low parts lie plan.halo_bytes behind.
template <class T, int kParts, int kRowBytes, int kThreads>
class RawSource {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kMatrices = kSize == 2;
  static constexpr int kPiece = 16 / kSize;  // channels of a 16-byte store
  static constexpr int kPlaces = (sm90_places(kSize) + kThreads - 1) / kThreads;
  static constexpr uint32_t kNowhere = ~0u;

 public:
  __device__ __forceinline__ RawSource(const ConvParams<T>& params, int thread) : p(params), thread_(thread) {}

  // Where a thread reads in a raw box and writes in the halo: the same in every box, so found once for each `skipped`.
  // float32: a place is a pixel. 16 bits: a row of an 8x8 matrix to load, and one to store; a warp moves two octets of
  // columns of 16 channels.
  struct Places {
    uint32_t raw[kPlaces], halo[kPlaces];  // bytes in the box and in the halo; kNowhere outside the halo
    int skipped = -1;  // the skipped_columns that these places assume
  };

  __device__ __forceinline__ void find_places(Places& places, int skipped) const {
    const IgemmSm90Plan& plan = p.plan;
    const int step = p.axis[1].source_step(), lane = thread_ % 32, line_bytes = plan.raw_row_bytes * plan.raw_width;
    places.skipped = skipped;
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) {
      // The line of the box, and the column or octet in it.
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

  // Transposes box `box` of a k_block. stmatrix stores a row for every lane; rows outside the halo go to `nowhere`.
  __device__ __forceinline__ void transpose(const Places& places, uint32_t raw_box, int box, uint32_t shared,
                                            uint32_t nowhere) const {
    if constexpr (kMatrices) {
      transpose_matrices(places, raw_box, box * (kSm90RawBytes / 16), shared, nowhere);
    } else if (p.plan.raw_row_bytes == kSm90RawBytes) {
      transpose_pixels<kSm90RawBytes / 16>(places, raw_box, box, shared);
    } else {
      transpose_pixels<kSm90WideRawBytes / 16>(places, raw_box, box, shared);
    }
  }

 private:
  __device__ __forceinline__ void transpose_matrices(const Places& places, uint32_t raw_box, int piece, uint32_t shared,
                                                     uint32_t nowhere) const {
    constexpr int kAhead = 4;
    const IgemmSm90Plan& plan = p.plan;
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

  // kPieces: pieces (16 bytes) of a pixel in one box.
  template <int kPieces>
  __device__ __forceinline__ void transpose_pixels(const Places& places, uint32_t raw_box, int box,
                                                   uint32_t shared) const {
    constexpr int kAhead = 2;
    const IgemmSm90Plan& plan = p.plan;
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

  // Four 8x8 matrices of 16-bit elements; lane i addresses row i % 8 of matrix i / 8, 16 bytes.
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

}  // namespace deconv::sm90
