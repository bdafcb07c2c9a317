// small_channel, forward and grad_input, by mma.sync:
//
//   result[n, m, q] = bias[m] + sum over c, taps   source[n, c, q + shift] * w
//
//   M = (phase, result channel)   all phases read one window of the source, each with weights at its own taps
//   N = pixels q                  tiles of 8
//   K = positions x channels      a step: two *units*, each 16 bytes of channels of one pixel, at any two shifts
//
// A block keeps the weights of one *pass* (group, channels m, one or all phases of the height, all of the width) in
// shared memory, in the order of operand A, and walks over tiles of pixels:
//   source tile and halo -> shared memory [unit][image, source phase, row][source phase, column], a k_block at a time
//   each warp: row_tiles tiles of rows x 8 * kPixelTiles pixels, at the positions where its rows have taps
//   sums + bias -> shared memory, phases interleaved as in the result; bias alone where a phase has no tap
//   whole lines -> result
// A zero weight must not meet Inf: sums that are not finite are recomputed tap by tap.
#pragma once

#include <type_traits>

#include "device/mma_sm80.cuh"
#include "families/small_channel/params.cuh"
#include "families/small_channel/store.cuh"

namespace deconv::small_channel {

// Recomputes and stages the results of one warp, product by product.
template <class T>
__device__ __noinline__ void repair(const ConvParams<T>& p, const int* tables, T* stage, int first_row, int rows,
                                    int first_pixel, int pixels, int group, int first_m, const Tile tile) {
  const SmallChannelPlan& plan = p.plan;
  __syncwarp();
  for (int i = threadIdx.x % 32; i < rows * pixels; i += 32) {
    const int row = first_row + i / pixels, pixel = first_pixel + i % pixels, info = tables[p.at.info + row];
    const int n = tile.n + pixel / (plan.tile.w * plan.tile.h);
    if (info < 0 || n >= p.batch) continue;
    const int y = (tile.h + pixel / plan.tile.w % plan.tile.h) * p.axis[0].result_step() + (info >> 8 & 255);
    const int x = (tile.w + pixel % plan.tile.w) * p.axis[1].result_step() + (info & 255);
    const T* source = p.source + n * p.source_n + static_cast<int64_t>(group) * p.source_channels * p.source_c;
    const T* weight = p.weight + group * p.weight_group + (first_m + (info >> 16)) * p.weight_m;
    float sum = 0;
    for (int a = 0; a < p.axis[0].kernel; ++a) {
      const int h = source_pixel(p.axis[0], y, a);
      for (int b = 0; h >= 0 && b < p.axis[1].kernel; ++b) {
        const int w = source_pixel(p.axis[1], x, b);
        if (w < 0) continue;
        const T* of_pixel = source + h * p.source_h + w * p.source_w;
        const T* of_tap = weight + a * p.weight_h + b * p.weight_w;
        for (int c = 0; c < p.source_channels; ++c) {
          sum += widen(of_pixel[c * p.source_c]) * widen(of_tap[c * p.weight_c]);
        }
      }
    }
    const float bias = __int_as_float(tables[p.at.bias + row]);
    stage[tables[p.at.rows + row] + tables[p.at.pixels + pixel]] = narrow<T>(sum + bias);
  }
}

template <class Config>
class ConvBlock {
  using T = typename Config::Element;
  static constexpr int kRowTiles = Config::kRowTiles, kPixelTiles = Config::kPixelTiles, kUnit = Config::kUnit;
  static constexpr int kRows = 16 * kRowTiles, kPixels = 8 * kPixelTiles;
  static constexpr bool kQuads = Config::kQuads;

