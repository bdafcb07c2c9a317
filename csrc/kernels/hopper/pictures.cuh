// Hopper family, forward, and grad_input of stride 1, of few result channels:
//   result[m, q * stride + phase] = bias[m] + sum over shifts and c of  w[c, m, tap of phase, shift] * source[c, q +
//   shift]
// with pixels as operand A and all phases of all channels m as rows of operand B, which stays in shared memory. A phase
// that has no tap at a shift has zeros there, and a result that is not finite is computed again, for a zero must not
// meet Inf.
//
// Tensor copies bring the halo of a tile. A warp has strips of it, eight columns of some rows, in registers: a row
// serves all shifts along the height, and for those along the width there are rows of operand B of their own, whose
// sums of neighbouring pixels are added up once they are complete, so only so many of the eight columns have results
// as have all their neighbours. A lane's sums of two rows of operand B are neighbours in memory.
#pragma once

#include "../../divisor.h"
#include "../../hopper_pictures_plan.h"
#include "../tensor_core.cuh"
#include "async.cuh"
#include "operand_b.cuh"
#include "repair.cuh"
#include "result.cuh"
#include "store.cuh"
#include "wgmma.cuh"

namespace deconv::hopper {

template <class T>
struct PicturesParams {
  CUtensorMap source_map;
  RepairParams<T> layer;
  Divisor tiles_w, tiles_h;
  Divisor taps, kernel, kernel_w;  // taps: of all channels
  bool pairs;  // results of two rows of operand B are neighbours that one store takes
  HopperPicturesPlan plan;
};

// A row of operand B: where its result lies from that of a pixel's first, its phases, of which none is as large, and
// the bias.
struct PicturesRow {
  int at, phase_h, phase_w;
  float bias;
};
inline constexpr int kPicturesNoPhase = INT32_MAX;

template <class T, int kN, int kShifts, bool kPlanes>
class PicturesBlock {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kMultiplyWarps = 4 * kPicturesWarpgroups;
  static constexpr int kStageBytes = pictures_stage_channels(kPlanes);  // of channels
  static constexpr int kProducts = kStageBytes / 32;  // of a stage: 32 bytes of channels each
  static constexpr int kTiles = pictures_strip_tiles(kN), kStripRows = pictures_strip_rows(kN);
  static constexpr int kHalo = kStripRows + kShifts - 1;  // rows
  static constexpr int kColumns = pictures_strip_columns(kShifts);
  static constexpr int kAllRows = kShifts * kN;  // of operand B, of a shift along the height
  static constexpr int kPrepared = 1;  // a named barrier

 public:
  static constexpr int kBringRegisters = 56, kMultiplyRegisters = 152;  // of a thread

  __device__ __forceinline__ PicturesBlock(const PicturesParams<T>& params, unsigned char* shared)
      : p(params), layer(params.layer), plan(params.plan), shared_(shared_address(shared)) {
    rows = reinterpret_cast<PicturesRow*>(shared + plan.rows_at);
    places = reinterpret_cast<int*>(rows + kN);
    tile_step = plan.tile_blocks;
    const int block = blockIdx.x;
    first_tile = block / layer.groups;
    group = block - first_tile * layer.groups;
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      const Ring ring = stages();
      for (int slot = 0; slot < plan.slots; ++slot) {
        barrier_init(ring.full + 8 * slot, 1);
        barrier_init(ring.empty + 8 * slot, kMultiplyWarps);
      }
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // known to be the same in all lanes
    if (warp < kMultiplyWarps) {
      take_registers<kMultiplyRegisters>();
      prepare();
      multiply(warp);
    } else {
      leave_registers<kBringRegisters>();
      if (warp == kMultiplyWarps && threadIdx.x % 32 == 0) bring();
    }
  }

 private:
  __device__ __forceinline__ Ring stages() const {
    const uint32_t barriers = shared_ + plan.barriers_at;
    return {barriers, barriers + 8 * plan.slots, plan.slots};
  }

  struct Place {
    int n, h, w;  // the first pixel
  };
  __device__ __forceinline__ Place place_of(int tile) const {
    const int line = p.tiles_w.quotient(tile), n = p.tiles_h.quotient(line);
    return {n, (line - n * plan.tiles_h) * plan.tile_rows, (tile - line * plan.tiles_w) * plan.tile_columns};
  }

