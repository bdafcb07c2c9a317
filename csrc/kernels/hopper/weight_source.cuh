// grad_weight on tensor cores, the part that brings the operands: one row of a strip (hopper_weight_plan.h) of the
// input, and those rows of grad_output that it is the first to need.
//
// The input's tile is what wgmma takes as operand B: 128-byte swizzled rows of pixels, a row an input channel, in
// blocks of 128 bytes of pixels; or (plan.channels) rows of 64 channels, a row a pixel. grad_output lies unswizzled, in
// a ring of rows: each warpgroup gathers its operand A from there (weight.cuh), so any stride and dilation will do.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "../../divisor.h"
#include "../../hopper_plan.h"
#include "../../hopper_weight_plan.h"
#include "../primitives.cuh"
#include "async.cuh"
#include "split.cuh"

namespace deconv::hopper {

template <class T>
struct WeightParams {
  const T* x;  // (batch, groups * channels_m, height, width), any strides
  const T* y;  // grad_output (batch, groups * channels_n, out height, out width)
  T* result;  // (groups * channels_m, channels_n, kernel height, kernel width)
  float* partial;  // (splits, groups, taps, n, m), n and m padded to whole tiles; null without splits
  int64_t x_n, x_c, x_h, x_w;
  int64_t y_n, y_c, y_h, y_w;
  int64_t result_m, result_n, result_h, result_w;
  int batch, height, width, out_height, out_width;
  int channels_m, channels_n, groups;
  int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  Divisor strip_steps, tiles_w, image_octets, x_pieces;  // x_pieces: 16-byte pieces of a channel's pixels
  Divisor y_image_units;  // loads of a channel's row of one image
  Divisor y_pieces;  // loads of a column
  int x_at_once, y_at_once;  // channels (x) and columns (y) that a warp's one load reaches
  int pixel_pitch;  // bytes from a pixel's staged column to the next one's
  int octet_at[kHopperWeightOctets];  // bytes from a step's first pixel to an octet's first in a staged row
  HopperWeightPlan plan;
};

// What one block computes: a tile of input channels, output channels and taps, over a range of steps.
struct WeightTile {
  int group, m, n;  // first channels within the group
  int first_tap;
  int64_t begin, end;  // steps
  int split;
};

// The rows of grad_output behind the taps of one block: kh from first_kh on, `span` rows a step, `advance` new ones.
struct RowWalk {
  int first_kh, span, advance;
};

template <class T>
__device__ __forceinline__ WeightTile find_weight_tile(const WeightParams<T>& p) {
  const HopperWeightPlan& plan = p.plan;
  unsigned rest = blockIdx.x;
  const auto take = [&](unsigned count) {
    const unsigned quotient = rest / count, digit = rest - quotient * count;
    rest = quotient;
    return static_cast<int>(digit);
  };
  WeightTile tile;
  tile.first_tap = take(plan.blocks_tap) * plan.block_taps;
  tile.n = take(plan.blocks_n) * plan.y_channels;
  tile.m = take(plan.blocks_m) * plan.tile.n;
  tile.group = take(p.groups);
  tile.split = static_cast<int>(rest);
  tile.begin = tile.split * plan.steps_per_split;
  tile.end = min(tile.begin + plan.steps_per_split, plan.steps);
  return tile;
}

template <class T>
__device__ __forceinline__ RowWalk find_rows(const WeightParams<T>& p, const WeightTile& tile) {
  const int last = min(tile.first_tap + p.plan.block_taps, p.kernel_h * p.kernel_w) - 1;
  RowWalk rows;
  rows.first_kh = tile.first_tap / p.kernel_w;
  rows.span = (last / p.kernel_w - rows.first_kh) * p.dilation_h + 1;
  rows.advance = min(p.stride_h, rows.span);
  return rows;
}

// Where one step's pixels lie.
struct WeightStep {
  int image, row, column;  // of the input: the first image, the row, the first column
};
template <class T>
__device__ __forceinline__ WeightStep find_step(const WeightParams<T>& p, int step) {
  const int strip = p.strip_steps.quotient(step);
  const int images = p.tiles_w.quotient(strip);
  return {images * p.plan.images, step - strip * p.height, (strip - images * p.plan.tiles_w) * 8 * p.plan.image_octets};
}

// kWarps warps bring one step together, this is number `warp`. Index arithmetic is done once a row; loops over channels
// or pixels only add to pointers, but for blocks that are turned.
template <class T, int kN, int kParts, bool kAdjacent, int kWarps>
class WeightSource {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPiece = 16 / kSize;  // elements
  static_assert(kWarps == 1 || kSize == 4, "16-bit inputs are brought by one warp a step");