 public:
  __device__ __forceinline__ ConvBlock(const ConvParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
    weights = reinterpret_cast<uint4*>(shared);
    source = reinterpret_cast<uint4*>(shared + plan.source_at);
    stage = reinterpret_cast<T*>(shared + plan.stage_at);
    tables = reinterpret_cast<int*>(shared + plan.tables_at);
    unsigned block = blockIdx.x;
    const auto take = [&block](int count) {
      const int index = static_cast<int>(block % count);
      block /= count;
      return index;
    };
    first_m = take(plan.passes_m) * plan.channels;
    group = take(p.groups);
    pass_h = take(plan.passes_h);
    first_tile = static_cast<int>(block);
    heights = plan.all_heights ? p.walk[0].actives : p.walk[0].positions[pass_h] != 0;
    rows = heights * p.walk[1].actives * plan.channels;
    row_groups = (rows + kRows - 1) / kRows;
    warps_n = kSmallChannelWarps / plan.warps_m;
    warp_m = warp / warps_n;
    warp_pixel = warp % warps_n * kPixels;
#pragma unroll
    for (int i = 0; i < kPixelTiles / 2; ++i) {
      const int pixel = warp_pixel + 16 * i + lane / 16 * 8 + lane % 8;
      const int w = pixel % plan.tile.w, h = pixel / plan.tile.w % plan.tile.h, n = pixel / (plan.tile.w * plan.tile.h);
      const int line = plan.planes_w * plan.rows_w;
      from[i] = shared_address(source + (n * plan.planes_h * plan.rows_h + h) * line + w);
    }
  }

  __device__ __forceinline__ void run() {
    prepare();
    const int tiles = plan.tiles.n * plan.tiles.h * plan.tiles.w;
    int buffer = 0;
    if (plan.buffers == 2 && row_groups > 0 && first_tile < tiles) {
      enter_tile(first_tile);
      bring(first_tile, 0, buffer);
    }
    for (int tile = first_tile; tile < tiles; tile += plan.tile_blocks) {
      const int next = tile + plan.tile_blocks < tiles ? tile + plan.tile_blocks : -1;
      Ahead ahead;
      if (row_groups > 0) compute_tile(ahead, tile, next, buffer);
      __syncthreads();
      store_tile(place_tile(tile));
      if (row_groups > 0 && plan.buffers == 2 && next >= 0) finish(ahead, next, 0, buffer);
    }
  }

 private:
  __device__ __forceinline__ Tile place_tile(int index) const {
    const int line = p.by_tiles_w.quotient(index), n = p.by_tiles_h.quotient(line);
    return {n * plan.tile.n, (line - n * plan.tiles.h) * plan.tile.h, (index - line * plan.tiles.w) * plan.tile.w};
  }

  const ConvParams<T>& p;
  const SmallChannelPlan& plan;
  uint4* weights;  // shared: [row group][chunk][step][row tile][lane], a lane's operand
  uint4* source;  // shared: [buffer][unit][source_pitch]
  T* stage;  // shared: results, in runs as in memory
  int* tables;  // shared
  const int warp, lane;
  int group, first_m, pass_h, heights, rows, row_groups, first_tile;
  int warps_n, warp_m, warp_pixel;
  uint32_t from[kPixelTiles / 2];  // shared: rows that this lane names to ldmatrix, for 16 pixels x two units

  // --- once a block: tables, weights, bias ---

  __device__ __forceinline__ int positions_h() const { return plan.planes_h * plan.shifts_h; }
  __device__ __forceinline__ int positions_w() const { return plan.planes_w * plan.shifts_w; }
  __device__ __forceinline__ int* taps(int axis) const {  // [phase][position], -1 for none
    return tables + p.at.taps + (axis == 0 ? 0 : p.axis[0].phases() * positions_h());
  }
  __device__ __forceinline__ int channels() const { return min(plan.channels, p.result_channels - first_m); }
  __device__ __forceinline__ int first_channel() const { return group * p.result_channels + first_m; }