  // --- once a block ---

  // The row of operand B of a phase of a channel: in the order of memory.
  __device__ __forceinline__ int row_of(int phase_h, int m, int phase_w) const {
    const int phases_w = layer.axis[1].phases(), channels = layer.result_channels;
    return layer.result_w == 1 ? (phase_h * channels + m) * phases_w + phase_w
                               : (phase_h * phases_w + phase_w) * channels + m;
  }
  struct Phase {
    int h, m, w;
  };
  __device__ __forceinline__ Phase phase_of(int row) const {
    const int phases_w = layer.axis[1].phases(), inner = layer.result_w == 1 ? phases_w : layer.result_channels;
    const int h = row / (phases_w * layer.result_channels), rest = row - h * phases_w * layer.result_channels;
    const int outer = rest / inner, of_outer = rest - outer * inner;
    return {h, layer.result_w == 1 ? outer : of_outer, layer.result_w == 1 ? of_outer : outer};
  }

  // Operand B: [chunk of channels][shift][row][128 bytes of channels]. Every tap of every channel has one place there,
  // which a table says.
  __device__ __forceinline__ void prepare() const {
    constexpr int kThreads = 32 * kMultiplyWarps;
    for (int n = threadIdx.x; n < kN; n += kThreads) {
      const Phase of = phase_of(n);
      const bool exists = of.h < layer.axis[0].phases();
      rows[n] = {static_cast<int>(of.h * layer.result_h + of.w * layer.result_w + of.m * layer.result_m),
                 exists ? of.h : kPicturesNoPhase, of.w,
                 exists && layer.bias != nullptr ? widen(layer.bias[group * layer.result_channels + of.m]) : 0.0f};
    }
    struct Tap {
      int m, h, w;
    };
    const auto tap_of = [&](int index) -> Tap {
      const int m = p.kernel.quotient(index), tap = index - m * static_cast<int>(p.kernel.divisor);
      const int h = p.kernel_w.quotient(tap);
      return {m, h, tap - h * layer.axis[1].kernel};
    };
    for (int index = threadIdx.x; index < static_cast<int>(p.taps.divisor); index += kThreads) {
      const Tap tap = tap_of(index);
      const TapPlace h = tap_place(layer.axis[0], tap.h), w = tap_place(layer.axis[1], tap.w);
      const bool exists = h.phase < layer.axis[0].phases() && w.phase < layer.axis[1].phases();
      const int shift = (h.shift - plan.origin_h) * kShifts + w.shift - plan.origin_w;
      places[index] = exists ? shift * kN + row_of(h.phase, tap.m, w.phase) : -1;
    }
    const T* const from = layer.weight + group * layer.weight_group;
    const auto load = [&](int c, int index) {
      const Tap tap = tap_of(index);
      return from[c * layer.weight_c + tap.m * layer.weight_m + tap.h * layer.weight_h + tap.w * layer.weight_w];
    };
    fill_operand_b<T, kThreads>(shared_ + plan.weights_at, plan.chunks, kShifts * kAllRows * kOperandRowBytes,
                                layer.source_channels, p.taps, kPrepared, load,
                                [&](int index) { return places[index]; });
  }

  __device__ __forceinline__ void bring() const {
    Ring ring = stages();
    for (int tile = first_tile; tile < plan.tiles; tile += tile_step) {
      const Place place = place_of(tile);
      const int h = place.h + plan.origin_h, w = place.w + plan.origin_w - plan.lead;
      for (int stage = 0; stage < plan.stages; ++stage, ring.advance()) {
        ring.wait_empty();
        barrier_arrive_expecting(ring.full_barrier(), plan.stage_bytes);
        const int c = stage * kStageBytes / kSize;
        copy_tensor(shared_ + ring.slot * plan.slot_bytes, &p.source_map, ring.full_barrier(), kPlanes ? w : c,
                    kPlanes ? c : w, h, place.n, group);
      }
    }
  }

  // --- multiplying warps ---

  // A warp's strip of a tile: its first row and column.
  struct Strip {
    int row, column;
  };
  __device__ __forceinline__ Strip strip_of(int warp) const {
    const int line = warp / plan.strips_w;
    return {line * kStripRows, (warp - line * plan.strips_w) * kColumns};
  }