 public:
  __device__ __forceinline__ WeightSource(const WeightParams<T>& params, const WeightTile& tile, const RowWalk& rows,
                                          int warp, int lane)
      : p(params),
        plan(params.plan),
        rows_(rows),
        warp_(warp),
        lane_(lane),
        x_(params.x + (static_cast<int64_t>(tile.group) * params.channels_m + tile.m) * params.x_c),
        y_(params.y + (static_cast<int64_t>(tile.group) * params.channels_n + tile.n) * params.y_c),
        channels_m_(min(params.channels_m - tile.m, kN)),
        channels_n_(min(params.channels_n - tile.n, plan.y_channels)) {}

  // The rows of grad_output from `first` on, of a step's rows; the first goes to row `slot` of the ring at `shared`.
  __device__ __forceinline__ void load_rows(const WeightStep& step, int first, int slot, uint32_t shared) const {
    const int top = step.row * p.stride_h - p.padding_h + rows_.first_kh * p.dilation_h;
    for (int row = first; row < rows_.span; ++row) {
      const uint32_t to = shared + slot * plan.y_row_bytes;
      if (plan.channels) {
        plan.y_piece == 16 ? load_columns<16>(step, top + row, to) : load_columns<kSize>(step, top + row, to);
      } else if (plan.y_piece == 16) {
        load_row<16>(step, top + row, to);
      } else if (plan.y_piece == 4) {
        load_row<4>(step, top + row, to);
      } else {
        load_row<kSize>(step, top + row, to);
      }
      if (++slot == plan.y_rows) slot = 0;
    }
  }

  // The row of the input.
  __device__ __forceinline__ void load_input(const WeightStep& step, uint32_t shared) const {
    if constexpr (kAdjacent) {
      if constexpr (kSize == 2) {
        load_pixels(step, shared);
      } else {
        load_blocks(step, shared);
      }
    } else if constexpr (kSize == 4) {
      load_channels_float(step, shared);
    } else {
      load_channels(step, shared);
    }
  }

  // What landed becomes what tensor cores take: float32 rounded to TF32, or split, and turned around. Each lane sees to
  // what it loaded, or the warp to what its lanes did.
  __device__ __forceinline__ void finish_input(const WeightStep& step, uint32_t shared) const {
    if constexpr (kSize == 4 && kAdjacent) {
      turn_blocks(shared);
    } else if constexpr (kSize == 4) {
      for_pieces(step, shared, [&](uint32_t at, const T*, int) { store_operand(at, load_shared_vector(at)); });
    }
  }

 private:
  __device__ __forceinline__ const T* pixel(const WeightStep& step, int image, int column) const {
    return x_ + (step.image + image) * p.x_n + step.row * p.x_h + column * p.x_w;
  }

  // What a lane takes of rows of pieces: every `step`-th row from `first` on, from piece `piece` on. Lanes left over
  // take nothing.
  struct Share {
    int first, step, piece;
    bool is_empty;
  };
  __device__ __forceinline__ Share share_of(const Divisor& pieces, int rows_of_warp) const {
    const int row = pieces.quotient(lane_);
    return {warp_ * rows_of_warp + row, kWarps * rows_of_warp, lane_ - row * static_cast<int>(pieces.divisor),
            row >= rows_of_warp};
  }

  // kBytes to shared memory, of which `bytes` exist; the others become zero.
  template <int kBytes>
  __device__ __forceinline__ static void copy(uint32_t to, const T* from, int bytes) {
    if constexpr (kBytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    }
  }

  // Pieces of kBytes, `count` of them, each `from_step` elements and `to_step` bytes after the one before.
  template <int kBytes>
  __device__ __forceinline__ static void copy_line(uint32_t to, int to_step, const T* from, int64_t from_step,
                                                   int bytes, int count) {
    if constexpr (kBytes >= 4) {
#pragma unroll 4
      for (int i = 0; i < count; ++i, to += to_step, from += from_step) copy<kBytes>(to, from, bytes);
    } else {  // through registers, many at once
      constexpr int kAhead = 16;
      for (int first = 0; first < count; first += kAhead) {
        unsigned short bits[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i, from += from_step) {
          bits[i] = bytes > 0 && first + i < count ? *reinterpret_cast<const unsigned short*>(from) : 0;
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i, to += to_step) {
          if (first + i < count) store_shared_short(to, bits[i]);
        }
      }
    }
  }