  __device__ __forceinline__ void prepare() {
    const int all_taps = p.axis[0].phases() * positions_h() + p.axis[1].phases() * positions_w();
    for (int i = threadIdx.x; i < all_taps; i += kSmallChannelThreads) tables[p.at.taps + i] = -1;
    for (int row = threadIdx.x; row < row_groups * kRows; row += kSmallChannelThreads) place_row(row);
    for (int i = threadIdx.x; i < plan.tile.n * plan.tile.h * plan.tile.w; i += kSmallChannelThreads) place_pixel(i);
    stage_bias();
    if (row_groups == 0) return;
    __syncthreads();
    for (int a = 0; a < 2; ++a) {
      for (int k = threadIdx.x; k < p.axis[a].kernel; k += kSmallChannelThreads) place_tap(a, k);
    }
    for (int r = warp; r < row_groups; r += kSmallChannelWarps) list_positions(r);
    __syncthreads();
    pack_weights();
  }

  __device__ __forceinline__ void place_tap(int axis, int k) {
    const TapPlace place = tap_place(p.axis[axis], k);
    if (place.phase >= p.axis[axis].phases() || place.plane >= p.axis[axis].planes()) return;
    const int shifts = axis == 0 ? plan.shifts_h : plan.shifts_w, origin = axis == 0 ? plan.origin_h : plan.origin_w;
    const int slot = __popcll(p.walk[axis].planes & ((uint64_t{1} << place.plane) - 1));
    const int positions = axis == 0 ? positions_h() : positions_w();
    taps(axis)[place.phase * positions + slot * shifts + place.shift - origin] = k;
  }

  // Row (phase, m): phases and channel, bias, place among the staged results (-1: none).
  __device__ __forceinline__ void place_row(int row) {
    const int phases = p.by_channels.quotient(row), m = row - phases * plan.channels;
    const int i = phases / p.walk[1].actives, j = phases - i * p.walk[1].actives;
    const bool exists = row < rows && m < channels();
    const int phase_h = plan.all_heights && exists ? p.walk[0].active[i] : pass_h, phase_w = p.walk[1].active[j];
    const int line_w = plan.tile.w * p.axis[1].phases();
    const int line = plan.all_heights ? phase_h : 0;
    tables[p.at.rows + row] = !exists                 ? -1
                              : plan.columns_adjacent ? m * plan.stage_channel + line * line_w + phase_w
                                                      : (line * line_w + phase_w) * plan.stage_channel + m;
    tables[p.at.info + row] = exists ? m << 16 | phase_h << 8 | phase_w : -1;
    const float bias = exists && p.bias != nullptr ? widen(p.bias[first_channel() + m]) : 0.f;
    tables[p.at.bias + row] = __float_as_int(bias);
  }

  __device__ __forceinline__ int staged_heights() const { return plan.all_heights ? p.axis[0].phases() : 1; }

  __device__ __forceinline__ void place_pixel(int pixel) {
    const int w = pixel % plan.tile.w, h = pixel / plan.tile.w % plan.tile.h, n = pixel / (plan.tile.w * plan.tile.h);
    const int line_w = plan.tile.w * p.axis[1].phases(), lines = plan.tile.h * staged_heights();
    const int at = h * staged_heights() * line_w + w * p.axis[1].phases();
    tables[p.at.pixels + pixel] = plan.columns_adjacent ? n * plan.channels * plan.stage_channel + at
                                                        : (n * lines * line_w + at) * plan.stage_channel;
  }

