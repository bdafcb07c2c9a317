// Pixels as operand A, all phases at once: forward, and grad_input of stride 1, with few result channels.
//
//   y[m, q * stride + phase] = bias[m] + sum over shifts and c of  w[c, m, tap(phase, shift)] * x[c, q + shift]
//
//   A, registers: 8 columns x 2 rows of a warp's strip a wgmma
//   B, shared memory, resident: rows (phase, m), filled up to kN, for each shift; zeros where a phase has no tap
//
//   warps 0..11   gather A from the halo, multiply, add the horizontal shifts, store
//   warp 12       produces halos by TMA, of kLines row by row
//
// A row of pixels in registers serves all vertical shifts. Horizontal shifts have rows of B of their own, which
// neighbouring lanes add at the end: of 8 columns, only those that have all their neighbours are results. A zero must
// not meet Inf, so results that are not finite are computed again. A lane's sums of two rows of B are adjacent in
// memory. If rows of the result begin at multiples of 16 bytes, results are staged and leave by TMA.
#pragma once

#include "core/divisor.h"
#include "device/memory.cuh"
#include "device/mma_sm80.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/igemm_sm90/load_weight.cuh"
#include "families/igemm_sm90/params.cuh"
#include "families/igemm_sm90/plan_all_phases.h"
#include "lowerings/nonfinite_repair.cuh"

namespace deconv::sm90 {

template <class T>
struct AllPhasesParams {
  CUtensorMap source_map, result_map;
  RepairParams<T> layer;
  Divisor tiles_w, tiles_h;
  Divisor taps, kernel, kernel_w;  // taps: of all channels
  bool pairs;  // results of two rows of operand B are adjacent and share a store
  bool copied;  // results are staged and leave by TMA
  AllPhasesPlan plan;
};

// A row of operand B: the offset of its result from a pixel's first, in memory or staged; its phases, kAllPhasesNoPhase
// if it has none; its bias.
struct alignas(16) AllPhasesRow {
  int at, phase_h, phase_w;
  float bias;
};
inline constexpr int kAllPhasesNoPhase = INT32_MAX;

template <class T, int kN, int kShifts, AllPhasesSource kSource>
class AllPhasesBlock {
  static constexpr bool kPlanes = has_planes(kSource), kLines = kSource == AllPhasesSource::kLines;
  static constexpr int kSize = static_cast<int>(sizeof(T)), kUnit = 16 / kSize;
  static constexpr int kMultiplyWarps = 4 * kAllPhasesWarpgroups;
  static constexpr int kStageBytes = all_phases_stage_channels(kSource);  // of channels
  static constexpr int kProducts = kStageBytes / 32;  // wgmma of a stage, 32 bytes of channels each
  static constexpr int kTiles = all_phases_strip_tiles(kN), kStripRows = all_phases_strip_rows(kN);
  static constexpr int kHalo = kStripRows + kShifts - 1;  // rows
  static constexpr int kColumns = all_phases_strip_columns(kShifts);
  static constexpr int kAllRows = kShifts * kN;  // of operand B, for one vertical shift
  static constexpr int kPrepared = 1, kStaged = 2;  // named barriers: of a block; of the first line of strips

 public:
  static constexpr int kBringRegisters = 56, kMultiplyRegisters = 152;  // of a thread

