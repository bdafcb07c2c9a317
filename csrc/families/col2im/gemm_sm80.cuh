// col2im, forward and grad_input of stride 1, by mma.sync:
//
//   product[m, tap][i] = sum over c   w[c, m, tap] * source[c, i]
//   result[m, o] = bias[m] + sum over taps   product[m, tap][the source pixel that o reads by that tap]
//
// Few result channels leave an implicit GEMM's tiles empty, or full of zeros where phases share a tile. Here each
// (channel, tap) is a row: each source pixel is loaded and multiplied once, without a zero.
//
// A block keeps the weights of one *pass* (group, channels m) in shared memory, in the order of operand A, and walks
// down *segments* (image, strip of columns, rows), some source rows a step. Its warps run as far ahead as Pipelines
// allow:
//   producing warps     source rows -> stages of a k_block, by cp.async
//   multiplying warps   row_tiles tiles of 16 rows x 32 pixels, summed in registers -> ring of products by source row
//   adding warps        results whose last source row has come, in a fixed order -> memory (scatter_add.cuh)
// tf32x3 turns Inf into NaN: products that are not finite are recomputed.
#pragma once

#include "device/mbarrier.cuh"
#include "device/mma_sm80.cuh"
#include "families/col2im/params.cuh"
#include "families/col2im/scatter_add.cuh"

namespace deconv::col2im {

// Named barriers.
inline constexpr int kPrepared = 1, kOffsets = 2;

// Elements from an image's first pixel to a staged one; -1 outside the image, and where nothing is staged.
template <class T>
__device__ __forceinline__ int source_offset(const ConvParams<T>& p, const Segment& place, int step, int pixel) {
  const Col2imConvPlan& plan = p.plan;
  const int row = p.by_pitch.quotient(pixel), column = pixel - row * plan.pitch;
  const int h = place.h + plan.origin_h + step * plan.rows + row, w = place.w + plan.origin_w - plan.lead + column;
  const bool inside = row < plan.rows && h >= 0 && h < p.axis[0].source_size && w >= 0 && w < p.axis[1].source_size;
  return inside ? static_cast<int>(h * p.source_h + w * p.source_w) : -1;
}

template <class T>
__device__ __forceinline__ const T* source_image(const ConvParams<T>& p, int n, int group) {
  return p.source + n * p.source_n + static_cast<int64_t>(group) * p.source_channels * p.source_c;
}

// Place of a staged pixel within the words of each product; -1 if nothing was staged. ring: row of the step's first
// source row.
template <class T>
__device__ __forceinline__ int place_pixel(const ConvParams<T>& p, int pixel, int ring) {
  const Col2imConvPlan& plan = p.plan;
  const int row = p.by_pitch.quotient(pixel), of_ring = ring + row;
  if (row >= plan.rows) return -1;
  return (of_ring >= plan.ring_rows ? of_ring - plan.ring_rows : of_ring) * plan.pitch + pixel - row * plan.pitch;
}

// Recomputes products that are not finite, of 16 * row_tiles rows from first_row on and a warp's pixels, one
// multiplication at a time.
template <class T>
__device__ __noinline__ void repair(const ConvParams<T>& p, float* products, const Segment place, int step, int ring,
                                    int first_row, int first_pixel, int group, int first_m) {
  constexpr int kPixels = 8 * kCol2imPixelTiles;
  const int all_rows = p.plan.channels * static_cast<int>(p.by_taps.divisor);
  __syncwarp();
  for (int i = threadIdx.x % 32; i < 16 * p.plan.row_tiles * kPixels; i += 32) {
    const int row = first_row + i / kPixels, pixel = first_pixel + i % kPixels, at = place_pixel(p, pixel, ring);
    if (row >= all_rows || at < 0 || isfinite(products[row * p.plan.product_pitch + at])) continue;
    const T* weight = p.weight + group * p.weight_group + first_m * p.weight_m + weight_of_row(p, row);
    const int offset = source_offset(p, place, step, pixel);
    const T* from = source_image(p, place.n, group) + max(offset, 0);
    float sum = 0;
    for (int c = 0; offset >= 0 && c < p.source_channels; ++c) {
      sum += widen(from[c * p.source_c]) * widen(weight[c * p.weight_c]);
    }
    products[row * p.plan.product_pitch + at] = sum;
  }
}

// Row tiles and bytes of a copy are branches of the warps concerned, so that the adding code is compiled once. With one
// block a multiprocessor, registers suffice for the widest branch.
template <class T, int kParts>
class ConvBlock {
  static constexpr int kPixelTiles = kCol2imPixelTiles;
  static constexpr int kUnit = kCol2imUnitBytes / static_cast<int>(sizeof(T));  // channels
  static constexpr int kDepth = 2 * kUnit;  // of one instruction
  static constexpr int kWord = 4 / static_cast<int>(sizeof(T));  // channels
  static constexpr int kAddWarps = col2im_add_warps(kParts);
  static constexpr int kMultiplyThreads = 32 * kCol2imMultiplyWarps, kAddThreads = 32 * kAddWarps;
  static constexpr int kBringThreads = 32 * kCol2imBringWarps;
  template <int kRowTiles>
  using Sums = float[kRowTiles][kPixelTiles][4];