  __device__ __forceinline__ void multiply(int warp) const {
    const int lane = threadIdx.x % 32;
    const Strip strip = strip_of(warp);
    const int turn = (strip.column + plan.lead) % 8;
    uint32_t first = first_words(strip, lane);
    asm volatile("" : "+r"(first));  // so that it is kept, not made anew for each stage
    Ring ring = stages();
    for (int tile = first_tile; tile < plan.tiles; tile += tile_step) {
      float acc[kTiles][kAllRows / 2];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kAllRows / 2; ++j) acc[i][j] = 0;
        mma_pin(acc[i]);
      }
#pragma unroll 1
      for (int stage = 0; stage < plan.stages; ++stage, ring.advance()) {
        ring.wait_full();
        const uint32_t halo = shared_ + ring.slot * plan.slot_bytes;
        const int product = stage * kProducts, chunk = product / 4;  // of operand B's rows
        const uint64_t b = tile_descriptor(shared_ + plan.weights_at + chunk * kShifts * kAllRows * kOperandRowBytes,
                                           8 * kOperandRowBytes) +
                           2 * (product - chunk * 4);
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          uint32_t a[kHalo - 1][4];  // of a row and the next
          mma_wait<0>();
          gather(a, halo, first, turn, k, lane);
          mma_fence();
#pragma unroll
          for (int h = 0; h < kShifts; ++h) {
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
              MmaFromRegisters<T, kAllRows, false>::issue(acc[t], a[2 * t + h],
                                                          b + (h * kAllRows * kOperandRowBytes >> 4) + 2 * k, 1);
            }
          }
          mma_commit();
        }
        ring.release_if(lane == 0, ring.slot);  // its words are operands by now
      }
      mma_wait<0>();