  __device__ __forceinline__ AllPhasesBlock(const AllPhasesParams<T>& params, unsigned char* shared)
      : p(params), layer(params.layer), plan(params.plan), shared_(shared_address(shared)) {
    rows = reinterpret_cast<AllPhasesRow*>(shared + plan.rows_at);
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
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the shuffle tells the compiler that it is uniform
    if (warp < kMultiplyWarps) {
      take_registers<kMultiplyRegisters>();
      prepare();
      multiply(warp);
    } else {
      leave_registers<kBringRegisters>();
      const int lane = threadIdx.x % 32;
      if (warp == kMultiplyWarps && (kLines || lane == 0)) bring(lane);
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

  // The row of operand B of channel m in a phase. Rows are in the order of the result in memory.
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

  // Fills operand B, [k_block][shift][row][128 bytes of channels], and `rows`. Every tap of every channel has one place
  // there; `places` says which.
  __device__ __forceinline__ void prepare() const {
    constexpr int kThreads = 32 * kMultiplyWarps;
    for (int n = threadIdx.x; n < kN; n += kThreads) {
      const Phase of = phase_of(n);
      const bool exists = of.h < layer.axis[0].phases();
      const int at = p.copied ? of.h * plan.staged_row + of.w * plan.staged_phase + of.m * plan.staged_channel
                              : static_cast<int>(of.h * layer.result_h + of.w * layer.result_w + of.m * layer.result_m);
      rows[n] = {at, exists ? of.h : kAllPhasesNoPhase, of.w,
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

  // Staged columns before the first that a row of a tile's halo needs.
  __device__ __forceinline__ int lead_of(const Place& place, int row) const {
    if constexpr (!kLines) return plan.lead;
    return static_cast<unsigned>(plan.lead + place.w + (place.h + row) * plan.lead_step) % kUnit;
  }

  __device__ __forceinline__ void bring(int lane) const {
    Ring ring = stages();
    for (int tile = first_tile; tile < plan.tiles; tile += tile_step) {
      const Place place = place_of(tile);
      const int h = place.h + plan.origin_h, w = place.w + plan.origin_w;
      for (int stage = 0; stage < plan.stages; ++stage, ring.advance()) {
        ring.wait_empty();
        if (lane == 0) barrier_arrive_expecting(ring.full_barrier(), plan.stage_bytes);
        const uint32_t to = shared_ + ring.slot * plan.slot_bytes;
        const int c = stage * kStageBytes / kSize;
        if constexpr (kLines) {
          __syncwarp();
          for (int row = lane; row < plan.halo_rows; row += 32) {
            const int first = (h + row) * layer.axis[1].source_size + w - lead_of(place, row);
            copy_tensor(to + row * kStageBytes * plan.pitch, &p.source_map, ring.full_barrier(), first, c, 0, place.n,
                        group);
          }
        } else {
          const int first = w - lead_of(place, 0);
          copy_tensor(to, &p.source_map, ring.full_barrier(), kPlanes ? first : c, kPlanes ? c : first, h, place.n,
                      group);
        }
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
    uint32_t first = first_words(strip, lane);
    asm volatile("" : "+r"(first));  // keeps it in a register: otherwise it is computed anew for each stage
    const int line = warp / plan.strips_w;
    const bool copies = p.copied && warp - line * plan.strips_w == 0 && lane == 0;
    const uint32_t staging = shared_ + plan.staged_at + 2 * line * plan.staged_bytes;
    uint32_t staged = staging;  // alternates between two buffers
    Ring ring = stages();
    for (int tile = first_tile; tile < plan.tiles; tile += tile_step) {
      const Place place = place_of(tile);
      const Columns columns = columns_of(place, strip, lane);
      float acc[kTiles][kAllRows / 2];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kAllRows / 2; ++j) acc[i][j] = 0;
        wgmma_pin(acc[i]);
      }
#pragma unroll 1
      for (int stage = 0; stage < plan.stages; ++stage, ring.advance()) {
        ring.wait_full();
        const uint32_t halo = shared_ + ring.slot * plan.slot_bytes;
        const int product = stage * kProducts, chunk = product / 4;  // the k_block of operand B
        const uint64_t b = tile_descriptor(shared_ + plan.weights_at + chunk * kShifts * kAllRows * kOperandRowBytes,
                                           8 * kOperandRowBytes) +
                           2 * (product - chunk * 4);
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          uint32_t a[kHalo - 1][4];  // of a row and the next
          wgmma_wait<0>();
          gather(a, halo, first, columns, k, lane);
          wgmma_fence();
#pragma unroll
          for (int h = 0; h < kShifts; ++h) {
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
              WgmmaRs<T, kAllRows, false>::issue(acc[t], a[2 * t + h],
                                                 b + (h * kAllRows * kOperandRowBytes >> 4) + 2 * k, 1);
            }
          }
          wgmma_commit();
        }
        ring.release_if(lane == 0, ring.slot);  // its words are in registers
      }
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kTiles; ++i) wgmma_pin(acc[i]);
      if (!p.copied) {
        const bool finite = p.pairs ? store<false, true>(place, acc, strip, lane, staged)
                                    : store<false, false>(place, acc, strip, lane, staged);
        if (__any_sync(~0u, !finite)) repair<false>(place, strip, lane, staged);
        continue;
      }
      const bool finite = p.pairs ? store<true, true>(place, acc, strip, lane, staged)
                                  : store<true, false>(place, acc, strip, lane, staged);
      if (__any_sync(~0u, !finite)) repair<true>(place, strip, lane, staged);
      fence_to_async_proxy();
      if (copies) wait_copies_out();  // of the tile before: the next tile takes its buffer
      named_barrier_sync(kStaged + line, 32 * plan.strips_w);
      if (copies) copy_out(place, strip, staged);
      staged = staged == staging ? staging + plan.staged_bytes : staging;
    }
    if (copies) wait_copies_out();
  }

  // Stores a line of a tile's strips by TMA, which leaves out results beyond the image.
  __device__ __forceinline__ void copy_out(const Place& place, const Strip& strip, uint32_t staged) const {
    const int h = (place.h + strip.row) * layer.axis[0].result_step(), w = place.w * plan.staged_column;
    copy_tensor_out(&p.result_map, staged, w, group * layer.result_channels, h, place.n, 0);
    commit_copies_out();
  }

  // Where a lane's first words lie in a stage. Columns adjacent: in bytes, without the column. Channels adjacent: in
  // pixels.
  __device__ __forceinline__ uint32_t first_words(const Strip& strip, int lane) const {
    if constexpr (!kPlanes) return (strip.row + lane / 8 % 2) * plan.pitch + strip.column + lane % 8;
    const uint32_t pitch = plan.pitch * kSize, row = strip.row * (kStageBytes / kSize) * pitch;
    return kSize == 4 ? row + lane % 4 * pitch + lane / 4 * kSize
                      : row + (lane % 8 + lane / 8 % 2 * 8) * pitch + lane / 16 * 8 * kSize;
  }

  // Columns adjacent: the strip's column and its first row's lead. kLines: the lead differs from row to row, and other
  // rows' columns lie on both sides, so `exist` says if this lane's column is in the image.
  struct Columns {
    int strip, lead, step;
    bool exist;

    __device__ __forceinline__ int of_row(int row) const {
      return strip + (kLines ? static_cast<unsigned>(lead + row * step) % kUnit : lead);
    }
  };
  __device__ __forceinline__ Columns columns_of(const Place& place, const Strip& strip, int lane) const {
    if constexpr (!kPlanes) return {};
    const int column = place.w + plan.origin_w + strip.column + lane / 4;
    return {strip.column, lead_of(place, strip.row), plan.lead_step, column >= 0 && column < layer.axis[1].source_size};
  }

  // Gathers operand A: eight columns of each row of a strip's halo and of the next row.
  __device__ __forceinline__ void gather(uint32_t (&a)[kHalo - 1][4], uint32_t halo, uint32_t first,
                                         const Columns& columns, int k, int lane) const {
    if constexpr (!kPlanes) {
      const int unit = 2 * k + lane / 16;
      uint32_t pixel = first;
#pragma unroll
      for (int r = 0; r < kHalo - 1; ++r, pixel += plan.pitch) {
        static_assert(kStageBytes == 64);  // the swizzle of rows of 64 bytes
        load_matrices(a[r], halo + pixel * kStageBytes + ((unit ^ (pixel >> 1 & 3)) << 4));
      }
      return;
    }
    const uint32_t pitch = plan.pitch * kSize, row_bytes = kStageBytes / kSize * pitch;
    uint32_t at = halo + first;
    uint32_t words[kHalo][2];  // of each row: the first half of the channels, the second half
#pragma unroll
    for (int r = 0; r < kHalo; ++r, at += row_bytes) {
      const int column = columns.of_row(r);
      if constexpr (kSize == 4) {
        words[r][0] = load_shared(at + column * kSize);
        words[r][1] = load_shared(at + column * kSize + 4 * pitch);
      } else {
        const int turn = column % 8;  // columns past a multiple of eight
        uint32_t octets[4];
        load_transposed_matrices(octets, at + (column - turn) * kSize);
        words[r][0] = turned(octets[0], octets[2], turn, lane);
        words[r][1] = turned(octets[1], octets[3], turn, lane);
      }
      if (kLines && !columns.exist) words[r][0] = words[r][1] = 0;
    }
#pragma unroll
    for (int r = 0; r < kHalo - 1; ++r) {
      a[r][0] = words[r][0], a[r][1] = words[r + 1][0];
      a[r][2] = words[r][1], a[r][3] = words[r + 1][1];
    }
  }

  // --- results ---

  // A lane's pixel in a row of the strip: rows and columns of the result from its first on (no rows if there is no
  // pixel), and where its first result lies, in memory and staged.
  struct Pixel {
    int room_h, room_w;
    T* to;
    uint32_t staged;

    __device__ __forceinline__ bool has(const AllPhasesRow& row) const {
      return row.phase_h < room_h && row.phase_w < room_w;
    }
  };
  __device__ __forceinline__ Pixel pixel_of(const Place& place, const Strip& strip, int row, int lane,
                                            uint32_t staged) const {
    const int column = strip.column + lane / 4;
    const bool exists = lane / 4 < kColumns && column < plan.tile_columns;
    const int h = (place.h + strip.row + row) * layer.axis[0].result_step();
    const int w = (place.w + column) * layer.axis[1].result_step();
    return {exists ? layer.axis[0].result_size - h : 0, layer.axis[1].result_size - w,
            layer.result + place.n * layer.result_n + group * layer.result_channels * layer.result_m +
                h * layer.result_h + w * layer.result_w,
            staged + (row * layer.axis[0].result_step() * plan.staged_row + column * plan.staged_column) * kSize};
  }

  // Adds bias and horizontal shifts and stores. Returns true if all results are finite.
  template <bool kStages, bool kPairs>
  __device__ __forceinline__ bool store(const Place& place, const float (&acc)[kTiles][kAllRows / 2],
                                        const Strip& strip, int lane, uint32_t staged) const {
    const bool has_column = lane / 4 < kColumns && strip.column + lane / 4 < plan.tile_columns;
    const auto put = [&](const Pixel& pixel, const AllPhasesRow& row, auto value) {
      if constexpr (kStages) {  // TMA leaves out what is beyond the image
        store_shared_if(has_column && row.phase_h != kAllPhasesNoPhase, pixel.staged + row.at * kSize, value);
      } else {
        store_if(pixel.has(row), pixel.to + row.at, value);
      }
    };
    float nothing = 0;  // NaN once a result is not finite: 0 * Inf and 0 * NaN are NaN
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const AllPhasesRow row[2] = {rows[8 * j + lane % 4 * 2], rows[8 * j + lane % 4 * 2 + 1]};
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Pixel pixel = pixel_of(place, strip, 2 * i + half, lane, staged);
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
          if constexpr (!kPairs) {
            put(pixel, row[0], narrow<T>(value[0]));
            put(pixel, row[1], narrow<T>(value[1]));
          } else if constexpr (kSize == 4) {
            put(pixel, row[0], make_float2(value[0], value[1]));
          } else {
            put(pixel, row[0], pack_pair<T>(value[0], value[1]));
          }
        }
      }
    }
    return nothing == 0;
  }