  // One row of grad_output, channels as rows: a lane takes pieces of kBytes of every channel.
  template <int kBytes>
  __device__ __forceinline__ void load_row(const WeightStep& step, int row, uint32_t shared) const {
    constexpr int kCount = kBytes / kSize;
    const bool inside = row >= 0 && row < p.out_height;
    const int per_image = plan.y_columns / kCount;
    const int left = step.column * p.stride_w - p.padding_w - plan.y_lead;
    for (int at = lane_; at < plan.images * per_image; at += 32) {
      const int image = p.y_image_units.quotient(at), column = left + (at - image * per_image) * kCount;
      const bool exists = inside && column >= 0 && step.image + image < p.batch;
      const int count = exists ? max(0, min(kCount, p.out_width - column)) : 0;
      const T* from = count > 0 ? y_ + (step.image + image) * p.y_n + row * p.y_h + column * p.y_w : p.y;
      // Every kWarps-th channel.
      const int64_t step_c = count > 0 ? p.y_c : 0;
      copy_line<kBytes>(shared + at * kBytes + warp_ * plan.y_channel_pitch, kWarps * plan.y_channel_pitch,
                        from + warp_ * step_c, kWarps * step_c, count * kSize,
                        (channels_n_ - warp_ + kWarps - 1) / kWarps);
    }
  }

  // One row of grad_output, columns as rows: neighbouring lanes take a column's channels. Columns that are a stride
  // apart lie next to each other. Not by share_of: with it contiguous layers took up to a third longer, for registers.
  template <int kBytes>
  __device__ __forceinline__ void load_columns(const WeightStep& step, int row, uint32_t shared) const {
    constexpr int kCount = kBytes / kSize;
    const int pieces = p.y_pieces.divisor, at_once = kWarps * p.y_at_once, of_warp = p.y_pieces.quotient(lane_);
    if (of_warp >= p.y_at_once) return;
    const int first = warp_ * p.y_at_once + of_warp;
    const bool inside = row >= 0 && row < p.out_height;
    const int left = step.column * p.stride_w - p.padding_w + first * p.stride_w;
    const int to_step = at_once * plan.y_column_pitch, column_step = at_once * p.stride_w;
    const int64_t from_step = column_step * p.y_w;
    for (int piece = lane_ - of_warp * pieces; piece < pieces; piece += 32) {
      const int channel = piece * kCount, bytes = max(0, min(kCount, channels_n_ - channel)) * kSize;
      for (int image = 0; image < plan.images; ++image) {
        const unsigned columns = inside && step.image + image < p.batch && bytes > 0 ? p.out_width : 0;
        const T* line = y_ + (step.image + image) * p.y_n + row * p.y_h + left * p.y_w + channel * p.y_c;
        uint32_t to = shared + (image * plan.y_columns + first) * plan.y_column_pitch + channel * kSize;
        for (int phase = 0; phase < p.stride_w; ++phase) {
          uint32_t at = to;
          int column = left + phase;
          const T* from = line;
#pragma unroll 4
          for (int i = first; i < plan.y_phase_columns; i += at_once) {
            const bool exists = static_cast<unsigned>(column) < columns;
            if constexpr (kBytes >= 4) {
              copy<kBytes>(at, exists ? from : p.y, exists ? bytes : 0);
            } else {
              const unsigned short bits = exists ? *reinterpret_cast<const unsigned short*>(from) : 0;
              asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(bits) : "memory");
            }
            at += to_step;
            column += column_step;
            from += from_step;
          }
          to += plan.y_phase_columns * plan.y_column_pitch;
          line += p.y_w;
        }
      }
    }
  }