#pragma unroll
      for (int i = 0; i < kTiles; ++i) mma_pin(acc[i]);
      const Place place = place_of(tile);
      if (__any_sync(~0u, !store(place, acc, strip, lane))) repair(place, strip, lane);
    }
  }

  // Where a lane's first words lie in a stage: of planes bytes, of pixels the pixel.
  __device__ __forceinline__ uint32_t first_words(const Strip& strip, int lane) const {
    if constexpr (!kPlanes) return (strip.row + lane / 8 % 2) * plan.pitch + strip.column + lane % 8;
    const uint32_t pitch = plan.pitch * kSize, row = strip.row * (kStageBytes / kSize) * pitch;
    const int column = strip.column + plan.lead;
    return kSize == 4 ? row + lane % 4 * pitch + (column + lane / 4) * kSize
                      : row + (lane % 8 + lane / 8 % 2 * 8) * pitch + (column / 8 + lane / 16) * 8 * kSize;
  }

  // Operand A of eight columns of each row of a strip's halo and of the next. turn: columns of planes of 16 bits that
  // begin that much behind a multiple of eight.
  __device__ __forceinline__ void gather(uint32_t (&a)[kHalo - 1][4], uint32_t halo, uint32_t first, int turn, int k,
                                         int lane) const {
    if constexpr (!kPlanes) {
      const int unit = 2 * k + lane / 16;
      uint32_t pixel = first;
#pragma unroll
      for (int r = 0; r < kHalo - 1; ++r, pixel += plan.pitch) {
        static_assert(kStageBytes == 64);  // so it is swizzled
        load_matrices(a[r], halo + pixel * kStageBytes + ((unit ^ (pixel >> 1 & 3)) << 4));
      }
      return;
    }
    const uint32_t pitch = plan.pitch * kSize, row_bytes = kStageBytes / kSize * pitch;
    uint32_t at = halo + first;
    uint32_t words[kHalo][2];  // of each row of the first half of the channels, and of the other
#pragma unroll
    for (int r = 0; r < kHalo; ++r, at += row_bytes) {
      if constexpr (kSize == 4) {
        words[r][0] = load_shared(at);
        words[r][1] = load_shared(at + 4 * pitch);
      } else {
        uint32_t octets[4];
        load_transposed_matrices(octets, at);
        words[r][0] = turned(octets[0], octets[2], turn, lane);
        words[r][1] = turned(octets[1], octets[3], turn, lane);
      }
    }
#pragma unroll
    for (int r = 0; r < kHalo - 1; ++r) {
      a[r][0] = words[r][0], a[r][1] = words[r + 1][0];
      a[r][2] = words[r][1], a[r][3] = words[r + 1][1];
    }
  }

  // --- results ---

  // A lane's pixel of a strip's row: rows and columns of the result from its first on, none where there is no pixel,
  // and where its first result lies.
  struct Pixel {
    int room_h, room_w;
    T* to;

    __device__ __forceinline__ bool has(const PicturesRow& row) const {
      return row.phase_h < room_h && row.phase_w < room_w;
    }
  };
  __device__ __forceinline__ Pixel pixel_of(const Place& place, const Strip& strip, int row, int lane) const {
    const int column = strip.column + lane / 4;
    const bool exists = lane / 4 < kColumns && column < plan.tile_columns;
    const int h = (place.h + strip.row + row) * layer.axis[0].result_step();
    const int w = (place.w + column) * layer.axis[1].result_step();
    return {exists ? layer.axis[0].result_size - h : 0, layer.axis[1].result_size - w,
            layer.result + place.n * layer.result_n + group * layer.result_channels * layer.result_m +
                h * layer.result_h + w * layer.result_w};
  }

  // Whether all results are finite.
  __device__ __forceinline__ bool store(const Place& place, const float (&acc)[kTiles][kAllRows / 2],
                                        const Strip& strip, int lane) const {
    constexpr bool kKeepsRows = kN == 16;  // in registers
    PicturesRow kept[kKeepsRows ? kN / 8 : 1][2];
    const auto load_rows = [&](PicturesRow(&row)[2], int j) {
      row[0] = rows[8 * j + lane % 4 * 2];
      row[1] = rows[8 * j + lane % 4 * 2 + 1];
    };
    if constexpr (kKeepsRows) {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) load_rows(kept[j], j);
    }
    float nothing = 0;  // NaN from the first result on that is not finite
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Pixel pixel = pixel_of(place, strip, 2 * i + half, lane);
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
          PicturesRow(&row)[2] = kept[kKeepsRows ? j : 0];
          if constexpr (!kKeepsRows) load_rows(row, j);
          float value[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            value[e] = row[e].bias + acc[i][4 * j + 2 * half + e];
#pragma unroll
            for (int w = 1; w < kShifts; ++w) {
              value[e] += __shfl_sync(~0u, acc[i][4 * (w * kN / 8 + j) + 2 * half + e], (lane + 4 * w) % 32);
            }
            nothing += 0 * value[e];
          }
          T* const to = pixel.to + row[0].at;
          if (!p.pairs) {
            store_if(pixel.has(row[0]), to, narrow<T>(value[0]));
            store_if(pixel.has(row[1]), pixel.to + row[1].at, narrow<T>(value[1]));
          } else if constexpr (kSize == 4) {
            store_if(pixel.has(row[0]), to, make_float2(value[0], value[1]));
          } else {
            store_if(pixel.has(row[0]), to, pack_pair<T>(value[0], value[1]));
          }
        }
      }
    }
    return nothing == 0;
  }

  // What a lane has stored that is not finite once more.
  __device__ __noinline__ void repair(const Place place, const Strip strip, int lane) const {
    for (int n = lane % 4 * 2; n < kN; n += n % 2 ? 7 : 1) {
      const PicturesRow row = rows[n];
      for (int i = 0; i < kStripRows; ++i) {
        const Pixel pixel = pixel_of(place, strip, i, lane);
        T* const at = pixel.to + row.at;
        if (!pixel.has(row) || 0 * widen(*at) == 0) continue;
        const int m = group * layer.result_channels + phase_of(n).m;
        *at = narrow<T>(exact_result(layer, place.n, m, layer.axis[0].result_size - pixel.room_h + row.phase_h,
                                     layer.axis[1].result_size - pixel.room_w + row.phase_w));
      }
    }
  }

  const PicturesParams<T>& p;
  const RepairParams<T>& layer;
  const HopperPicturesPlan& plan;
  const uint32_t shared_;
  PicturesRow* rows;  // shared, of operand B
  int* places;  // shared: of a tap of a channel its shift and row; -1: no phase has it
  int group, first_tile, tile_step;
};

template <class T, int kN, int kShifts, bool kPlanes>
__global__ void __launch_bounds__(kPicturesThreads, 1)
    pictures_kernel(const __grid_constant__ PicturesParams<T> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  PicturesBlock<T, kN, kShifts, kPlanes>(params, shared).run();
#endif
}

}  // namespace deconv::hopper