 public:
  using Params = ConvParams<T>;
  static constexpr bool kHopper = false;
  static constexpr int kThreads = col2im_threads(kParts);

  __device__ __forceinline__ ConvBlock(const ConvParams<T>& params, unsigned char* shared)
      : p(params),
        plan(params.plan),
        share(share_of_block(params)),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        products(params, shared),
        weights(reinterpret_cast<uint4*>(shared)),
        source(shared_address(shared) + plan.source_at),
        offsets(reinterpret_cast<int*>(products.taps[1] + p.axis[1].phases())) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      products.init_barriers(2 * kBringThreads, kMultiplyThreads, kMultiplyThreads, kAddThreads);
    }
    if (p.column_bytes == 0) clear_source();
    __syncthreads();
    if (warp >= kCol2imMultiplyWarps + kAddWarps) {
      switch (p.column_bytes) {
        case 16: bring_all<16>(); break;
        case 4: bring_all<4>(); break;
        default: bring_all<0>();
      }
      return;
    }
    prepare();
    named_barrier_sync(kPrepared, kMultiplyThreads + kAddThreads);
    if (warp < kCol2imMultiplyWarps) {
      p.column_bytes > 0 ? multiply_rows<true>() : multiply_rows<false>();
    } else {
      AddingWarp<ConvParams<T>, kAddWarps, kCol2imMostUnits>(p, products, share, warp - kCol2imMultiplyWarps, lane)
          .run();
    }
  }

 private:
  const ConvParams<T>& p;
  const Col2imConvPlan& plan;
  const Share share;
  const int warp, lane;
  const Products products;
  uint4* const weights;  // shared: [step of K][part][row tile][lane], operand A of a lane
  const uint32_t source;  // shared: [slot], each [channel][pixel] or [pixel][unit of channels]
  int* const offsets;  // shared, for copies along the channels: of the staged pixels of the step to load next

  // --- once a block ---

  // Pixels beyond a step's are never staged; what lies there must not look like Inf.
  __device__ __forceinline__ void clear_source() const {
    for (int at = kCol2imUnitBytes * threadIdx.x; at < plan.slots * plan.slot_bytes;
         at += kCol2imUnitBytes * kThreads) {
      store_shared(source + at, make_uint4(0, 0, 0, 0));
    }
  }

  __device__ __forceinline__ void prepare() {
    constexpr int kPackThreads = kMultiplyThreads + kAddThreads;
    static_assert(kPackThreads % 128 == 0);
    products.prepare(p, share, kPackThreads);
    const int tiles = plan.all_row_tiles(), all = plan.all_depth_steps * tiles;
    const T* from = p.weight + share.group * p.weight_group + share.first_m * p.weight_m;
    const int word = threadIdx.x % 4, of_lane = threadIdx.x / 4 % 32;
    uint32_t* to = reinterpret_cast<uint32_t*>(weights) + threadIdx.x % 128;
#pragma unroll 4
    for (int i = threadIdx.x / 128; i < all; i += kPackThreads / 128) {
      const int step = p.by_row_tiles.quotient(i), tile = i - step * tiles;
      const int row = tile * 16 + of_lane / 4 + word % 2 * 8;
      const int c = step * kDepth + (of_lane % 4 + word / 2 * 4) * kWord;
      const T* at = from + weight_of_row(p, row) + c * p.weight_c;
      Pack<T, kWord> value{};
#pragma unroll
      for (int e = 0; e < kWord; ++e) {
        if (row < share.rows && c + e < p.source_channels) value.value[e] = at[e * p.weight_c];
      }
      const uint32_t bits = *reinterpret_cast<const uint32_t*>(&value);
      uint32_t* parts = to + (step * kParts * tiles + tile) * 128;
      parts[0] = sizeof(T) == 4 ? round_to_tf32(bits) : bits;
      if constexpr (kParts == 2) parts[tiles * 128] = rest_of_tf32(bits);
    }
  }

  // --- producing warps ---

  // Copies of columns: a thread always copies the same few *pieces*, adjacent columns of a row.
  template <int kColumnBytes>
  static constexpr int kPieceColumns = kColumnBytes / static_cast<int>(sizeof(T));

  __device__ __forceinline__ int channel_pitch() const { return plan.pixels() + 8; }  // channels meet different banks

  // kColumnBytes: of one copy of adjacent columns; 0 for copies along the channels.
  template <int kColumnBytes>
  __device__ __forceinline__ void bring_all() const {
    constexpr bool kPlanes = kColumnBytes > 0;
    constexpr int kColumns = kPlanes ? kPieceColumns<kColumnBytes> : 1;
    constexpr int kPieces = kColumns == 1 ? 2 : 1;  // of a thread, at most
    const int pieces = plan.pixels() / kColumns;
    const int thread = threadIdx.x - kMultiplyThreads - kAddThreads;
    Ring ring = products.stages;
    for (int segment = share.first_segment; segment < share.segments; segment += plan.segment_blocks) {
      const Segment place = place_segment(p, segment);
      const T* image = source_image(p, place.n, share.group);
      for (int step = 0; step < plan.steps; ++step) {
        int piece[kPieces];  // copies along the channels find pixels in a table
        if constexpr (kPlanes) {
#pragma unroll
          for (int i = 0; i < kPieces; ++i) {
            piece[i] = source_offset(p, place, step, kColumns * (thread % pieces + i * kBringThreads));
          }
        } else {
          named_barrier_sync(kOffsets, kBringThreads);
          for (int pixel = thread; pixel < plan.pixels(); pixel += kBringThreads) {
            offsets[pixel] = source_offset(p, place, step, pixel);
          }
          named_barrier_sync(kOffsets, kBringThreads);
        }
        for (int chunk = 0; chunk < plan.chunks; ++chunk) {
          ring.wait_empty();
          const uint32_t to = source + ring.slot * plan.slot_bytes;
          if constexpr (kPlanes) {
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
              if (i * kBringThreads < pieces) {
                copy_planes<kColumnBytes>(image, piece[i], thread + i * kBringThreads, chunk, to);
              }
            }
          } else if (p.vector_source) {
            copy_units(image, thread, chunk, to);
          } else {
            simt_units(image, thread, chunk, to);
          }
          barrier_arrive_with_copies(ring.full_barrier());
          barrier_arrive(ring.full_barrier());  // for stores through registers
          ring.advance();
        }
      }
    }
    copy_wait_all();
  }

  // Copies some channels of one piece. index: of the piece, and of the channels copied at once.
  template <int kColumnBytes>
  __device__ __forceinline__ void copy_planes(const T* image, int piece, int index, int chunk, uint32_t to) const {
    constexpr int kElement = static_cast<int>(sizeof(T)), kColumns = kPieceColumns<kColumnBytes>;
    const int pieces = plan.pixels() / kColumns, together = max(1, kBringThreads / pieces);  // together: channels
    const int first = chunk * plan.depth_steps * kDepth;
    const int depth = min(plan.depth_steps, plan.all_depth_steps - chunk * plan.depth_steps) * kDepth;
    const int valid = piece >= 0 ? min(depth, p.source_channels - first) : 0;
    int c = index / pieces;
    to += (c * channel_pitch() + index % pieces * kColumns) * kElement;
    const T* from = image + piece + (first + c) * p.source_c;
    const int to_step = together * channel_pitch() * kElement;
    const int64_t from_step = together * p.source_c;
#pragma unroll 4
    for (; c < depth; c += together, to += to_step, from += from_step) {
      const bool exists = c < valid;
      copy<kColumnBytes>(to, exists ? from : p.source, exists);
    }
  }

  // Copies, or writes zeros.
  template <int kBytes>
  __device__ __forceinline__ static void copy(uint32_t to, const T* from, bool exists) {
    if constexpr (kBytes == 16) {
      copy_16(to, from, exists ? kBytes : 0);
    } else {
      copy_4(to, from, exists ? kBytes : 0);
    }
  }

  // Place of 16 bytes of a pixel's channels: eight adjacent pixels meet different banks.
  __device__ __forceinline__ int unit_at(int pixel, int unit) const {
    const int units = 2 * plan.depth_steps;
    const int turn = units >= 8 ? pixel : units == 4 ? pixel >> 1 : pixel >> 2;
    return (pixel * units + (unit ^ (turn & (units - 1)))) * kCol2imUnitBytes;
  }

  __device__ __forceinline__ void copy_units(const T* image, int thread, int chunk, uint32_t to) const {
    const int units = 2 * plan.depth_steps, log_units = 31 - __clz(units), together = kBringThreads >> log_units;
    const int unit = thread & (units - 1), staged = plan.rows * plan.pitch, c = (chunk * units + unit) * kUnit;
    const bool exists = c < p.source_channels;
    const T* from = image + c;
    int pixel = thread >> log_units;
    to += unit_at(pixel, unit);  // pixels this far apart are swizzled alike
#pragma unroll 4
    for (; pixel < staged; pixel += together, to += kBringThreads * kCol2imUnitBytes) {
      const int offset = exists ? offsets[pixel] : -1;
      copy<16>(to, offset >= 0 ? from + offset : p.source, offset >= 0);
    }
  }

  __device__ __forceinline__ void simt_units(const T* image, int thread, int chunk, uint32_t to) const {
    const int units = 2 * plan.depth_steps, staged = plan.rows * plan.pitch;
    for (int unit = 0; unit < units; ++unit) {
      const int c = (chunk * units + unit) * kUnit;
#pragma unroll 2
      for (int pixel = thread; pixel < staged; pixel += kBringThreads) {
        const int offset = offsets[pixel];
        const T* from = image + c * p.source_c + offset;
        Pack<T, kUnit> values{};
#pragma unroll
        for (int i = 0; i < kUnit; ++i, from += p.source_c) {
          if (offset >= 0 && c + i < p.source_channels) values.value[i] = *from;
        }
        store_shared(to + unit_at(pixel, unit), *reinterpret_cast<const uint4*>(&values));
      }
    }
  }

  // --- multiplying warps ---

  template <bool kPlanes>
  __device__ __forceinline__ void multiply_rows() const {
    static_assert(kCol2imMostRowTiles == 3);
    switch (plan.row_tiles) {
      case 1: multiply_all<kPlanes, 1>(); break;
      case 2: multiply_all<kPlanes, 2>(); break;
      default: multiply_all<kPlanes, 3>();
    }
  }

  // kPlanes: pixels are staged [channel][pixel], else [pixel][channel].
  template <bool kPlanes, int kRowTiles>
  __device__ __forceinline__ void multiply_all() const {
    const int warp_tile = warp / plan.warps_n() * kRowTiles, warp_pixel = warp % plan.warps_n() * 8 * kPixelTiles;
    Ring ring = products.stages, kept = products.steps;
    int row = 0;  // row of the ring for this step's first source row
    for (int segment = share.first_segment; segment < share.segments; segment += plan.segment_blocks) {
      for (int step = 0; step < plan.steps; ++step) {
        Sums<kRowTiles> sums = {};
        for (int chunk = 0; chunk < plan.chunks; ++chunk) {
          ring.wait_full();
          multiply<kPlanes, kRowTiles>(sums, chunk, source + ring.slot * plan.slot_bytes, warp_tile, warp_pixel);
          ring.release(ring.slot);
          ring.advance();
        }
        kept.wait_empty();
        keep_products<kRowTiles>(sums, row, warp_tile, warp_pixel);
        if constexpr (kParts == 2) {
          if (__any_sync(0xffffffffu, !all_finite<kRowTiles>(sums))) {
            repair(p, products.at, place_segment(p, segment), step, row, 16 * warp_tile, warp_pixel, share.group,
                   share.first_m);
          }
        }
        barrier_arrive(kept.full_barrier());
        kept.advance();
        row = next_row(plan, row);
      }
    }
  }

  // Loads operand B of one step of K for all of the warp's pixels. A lane has two words for each 8.
  template <bool kPlanes>
  __device__ __forceinline__ void load_pixels(uint32_t (&b)[kPixelTiles][2], uint32_t slot, int step,
                                              int warp_pixel) const {
    if constexpr (kPlanes && sizeof(T) == 4) {
      const int pitch = 4 * channel_pitch();
      const uint32_t at = slot + (step * kDepth + lane % 4) * pitch + 4 * (warp_pixel + lane / 4);
#pragma unroll
      for (int j = 0; j < kPixelTiles; ++j) {
        b[j][0] = load_shared(at + 32 * j);
        b[j][1] = load_shared(at + 32 * j + 4 * pitch);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kPixelTiles; j += 2) {
        uint32_t words[4];
        if constexpr (kPlanes) {
          const int pixel = warp_pixel + 8 * j + lane / 16 * 8;
          load_transposed_matrices(words, slot + 2 * ((step * kDepth + lane % 16) * channel_pitch() + pixel));
        } else {
          const int pixel = warp_pixel + 8 * j + lane / 16 * 8 + lane % 8;
          load_matrices(words, slot + unit_at(pixel, 2 * step + lane / 8 % 2));
        }
        b[j][0] = words[0], b[j][1] = words[1];
        b[j + 1][0] = words[2], b[j + 1][1] = words[3];
      }
    }
  }

  template <bool kPlanes, int kRowTiles>
  __device__ __forceinline__ void multiply(Sums<kRowTiles>& sums, int chunk, uint32_t slot, int warp_tile,
                                           int warp_pixel) const {
    const int first = chunk * plan.depth_steps, steps = min(plan.depth_steps, plan.all_depth_steps - first);
    const int tiles = plan.all_row_tiles();
#pragma unroll(kParts == 1 ? 2 : 1)
    for (int step = 0; step < steps; ++step) {
      uint32_t b[kPixelTiles][2];
      load_pixels<kPlanes>(b, slot, step, warp_pixel);
      const uint4* weight = weights + ((first + step) * kParts * tiles + warp_tile) * 32 + lane;
      if constexpr (kParts == 1) {
        if constexpr (sizeof(T) == 4) {
#pragma unroll
          for (int j = 0; j < kPixelTiles; ++j) b[j][0] = round_to_tf32(b[j][0]), b[j][1] = round_to_tf32(b[j][1]);
        }
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const uint4 a = weight[r * 32];
#pragma unroll
          for (int j = 0; j < kPixelTiles; ++j) multiply_add<T>(sums[r][j], a, b[j][0], b[j][1]);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kPixelTiles; ++j) {
          const uint32_t low0 = rest_of_tf32(b[j][0]), low1 = rest_of_tf32(b[j][1]);
          const uint32_t high0 = round_to_tf32(b[j][0]), high1 = round_to_tf32(b[j][1]);
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            const uint4 high = weight[r * 32], low = weight[(tiles + r) * 32];
            // Tensor cores truncate their running sum: each step starts from zero and is added in float32.
            float sum[4] = {};
            multiply_add<T>(sum, low, high0, high1);
            multiply_add<T>(sum, high, low0, low1);
            multiply_add<T>(sum, high, high0, high1);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[r][j][i] += sum[i];
          }
        }
      }
    }
  }

  // A lane has two adjacent pixels of rows lane / 4 and lane / 4 + 8.
  template <int kRowTiles>
  __device__ __forceinline__ void keep_products(const Sums<kRowTiles>& sums, int ring, int warp_tile,
                                                int warp_pixel) const {
#pragma unroll
    for (int j = 0; j < kPixelTiles; ++j) {
      const int at = place_pixel(p, warp_pixel + 8 * j + lane % 4 * 2, ring);
      if (at < 0) continue;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = (warp_tile + r) * 16 + half * 8 + lane / 4;
          if (row >= share.rows) continue;
          *reinterpret_cast<float2*>(products.at + row * plan.product_pitch + at) = make_float2(
              sums[r][j][2 * half], sums[r][j][2 * half + 1]);
        }
      }
    }
  }

  template <int kRowTiles>
  __device__ __forceinline__ static bool all_finite(const Sums<kRowTiles>& sums) {
    float nothing = 0;  // NaN once a sum is not finite
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int j = 0; j < kPixelTiles; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) nothing += 0 * sums[r][j][i];
      }
    }
    return nothing == 0;
  }
};

}  // namespace deconv::col2im
