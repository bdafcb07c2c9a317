// Produces halos in swizzled shared memory. load_source_nchw.cuh transposes raw boxes instead, and
// load_source_im2col.cuh writes im2col rows.
//
//   halo: plan.halo pixels, a row each of plan.row_bytes of channels (one k_block), zeros outside the image
//   pixel (n, h, w) is row  n * plan.row.n + h * plan.row.h + w * plan.row.w
//   source phases of the width that share a halo lie plan.plane_rows rows apart
//
//   copy_halo, copy_weight*   one thread issues TMA
//   WarpSource                writer warps load any strides, or add the low parts of tf32x3
#pragma once

#include "device/tf32_split.cuh"
#include "device/tma_sm90.cuh"
#include "families/igemm_sm90/params.cuh"

namespace deconv::sm90 {

// One thread loads the whole halo by TMA (channels adjacent); `barrier` counts its bytes.
template <int kRowBytes, class T>
__device__ __forceinline__ void copy_halo(const ConvParams<T>& p, const Item& item, int plane, int chunk,
                                          uint32_t shared, uint32_t barrier) {
  const IgemmSm90Plan& plan = p.plan;
  const int h = item.h + plan.origin_h, w = item.w + plan.origin_w;
  const int channel = chunk * (kRowBytes / static_cast<int>(sizeof(T)));
  barrier_arrive_expecting(barrier, plan.halo.n * plan.halo.h * plan.halo.w * kRowBytes);
  if (plan.inner == Sm90Inner::kHeight) {
    copy_tensor(shared, &p.source_map[plane], barrier, channel, h, w, item.n, item.group);
  } else if (plan.inner == Sm90Inner::kBatch) {
    copy_tensor(shared, &p.source_map[plane], barrier, channel, item.n, w, h, item.group);
  } else {
    copy_tensor(shared, &p.source_map[plane], barrier, channel, w, h, item.n, item.group);
  }
}

// Loads the weights of one stage in place: the tap that begins `tap` elements on, all result channels of a block. The
// dimensions after the first split the result channel into the order of operand A's rows (encode_weight_map).
template <int kRowBytes, class T>
__device__ __forceinline__ void copy_weight(const ConvParams<T>& p, const Item& item, int tap, int chunk,
                                            uint32_t shared, uint32_t barrier) {
  const int channel = item.group * p.result_channels + item.m_tile * p.plan.tile_m;
  copy_tensor(shared, &p.weight_map, barrier, tap + chunk * (kRowBytes / static_cast<int>(sizeof(T))), 0, 0, 0,
              channel / kSm90PermutedChannels);
}

// The same with result channels adjacent: a row is one source channel and holds 64 result channels. Those beyond the
// group's belong to another tap or are zeros; they are never stored.
template <class T>
__device__ __forceinline__ void copy_weight_major_m(const ConvParams<T>& p, const Item& item, int tap, int chunk,
                                                    uint32_t shared, uint32_t barrier) {
  constexpr int kChunk = kSm90RowBytes / static_cast<int>(sizeof(T));
  const int channel = item.group * p.source_channels + chunk * kChunk;
  for (int m = 0; m < p.plan.tile_m; m += kSm90TileM) {
    copy_tensor(shared + m / kSm90TileM * kChunk * kSm90RowBytes, &p.weight_map, barrier,
                tap + item.m_tile * p.plan.tile_m + m, channel, 0, 0, 0);
  }
}

// Stores 16 bytes of channels, given as raw bits of T, one in a register, if wanted. tf32x3: their low parts go `low`
// bytes further on.
template <class T, int kParts>
__device__ __forceinline__ void store_piece(uint32_t address, int low, const uint32_t (&raw)[kPackSize<T>],
                                            bool wanted = true) {
  if constexpr (sizeof(T) == 2) {
    store_shared_if(
        wanted, address,
        make_uint4(raw[0] | raw[1] << 16, raw[2] | raw[3] << 16, raw[4] | raw[5] << 16, raw[6] | raw[7] << 16));
  } else {
    const uint4 value = make_uint4(raw[0], raw[1], raw[2], raw[3]);
    store_shared_if(wanted, address, kParts == 1 ? round_to_tf32(value) : value);
    if constexpr (kParts == 2) store_shared_if(wanted, address + low, low_parts(value));
  }
}

// The bits of an element.
template <class T>
__device__ __forceinline__ uint32_t load_bits(const T* pointer) {
  if constexpr (sizeof(T) == 2) {
    return __ldg(reinterpret_cast<const unsigned short*>(pointer));
  } else {
    return __ldg(reinterpret_cast<const unsigned*>(pointer));
  }
}
// The same from a global address. Inline PTX keeps the compiler from making an index of a running address, which takes
// two more instructions.
template <class T>
__device__ __forceinline__ uint32_t load_bits_at(uint64_t address) {
  if constexpr (sizeof(T) == 2) {
    uint16_t value;
    asm("ld.global.nc.u16 %0, [%1];" : "=h"(value) : "l"(address));
    return value;
  } else {
    uint32_t value;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(address));
    return value;
  }
}