  // Everywhere, because nothing else writes phases without a tap.
  __device__ __forceinline__ void stage_bias() const {
    if (!plan.columns_adjacent) {  // channels are adjacent in every pixel
      const int count = (plan.tables_at - plan.stage_at) / static_cast<int>(sizeof(T));
      for (int i = threadIdx.x; i < count; i += kSmallChannelThreads) stage[i] = bias_of(p.by_channels.remainder(i));
      return;
    }
    constexpr int kVector = 16 / static_cast<int>(sizeof(T));
    const int vectors = plan.stage_channel / kVector;  // of a channel
    for (int run = warp; run < plan.tile.n * plan.channels; run += kSmallChannelWarps) {
      Pack<T, kVector> values;
      const T bias = bias_of(p.by_channels.remainder(run));
#pragma unroll
      for (int i = 0; i < kVector; ++i) values.value[i] = bias;
      uint4* const of_run = reinterpret_cast<uint4*>(stage) + run * vectors;
      for (int i = lane; i < vectors; i += 32) of_run[i] = reinterpret_cast<const uint4&>(values);
    }
  }
  __device__ __forceinline__ T bias_of(int m) const {
    return p.bias != nullptr && m < channels() ? p.bias[first_channel() + m] : T{};
  }

  // Lists the (height, width) positions at which any row of the group has a tap, and the offsets of their units.
  __device__ __forceinline__ void list_positions(int row_group) {
    const int first = p.by_channels.quotient(row_group * kRows);
    const int last = p.by_channels.quotient(min(rows, (row_group + 1) * kRows) - 1);
    uint64_t used_h = 0, used_w = 0;
    for (int phases = first; phases <= last; ++phases) {
      const int i = phases / p.walk[1].actives, j = phases - i * p.walk[1].actives;
      used_h |= p.walk[0].positions[plan.all_heights ? p.walk[0].active[i] : pass_h];
      used_w |= p.walk[1].positions[p.walk[1].active[j]];
    }
    int* list = tables + p.at.positions + row_group * plan.positions;
    int count = 0;
    for (int base = 0; base < positions_h() * positions_w(); base += 32) {
      const int h = (base + lane) / positions_w(), w = base + lane - h * positions_w();
      const bool used = h < positions_h() && (used_h >> h & used_w >> w & 1) != 0;
      const unsigned ballot = __ballot_sync(0xffffffffu, used);
      if (used) list[count + __popc(ballot & ((1u << lane) - 1))] = h << 8 | w;
      count += __popc(ballot);
    }
    __syncwarp();
    int* units = tables + p.at.units + row_group * 2 * plan.steps;
    const int steps = (count * plan.units + 1) / 2;
    for (int u = lane; u < 2 * steps; u += 32) {
      const int at = min(p.by_units.quotient(u), count - 1);  // an odd last unit meets zero weights
      units[u] = ((min(u - at * plan.units, plan.units - 1)) * plan.source_pitch + offset_of(list[at])) *
                 kSmallChannelUnitBytes;
    }
    if (lane == 0) tables[p.at.steps + row_group] = steps | count << 16;
  }

  __device__ __forceinline__ int offset_of(int position) const {
    const int h = position >> 8, w = position & 255;
    const int slot_h = h / plan.shifts_h, slot_w = w / plan.shifts_w;
    return (slot_h * plan.rows_h + h - slot_h * plan.shifts_h) * plan.planes_w * plan.rows_w + slot_w * plan.rows_w +
           w - slot_w * plan.shifts_w;
  }

  __device__ __forceinline__ void pack_weights() {
    const T* from = p.weight + group * p.weight_group + first_m * p.weight_m;
    for (int r = 0; r < row_groups; ++r) {
      const int steps = tables[p.at.steps + r] & 0xffff, count = tables[p.at.steps + r] >> 16;
      const int tiles = plan.chunks * steps * kRowTiles;
#pragma unroll 2
      for (int i = warp; i < tiles; i += kSmallChannelWarps) {
        const int rt = i % kRowTiles, step = i / kRowTiles % steps, chunk = i / kRowTiles / steps;
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {  // rows 0..7 and 8..15, of the first unit and the second
          const int row = r * kRows + rt * 16 + k % 2 * 8 + lane / 4, u = 2 * step + k / 2;
          const int at = p.by_units.quotient(u);
          const int c = (chunk * plan.units + u - at * plan.units) * kUnit + lane % 4 * (kUnit / 4);
          const int info = tables[p.at.info + row];
          const T* tap = nullptr;
          if (info >= 0 && at < count) {
            const int position = tables[p.at.positions + r * plan.positions + at];
            const int h = taps(0)[(info >> 8 & 255) * positions_h() + (position >> 8)];
            const int w = taps(1)[(info & 255) * positions_w() + (position & 255)];
            if (h >= 0 && w >= 0) tap = from + (info >> 16) * p.weight_m + h * p.weight_h + w * p.weight_w;
          }
          word[k] = operand(tap, c);
        }
        weights[((r * plan.chunks + chunk) * plan.steps + step) * kRowTiles * 32 + rt * 32 + lane] = make_uint4(
            word[0], word[1], word[2], word[3]);
      }
    }
  }