  // The input, pixels as rows of 64 channels: the pieces of a row are swizzled.
  __device__ __forceinline__ void load_pixels(const WeightStep& step, uint32_t shared) const {
    constexpr int kPixel = kN / kPiece, kAtOnce = 32 / kPixel;
    const int channel = lane_ % kPixel * kPiece, first = lane_ / kPixel;
    const int count = max(0, min(kPiece, channels_m_ - channel));
    const uint32_t rows = shared + channel / 64 * plan.x_rows_bytes;
    for (int image = 0, octet = 0; octet < plan.octets; ++image, octet += plan.image_octets) {
      const bool exists = image < plan.images && step.image + image < p.batch;
      const int columns = exists ? p.width - step.column : 0;
      const int octets = min(plan.image_octets, plan.octets - octet);
      const T* line = exists ? pixel(step, image, step.column) + channel * p.x_c : p.x;
#pragma unroll 4
      for (int i = first; i < 8 * octets; i += kAtOnce) {
        const int existing = i < columns ? count : 0;
        const uint32_t to = rows + swizzled((octet * 8 + i) * kHopperRowBytes + channel % 64 * kSize);
        if (plan.x_piece == 16) {
          copy<16>(to, existing > 0 ? line + i * p.x_w : p.x, existing * kSize);
        } else {
          gather_piece(to, line + i * p.x_w, p.x_c, existing);
        }
      }
    }
  }