// The source_phase, among those that share the halo, that begins at column `start`; -1 if no tap reads it.
template <class T>
__device__ __forceinline__ int find_plane(const ConvParams<T>& p, int start) {
  for (int i = 0; i < p.plan.halo_planes; ++i) {
    if (p.plane_start[1][i] == start) return i;
  }
  return -1;
}

// kThreads producer threads write the halo. tf32x3: the low parts lie plan.halo_bytes behind.
template <class T, int kParts, int kRowBytes, int kThreads>
class WarpSource {
 public:
  static constexpr int kChunk = kRowBytes / static_cast<int>(sizeof(T));  // channels
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(T));  // channels of a 16-byte store

  __device__ __forceinline__ WarpSource(const ConvParams<T>& params, int thread) : p(params), thread_(thread) {}

  // From global memory, any strides.
  __device__ __forceinline__ void load(const Item& item, int plane, int chunk, uint32_t shared) const {
    const int plane_h = plane / p.plan.planes_w, plane_w = plane - plane_h * p.plan.planes_w;
    const int first_channel = chunk * kChunk;
    Halo halo{p.source + item.n * p.source_n +
                  (static_cast<int64_t>(item.group) * p.source_channels + first_channel) * p.source_c,
              (item.h + p.plan.origin_h) * p.axis[0].source_step() + p.plane_start[0][plane_h],
              (item.w + p.plan.origin_w) * p.axis[1].source_step() + p.plane_start[1][plane_w],
              p.batch - item.n,
              min(p.source_channels - first_channel, kChunk),
              shared};
    if (p.plan.halo_planes > 1) {
      halo.w = (item.w + p.plan.origin_w) * p.axis[1].source_step();
      load_by_pixels<true>(halo);
    } else if (p.source_c != 1) {
      load_by_pixels<false>(halo);
    } else if (p.vector_source) {
      load_by_channels<true>(halo);
    } else {
      load_by_channels<false>(halo);
    }
  }

  // tf32x3: adds the low parts of a halo that TMA has loaded.
  __device__ __forceinline__ void add_low_parts(uint32_t shared) const {
    constexpr int kAhead = 4;
    const int pieces = p.plan.halo.n * p.plan.halo.h * p.plan.halo.w * (kRowBytes / 16);
    for (int first = thread_; first < pieces; first += kAhead * kThreads) {
      uint4 value[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) value[a] = load_shared_16(shared + min(first + a * kThreads, pieces - 1) * 16);
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const uint32_t address = shared + min(first + a * kThreads, pieces - 1) * 16;
        store_shared(address + p.plan.halo_bytes, low_parts(value[a]));
      }
    }
  }

 private:
  struct Halo {
    const T* image;    // the first image and channel
    int h, w;          // source pixel of the halo's first pixel
    int images;        // up to the end of the batch
    int channels;      // of this k_block that exist
    uint32_t shared;
  };
  struct Pixel {
    const T* pointer;
    uint32_t row;
    bool exists, wanted, inside;  // in the halo; read by a tap; in the image
  };

  __device__ __forceinline__ Pixel locate(const Halo& halo, int index) const {
    const IgemmSm90Plan& plan = p.plan;
    Pixel pixel;
    const int line = p.halo_w.quotient(index), w = index - line * plan.halo.w;
    const int n = p.halo_h.quotient(line), h = line - n * plan.halo.h;
    const int at_h = halo.h + h * p.axis[0].source_step(), at_w = halo.w + w * p.axis[1].source_step();
    pixel.exists = pixel.wanted = n < plan.halo.n;
    pixel.inside = pixel.exists && n < halo.images && at_h >= 0 && at_h < p.axis[0].source_size && at_w >= 0 &&
                   at_w < p.axis[1].source_size;
    pixel.row = n * plan.row.n + h * plan.row.h + w * plan.row.w;
    pixel.pointer = halo.image + n * p.source_n + at_h * p.source_h + at_w * p.source_w;
    return pixel;
  }
  // The same for source phases that share the halo: `index` counts columns in memory order.
  __device__ __forceinline__ Pixel locate_column(const Halo& halo, int index) const {
    const int pixel_index = p.step_w.quotient(index), start = index - pixel_index * p.axis[1].source_step();
    const int plane = find_plane(p, start);
    Halo of_plane = halo;
    of_plane.w += start;
    Pixel pixel = locate(of_plane, pixel_index);
    pixel.wanted = pixel.exists && plane >= 0;
    pixel.inside = pixel.inside && plane >= 0;
    pixel.row += max(plane, 0) * p.plan.plane_rows;
    return pixel;
  }

  __device__ __forceinline__ static uint32_t place_of(uint32_t row, int piece) {
    return swizzled(row * kRowBytes + piece * 16, kRowBytes);
  }

  // Stores kPiece channels, raw bits of T in a register each, at byte `to` of the halo.
  __device__ __forceinline__ void store_values(const Halo& halo, uint32_t to, const uint32_t (&raw)[kPiece]) const {
    store_piece<T, kParts>(halo.shared + to, p.plan.halo_bytes, raw);
  }

  // A thread loads kAhead pieces (16 bytes) of a pixel at once. A warp reads neighbouring columns of one channel, of
  // one source_phase or (kAllPlanes) of all.
  template <bool kAllPlanes>
  __device__ __forceinline__ void load_by_pixels(const Halo& halo) const {
    constexpr int kPieces = kRowBytes / 16, kAhead = 32 / kPiece;
    const int64_t channel_bytes = p.source_c * static_cast<int>(sizeof(T));
    for (int index = thread_;; index += kThreads) {
      const Pixel pixel = kAllPlanes ? locate_column(halo, index) : locate(halo, index);
      if (!pixel.exists) break;
      if (!pixel.wanted) continue;
#pragma unroll
      for (int first = 0; first < kPieces; first += kAhead) {
        uint32_t raw[kAhead][kPiece];
        uint64_t address = __cvta_generic_to_global(pixel.pointer) + first * kPiece * channel_bytes;
        const int channels = pixel.inside ? halo.channels - first * kPiece : 0;
        if (channels >= kAhead * kPiece) {
#pragma unroll
          for (int c = 0; c < kAhead * kPiece; ++c, address += channel_bytes) {
            raw[c / kPiece][c % kPiece] = load_bits_at<T>(address);
          }
        } else {
#pragma unroll
          for (int c = 0; c < kAhead * kPiece; ++c, address += channel_bytes) {
            raw[c / kPiece][c % kPiece] = c < channels ? load_bits_at<T>(address) : 0;
          }
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) store_values(halo, place_of(pixel.row, first + a), raw[a]);
      }
    }
  }

  // Channels adjacent: eight threads load the pieces of a pixel, eight or (rows of 64 bytes) four.
  template <bool kVector>
  __device__ __forceinline__ void load_by_channels(const Halo& halo) const {
    constexpr int kAhead = 4;
    const int piece = thread_ & 7, channels = halo.channels - piece * kPiece;
    for (int first = thread_ >> 3;; first += kAhead * (kThreads >> 3)) {
      Pixel pixel[kAhead];
      uint32_t raw[kAhead][kPiece];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        pixel[a] = locate(halo, first + a * (kThreads >> 3));
        const T* pointer = pixel[a].pointer + piece * kPiece;
        if constexpr (kVector) {
          const uint4 v = pixel[a].inside && channels > 0 ? __ldg(reinterpret_cast<const uint4*>(pointer))
                                                          : make_uint4(0, 0, 0, 0);
          if constexpr (sizeof(T) == 2) {
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int c = 0; c < kPiece; ++c) raw[a][c] = c & 1 ? words[c / 2] >> 16 : words[c / 2] & 0xFFFF;
          } else {
            raw[a][0] = v.x, raw[a][1] = v.y, raw[a][2] = v.z, raw[a][3] = v.w;
          }
        } else {
#pragma unroll
          for (int c = 0; c < kPiece; ++c) raw[a][c] = pixel[a].inside && c < channels ? load_bits(pointer + c) : 0;
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (pixel[a].exists && piece * 16 < kRowBytes) store_values(halo, place_of(pixel[a].row, piece), raw[a]);
      }
      if (!pixel[0].exists) break;
    }
  }

  const ConvParams<T>& p;
  int thread_;
};

}  // namespace deconv::sm90