  // 32 bits of operand A, from source channel c on.
  __device__ __forceinline__ uint32_t operand(const T* tap, int c) const {
    if constexpr (sizeof(T) == 4) {
      const uint32_t bits = tap != nullptr && c < p.source_channels ? __float_as_uint(tap[c * p.weight_c]) : 0u;
      return Config::kParts == 2 ? bits : round_to_tf32(bits);
    } else {
      Pack<T, 2> pair{};
      if (tap != nullptr && c < p.source_channels) pair.value[0] = tap[c * p.weight_c];
      if (tap != nullptr && c + 1 < p.source_channels) pair.value[1] = tap[(c + 1) * p.weight_c];
      return *reinterpret_cast<const uint32_t*>(&pair);
    }
  }

  // --- each tile ---

  // With two buffers, starts with the tile's first k_block loaded or in flight, and leaves with that of tile `next`, if
  // any, in flight into `buffer`.
  struct Ahead;
  __device__ __forceinline__ void compute_tile(Ahead& ahead, int tile, int next, int& buffer) {
    for (int first = 0; first < row_groups; first += plan.warps_m) {
      float sums[kRowTiles][kPixelTiles][4] = {};
      for (int chunk = 0; chunk < plan.chunks; ++chunk) {
        if (first == 0 || plan.chunks > 1) {
          if (plan.buffers == 1) {
            __syncthreads();
            if (first == 0 && chunk == 0) enter_tile(tile);
            bring(tile, chunk, buffer);
          }
          copy_wait_all();
          __syncthreads();  // the k_block has arrived; the one before is free
        }
        const bool last = first + plan.warps_m >= row_groups && chunk + 1 == plan.chunks;
        const bool brings = plan.buffers == 2 && (last ? next >= 0 : plan.chunks > 1);
        const int next_chunk = chunk + 1 == plan.chunks ? 0 : chunk + 1;
        const int next_tile = last ? next : tile;
        if (brings && last) enter_tile(next_tile);
        if (brings) start(ahead, next_tile, next_chunk, 1 - buffer);
        if (first + warp_m < row_groups) multiply(sums, first + warp_m, chunk, buffer);
        if (!brings) continue;
        if (!last) finish(ahead, next_tile, next_chunk, 1 - buffer);
        buffer = 1 - buffer;
      }
      if (first + warp_m < row_groups) stage_results(sums, first + warp_m, tile);
    }
  }

  __device__ __forceinline__ void bring(int tile, int chunk, int buffer) {
    if constexpr (kQuads) {
      load_quads(0, tile, chunk, buffer);
    } else {
      Ahead ahead;
      start(ahead, tile, chunk, buffer);
    }
  }

  // Call before loading anything of a tile. Overwrites the offsets of the tile before.
  __device__ __forceinline__ void enter_tile(int tile) {
    if constexpr (!kQuads) {
      find_offsets(place_tile(tile));
      __syncthreads();
    }
  }