  // Computes again what this lane has stored that is not finite.
  template <bool kStages>
  __device__ __noinline__ void repair(const Place place, const Strip strip, int lane, uint32_t staged) const {
    for (int n = lane % 4 * 2; n < kN; n += n % 2 ? 7 : 1) {
      const AllPhasesRow row = rows[n];
      for (int i = 0; i < kStripRows; ++i) {
        const Pixel pixel = pixel_of(place, strip, i, lane, staged);
        if (!pixel.has(row)) continue;
        T* const at = pixel.to + row.at;
        const uint32_t staged_at = pixel.staged + row.at * kSize;
        if (0 * widen(kStages ? staged_value(staged_at) : *at) == 0) continue;
        const int m = group * layer.result_channels + phase_of(n).m;
        const T value = narrow<T>(exact_result(layer, place.n, m,
                                               layer.axis[0].result_size - pixel.room_h + row.phase_h,
                                               layer.axis[1].result_size - pixel.room_w + row.phase_w));
        if constexpr (kStages) {
          store_shared_if(true, staged_at, value);
        } else {
          *at = value;
        }
      }
    }
  }

  __device__ __forceinline__ static T staged_value(uint32_t at) {
    if constexpr (kSize == 4) {
      return __uint_as_float(load_shared(at));
    } else {
      const uint16_t bits = load_shared_short(at);
      return reinterpret_cast<const T&>(bits);
    }
  }

  const AllPhasesParams<T>& p;
  const RepairParams<T>& layer;
  const AllPhasesPlan& plan;
  const uint32_t shared_;
  AllPhasesRow* rows;  // shared memory: the rows of operand B
  int* places;  // shared memory: shift and row of a tap of a channel; -1: no phase has it
  int group, first_tile, tile_step;
};

template <class T, int kN, int kShifts, AllPhasesSource kSource>
__global__ void __launch_bounds__(kAllPhasesThreads, 1)
    all_phases_kernel(const __grid_constant__ AllPhasesParams<T> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  AllPhasesBlock<T, kN, kShifts, kSource>(params, shared).run();
#endif
}

}  // namespace deconv::sm90