  // The input, channels as rows of pixels, 16-bit: a piece is one octet of pixels.
  __device__ __forceinline__ void load_channels(const WeightStep& step, uint32_t shared) const {
    const Share share = share_of(p.x_pieces, p.x_at_once);
    if (share.is_empty) return;
    const int octet = share.piece, image = p.image_octets.quotient(octet);
    const int column = step.column + 8 * (octet - image * plan.image_octets);
    const bool exists = image < plan.images && step.image + image < p.batch;
    const int count = exists ? max(0, min(kPiece, p.width - column)) : 0;
    const T* from = count > 0 ? pixel(step, image, column) + share.first * p.x_c : p.x;
    const int64_t step_c = count > 0 ? share.step * p.x_c : 0;
    const uint32_t rows = shared + octet / 8 * plan.x_rows_bytes;
#pragma unroll 4
    for (int channel = share.first; channel < channels_m_; channel += share.step, from += step_c) {
      const uint32_t to = rows + swizzled(channel * kHopperRowBytes + octet % 8 * 16);
      if (plan.x_piece == 16) {
        copy<16>(to, from, count * kSize);
      } else if (plan.x_piece == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int bytes = max(0, min(4, count * kSize - 4 * i));
          copy<4>(to + 4 * i, bytes > 0 ? from + i * (4 / kSize) : p.x, bytes);
        }
      } else {
        gather_piece(to, from, p.x_w, count);
      }
    }
  }

  // One piece of 16 bytes, of which `count` elements exist, `stride` apart.
  __device__ __forceinline__ static void gather_piece(uint32_t to, const T* from, int64_t stride, int count) {
    Pack<T, kPiece> piece;
#pragma unroll
    for (int e = 0; e < kPiece; ++e) piece.value[e] = e < count ? from[e * stride] : narrow<T>(0.0f);
    store_shared(to, reinterpret_cast<const uint4&>(piece));
  }

  // The input, channels as rows of pixels, float32: a piece is half an octet. Neighbouring lanes take what lies next
  // to each other in memory. visit(to, from, count) for each piece of this lane: `count` pixels exist from `from` on.
  template <class Visit>
  __device__ __forceinline__ void for_pieces(const WeightStep& step, uint32_t shared, Visit visit) const {
    const int pieces = 2 * plan.octets;
    if (p.x_w == 1) {
      const Share share = share_of(p.x_pieces, p.x_at_once);
      if (share.is_empty) return;
      const Existing existing = find_piece(step, share.piece);
      const T* from = existing.from + share.first * p.x_c;
      const uint32_t rows = shared + share.piece / 8 * plan.x_rows_bytes;
#pragma unroll 4
      for (int channel = share.first; channel < channels_m_; channel += share.step, from += share.step * p.x_c) {
        visit(rows + swizzled(channel * kHopperRowBytes + share.piece % 8 * 16), from, existing.count);
      }
    } else {
      for (int piece = warp_; piece < pieces; piece += kWarps) {
        const Existing existing = find_piece(step, piece);
        const uint32_t rows = shared + piece / 8 * plan.x_rows_bytes;
        for (int channel = lane_; channel < channels_m_; channel += 32) {
          visit(rows + swizzled(channel * kHopperRowBytes + piece % 8 * 16), existing.from + channel * p.x_c,
                existing.count);
        }
      }
    }
  }

  // A piece's pixels in the tile's first channel.
  struct Existing {
    const T* from;
    int count;
  };
  __device__ __forceinline__ Existing find_piece(const WeightStep& step, int piece) const {
    const int image = p.image_octets.quotient(piece / 2);
    const int column = step.column + 4 * (piece - 2 * image * plan.image_octets);
    const bool exists = image < plan.images && step.image + image < p.batch && column < p.width;
    return {exists ? pixel(step, image, column) : p.x, exists ? min(4, p.width - column) : 0};
  }

  __device__ __forceinline__ void store_operand(uint32_t at, uint4 raw) const {
    if constexpr (kParts == 1) {
      store_shared(at, make_uint4(operand_tf32(raw.x), operand_tf32(raw.y), operand_tf32(raw.z), operand_tf32(raw.w)));
    } else {
      const SplitFloat x = split_float(raw.x), y = split_float(raw.y), z = split_float(raw.z), w = split_float(raw.w);
      store_shared(at, make_uint4(x.high, y.high, z.high, w.high));
      store_shared(at + plan.x_slot_bytes / 2, make_uint4(x.low, y.low, z.low, w.low));
    }
  }

  // The input, float32, channels adjacent: in blocks of 32 pixels and 32 channels, 128 bytes a row either way. A block
  // is loaded as rows of channels and turned where it lies. visit(block, first octet, first channel) for this warp's.
  static constexpr int kBlock = 32, kBlockOctets = kBlock / 8;
  template <class Visit>
  __device__ __forceinline__ void for_blocks(uint32_t shared, Visit visit) const {
    constexpr int kAcross = kN / kBlock;
    const int blocks = (plan.octets + kBlockOctets - 1) / kBlockOctets * kAcross;
    for (int block = warp_; block < blocks; block += kWarps) {
      const int column = block / kAcross, channel = block % kAcross * kBlock;
      if (channel < channels_m_) {
        visit(shared + column * plan.x_rows_bytes + channel * kHopperRowBytes, column * kBlockOctets, channel);
      }
    }
  }
  __device__ __forceinline__ void load_blocks(const WeightStep& step, uint32_t shared) const {
    const int piece = lane_ % 8;
    for_blocks(shared, [&](uint32_t block, int first_octet, int first_channel) {
      const int channel = first_channel + piece * kPiece;
#pragma unroll
      for (int i = 0; i < kBlock / 4; ++i) {
        const int pixel_of_block = 4 * i + lane_ / 8, octet = first_octet + pixel_of_block / 8;
        const int image = p.image_octets.quotient(octet);
        const int column = step.column + 8 * (octet - image * plan.image_octets) + pixel_of_block % 8;
        const bool exists = octet < plan.octets && image < plan.images && step.image + image < p.batch &&
                            column < p.width && channel < channels_m_;
        copy<16>(block + swizzled(pixel_of_block * kHopperRowBytes + piece * 16),
                 exists ? pixel(step, image, column) + channel : p.x, exists ? 16 : 0);
      }
    });
  }
  __device__ __forceinline__ void turn_blocks(uint32_t shared) const {
    __syncwarp();
    for_blocks(shared, [&](uint32_t block, int, int) {
      uint32_t v[kBlock];  // this lane's channel
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        v[i] = load_shared(block + swizzled(i * kHopperRowBytes + lane_ / 4 * 16) + lane_ % 4 * 4);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kBlock; i += 4) {
        store_operand(block + swizzled(lane_ * kHopperRowBytes + i * 4),
                      make_uint4(v[i], v[i + 1], v[i + 2], v[i + 3]));
      }
    });
  }

  __device__ __forceinline__ void load_channels_float(const WeightStep& step, uint32_t shared) const {
    for_pieces(step, shared, [&](uint32_t to, const T* from, int count) {
      if (plan.x_piece == 16) {
        copy<16>(to, count > 0 ? from : p.x, count * kSize);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) copy<4>(to + 4 * i, i < count ? from + i * p.x_w : p.x, i < count ? kSize : 0);
      }
    });
  }

  const WeightParams<T>& p;
  const HopperWeightPlan& plan;
  RowWalk rows_;
  int warp_, lane_;
  const T* x_;  // the tile's first channel
  const T* y_;
  int channels_m_, channels_n_;  // of the tile, that exist
};

}  // namespace deconv::hopper