  // Loads a k_block of a tile into a buffer. `start` issues the loads, `finish` stores what passes through registers.
  __device__ __forceinline__ void start(Ahead& ahead, int tile, int chunk, int buffer) {
    if constexpr (kQuads) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        ahead.quad[i] = load_quad(threadIdx.x + i * kSmallChannelThreads, place_tile(tile), chunk, buffer);
    } else if (p.vector_source) {
      copy_source(chunk, buffer);
    } else {
      simt_source(chunk, buffer);
    }
  }
  __device__ __forceinline__ void finish(const Ahead& ahead, int tile, int chunk, int buffer) {
    if constexpr (kQuads) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) store_quad(ahead.quad[i]);
      load_quads(kAhead, tile, chunk, buffer);
    }
  }
  // Loads this thread's quads from number `begin` on.
  __device__ __forceinline__ void load_quads(int begin, int tile, int chunk, int buffer) const {
#pragma unroll 1
    for (int item = threadIdx.x + begin * kSmallChannelThreads; item < p.quads; item += kSmallChannelThreads) {
      store_quad(load_quad(item, place_tile(tile), chunk, buffer));
    }
  }
  __device__ __forceinline__ uint4* source_of(int buffer) const {
    return source + buffer * plan.units * plan.source_pitch;
  }

  // A quad: four adjacent columns of a unit's channels, from a multiple of four on. For sources with adjacent columns.
  static constexpr int kAhead = kRowTiles == 1 ? 3 : kRowTiles == 2 ? 2 : 1;  // as registers allow
  static constexpr int kQuadWords = sizeof(T);  // of 32 bits, of one channel
  struct Quad {
    uint32_t word[kUnit][kQuadWords];
    uint4* to;  // its first column
    int column;  // of the staged row; if negative, the first columns are not needed
  };
  struct NoQuads {};
  struct Ahead {
    std::conditional_t<kQuads, Quad[kAhead], NoQuads> quad;
  };
  __device__ __forceinline__ Quad load_quad(int item, const Tile& tile, int chunk, int buffer) const {
    Quad quad;
    const int rest = p.by_units.quotient(item), unit = item - rest * plan.units;
    const int line = p.by_row_quads.quotient(rest), of_line = rest - line * static_cast<int>(p.by_row_quads.divisor);
    const int image = p.by_lines.quotient(line), row = line - image * plan.planes_h * plan.rows_h;
    const int slot_h = row / plan.rows_h;
    quad.column = item < p.quads ? 4 * of_line - p.quad_lead : plan.rows_w;
    quad.to = source_of(buffer) + unit * plan.source_pitch + line * plan.rows_w + quad.column;
    const int n = tile.n + image, w = tile.w + plan.origin_w + quad.column;
    const int h = coordinate(0, slot_h, tile.h + plan.origin_h + row - slot_h * plan.rows_h);
    const int c = (chunk * plan.units + unit) * kUnit;
    const bool inside = item < p.quads && n < p.batch && h >= 0 && h < p.axis[0].source_size && w >= 0 &&
                        w < p.axis[1].source_size;
    const int channels = inside ? p.source_channels - c : 0;
    const T* from = source_channel(c) + (inside ? n * p.source_n + h * p.source_h + w : 0);
#pragma unroll
    for (int i = 0; i < kUnit; ++i, from += p.source_c) {
      if constexpr (kQuadWords == 4) {
        const uint4 v = i < channels ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
        quad.word[i][0] = v.x, quad.word[i][1] = v.y, quad.word[i][2] = v.z, quad.word[i][3] = v.w;
      } else {
        const uint2 v = i < channels ? __ldg(reinterpret_cast<const uint2*>(from)) : make_uint2(0, 0);
        quad.word[i][0] = v.x, quad.word[i][1] = v.y;
      }
    }
    return quad;
  }
  __device__ __forceinline__ void store_quad(const Quad& quad) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t word[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (kQuadWords == 4) {
          // Rounds here, once, instead of for each product.
          word[k] = Config::kParts == 1 ? round_to_tf32(quad.word[k][i]) : quad.word[k][i];
        } else {  // the lower or the upper halves of two channels
          word[k] = __byte_perm(quad.word[2 * k][i / 2], quad.word[2 * k + 1][i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
        }
      }
      if (quad.column + i >= 0 && quad.column + i < plan.rows_w) {
        quad.to[i] = make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }

  // Finds the source offsets of the tile's pixels, -1 outside the image.
  __device__ __forceinline__ void find_offsets(const Tile& tile) {
    const int line_length = plan.planes_w * plan.rows_w, lines = plan.planes_h * plan.rows_h;
    for (int e = threadIdx.x; e < plan.source_pixels; e += kSmallChannelThreads) {
      const int line = p.by_line.quotient(e), column = e - line * line_length;
      const int image = p.by_lines.quotient(line), row = line - image * lines;
      const int slot_w = p.by_row_w.quotient(column), slot_h = row / plan.rows_h;
      const int n = tile.n + image;
      const int h = coordinate(0, slot_h, tile.h + plan.origin_h + row - slot_h * plan.rows_h);
      const int w = coordinate(1, slot_w, tile.w + plan.origin_w + column - slot_w * plan.rows_w);
      const bool inside = n < p.batch && h >= 0 && h < p.axis[0].source_size && w >= 0 && w < p.axis[1].source_size;
      tables[p.at.offsets + e] = inside ? static_cast<int>(n * p.source_n + h * p.source_h + w * p.source_w) : -1;
    }
  }

  // The coordinate of pixel `index` of the source phase in a slot.
  __device__ __forceinline__ int coordinate(int axis, int slot, int index) const {
    uint64_t planes = p.walk[axis].planes;
    for (; slot > 0; --slot) planes &= planes - 1;
    return index * p.axis[axis].source_step() + __ffsll(static_cast<long long>(planes)) - 1;
  }

  __device__ __forceinline__ const T* source_channel(int c) const {
    return p.source + (static_cast<int64_t>(group) * p.source_channels + c) * p.source_c;
  }

  // By cp.async: channels are adjacent, and every pixel begins at a multiple of 16 bytes.
  __device__ __forceinline__ void copy_source(int chunk, int buffer) {
    const int first = chunk * plan.units;
    for (int e = threadIdx.x; e < plan.source_pixels * plan.units; e += kSmallChannelThreads) {
      const int pixel = p.by_units.quotient(e), unit = e - pixel * plan.units, c = (first + unit) * kUnit;
      const int offset = tables[p.at.offsets + pixel];
      const bool inside = offset >= 0 && c < p.source_channels;
      copy_16(shared_address(source_of(buffer) + unit * plan.source_pitch + pixel),
              inside ? source_channel(c) + offset : p.source, inside ? 16 : 0);
    }
  }

  __device__ __forceinline__ void simt_source(int chunk, int buffer) {
    for (int unit = 0; unit < plan.units; ++unit) {
      const int c = (chunk * plan.units + unit) * kUnit;
      const T* from = source_channel(c);
#pragma unroll 2
      for (int pixel = threadIdx.x; pixel < plan.source_pixels; pixel += kSmallChannelThreads) {
        const int offset = tables[p.at.offsets + pixel];
        Pack<T, kUnit> values{};
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
          if (offset >= 0 && c + i < p.source_channels) values.value[i] = from[offset + i * p.source_c];
        }
        source_of(buffer)[unit * plan.source_pitch + pixel] = *reinterpret_cast<const uint4*>(&values);
      }
    }
  }

  __device__ __forceinline__ void multiply(float (&sums)[kRowTiles][kPixelTiles][4], int row_group, int chunk,
                                           int buffer) {
    const int* unit = tables + p.at.units + row_group * 2 * plan.steps + lane / 8 % 2;
    const uint4* weight = weights + (row_group * plan.chunks + chunk) * plan.steps * kRowTiles * 32 + lane;
    const int steps = tables[p.at.steps + row_group] & 0xffff;
    const int of_buffer = buffer * plan.units * plan.source_pitch * kSmallChannelUnitBytes;
#pragma unroll(kQuads&& Config::kParts == 1 ? 2 : 1)
    for (int step = 0; step < steps; ++step) {
      const int offset = unit[2 * step] + of_buffer;
      uint32_t pixels[kPixelTiles / 2][4];
#pragma unroll
      for (int i = 0; i < kPixelTiles / 2; ++i) load_matrices(pixels[i], from[i] + offset);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const uint4 a = weight[(step * kRowTiles + r) * 32];
#pragma unroll
        for (int j = 0; j < kPixelTiles; ++j) {
          multiply_step(sums[r][j], a, pixels[j / 2][j % 2 * 2], pixels[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

  __device__ __forceinline__ static void multiply_step(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1) {
    if constexpr (Config::kParts == 2) {
      // Tensor cores truncate their running sum: each step starts from zero and is added in float32.
      float step[4] = {};
      multiply_add<T>(step, {rest_of_tf32(a.x), rest_of_tf32(a.y), rest_of_tf32(a.z), rest_of_tf32(a.w)},
                      round_to_tf32(b0), round_to_tf32(b1));
      const uint4 high{round_to_tf32(a.x), round_to_tf32(a.y), round_to_tf32(a.z), round_to_tf32(a.w)};
      multiply_add<T>(step, high, rest_of_tf32(b0), rest_of_tf32(b1));
      multiply_add<T>(step, high, round_to_tf32(b0), round_to_tf32(b1));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += step[i];
    } else if constexpr (sizeof(T) == 4 && !kQuads) {
      multiply_add<T>(sum, a, round_to_tf32(b0), round_to_tf32(b1));
    } else {
      multiply_add<T>(sum, a, b0, b1);
    }
  }

  // A lane has two adjacent pixels of rows lane / 4 and lane / 4 + 8.
  __device__ __forceinline__ void stage_results(const float (&sums)[kRowTiles][kPixelTiles][4], int row_group,
                                                int tile) {
    float nothing = 0;  // NaN once a sum is not finite
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_group * kRows + r * 16 + half * 8 + lane / 4;
        const int at = tables[p.at.rows + row];
        const float bias = __int_as_float(tables[p.at.bias + row]);
        T* const staged = stage + max(at, 0);
#pragma unroll
        for (int j = 0; j < kPixelTiles; ++j) {
          const int2 pixel_at = *reinterpret_cast<const int2*>(tables + p.at.pixels + warp_pixel + 8 * j +
                                                               lane % 4 * 2);
          const float first = sums[r][j][2 * half], second = sums[r][j][2 * half + 1];
          nothing += 0 * first + 0 * second;
          if (at >= 0) {
            staged[pixel_at.x] = narrow<T>(first + bias);
            staged[pixel_at.y] = narrow<T>(second + bias);
          }
        }
      }
    }
    if (__any_sync(0xffffffffu, !(nothing == 0))) {
      repair(p, tables, stage, row_group * kRows, kRows, warp_pixel, kPixels, group, first_m, place_tile(tile));
    }
  }

  __device__ __forceinline__ void store_tile(const Tile& tile) const {
    switch (p.vector_result * sizeof(T)) {
      case 16: store_runs<uint4>(p, stage, tile, pass_h, first_channel(), channels()); break;
      case 8: store_runs<uint2>(p, stage, tile, pass_h, first_channel(), channels()); break;
      case 4: store_runs<uint32_t>(p, stage, tile, pass_h, first_channel(), channels()); break;
      default:
        if constexpr (sizeof(T) == 2) store_runs<uint16_t>(p, stage, tile, pass_h, first_channel(), channels());
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(kSmallChannelThreads, Config::kBlocks)
    conv_kernel(const __grid_constant__ ConvParams<typename Config::Element> params) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) unsigned char shared[];
  ConvBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::small_channel
