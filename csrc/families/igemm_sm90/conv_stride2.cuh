// Pixels as operand A, from NCHW: forward with stride 2 and kernel 3 or 4; as conv_1tap.cuh, with several taps.
//
//   y[m, 2 q + phase]  =  bias[m]  +  sum over the taps of phase and c of  x[c, q + shift(tap)] * w[c, m, tap]
//
//   A, registers: 8 octets of adjacent columns x k_block of c; a row is a pixel q of every phase
//   B, shared memory: 64 channels m x k_block of c for each tap, packed (lowerings/pack_weight.cuh)
//
//   warpgroups 0, 1   gather A from a halo, multiply, store: each phase has accumulators of its own, so a lane holds
//                     adjacent columns of the result and eight lanes store whole sectors
//   last warpgroup    one thread for each Pipeline produces: halos by TMA (a row a channel), weights by bulk copies
//
// An octet that a tap reads begins at any column: 16 bits shift two octets across lanes, float32 lanes load where they
// want. What is gathered serves all four phases. Weight-stationary if the weights of all channels and taps fit.
#pragma once

#include "device/memory.cuh"
#include "device/mma_sm80.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/igemm_sm90/params.cuh"
#include "families/igemm_sm90/plan_stride2.h"

namespace deconv::sm90 {

template <class T>
struct Stride2Params {
  CUtensorMap source_map;
  const unsigned char* packed;  // lowerings/pack_weight.cuh
  const T* bias;
  T* result;
  int64_t result_n, result_m, result_h;
  int height, width;  // of the result
  int result_channels;  // of a group
  Divisor columns, m_tiles, tiles_w, tiles_h;
  Stride2Plan plan;
};

template <class T, int kPattern, bool kResident>
class Stride2Block {
  static constexpr Stride2Pattern kTaps = kStride2Patterns[kPattern];
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kN = kStride2Channels, kWarpgroups = kStride2Warpgroups, kMultiplyWarps = 4 * kWarpgroups;
  static constexpr int kProducts = kSm90RowBytes / 32;  // wgmma of a k_block, 32 bytes of channels each
  static constexpr int kChannels = 32 / kSize;  // of one wgmma
  static constexpr int kChunk = kSm90RowBytes / kSize;  // channels
  static constexpr int kOctetBytes = 8 * kSize;
  static constexpr int kColumns = stride2_lines(kTaps), kRows = kColumns;  // of a pixel's halo
  static constexpr int kTileBytes = kN * kSm90RowBytes;  // weights of one tap
  static constexpr int kEvenTaps = stride2_bits(kTaps.even), kRowTaps = stride2_taps(kTaps);  // of a row of the kernel
  static constexpr int kBiasBarriers = 1;  // one for each warpgroup
  static constexpr int kOfItem = kResident ? 1 : kWarpgroups;  // tiles of a work tile
  using Product = WgmmaRs<T, kN, false>;

 public:
  static constexpr int kBringRegisters = 40, kMultiplyRegisters = 232;  // of a thread

  __device__ __forceinline__ Stride2Block(const Stride2Params<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < rings(); ++i) {
        const Ring ring = halo_ring(i);
        for (int slot = 0; slot < plan.slots; ++slot) {
          barrier_init(ring.full + 8 * slot, 1);
          barrier_init(ring.empty + 8 * slot, kResident ? 4 : kMultiplyWarps);
        }
      }
      const Ring weights = weight_ring();
      for (int slot = 0; slot < plan.weight_slots; ++slot) {
        barrier_init(weights.full + 8 * slot, 1);
        barrier_init(weights.empty + 8 * slot, kMultiplyWarps);
      }
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the shuffle tells the compiler that it is uniform
    if (warp < kMultiplyWarps) {
      take_registers<kMultiplyRegisters>();
      multiply(warp / 4, warp % 4);
    } else {
      leave_registers<kBringRegisters>();
      if (threadIdx.x % 32 != 0) return;
      const int bringer = warp - kMultiplyWarps;
      if (bringer < rings()) {
        bring_halos(bringer);
      } else if (bringer == rings()) {
        bring_weights();
      }
    }
  }

 private:
  __device__ __forceinline__ static constexpr int rings() { return kResident ? kWarpgroups : 1; }
  __device__ __forceinline__ Ring halo_ring(int index) const {
    const uint32_t barriers = shared_ + plan.barriers_at + index * 16 * plan.slots;
    return {barriers, barriers + 8 * plan.slots, plan.slots};
  }
  __device__ __forceinline__ Ring weight_ring() const {
    const uint32_t barriers = shared_ + plan.barriers_at + rings() * 16 * plan.slots;
    return {barriers, barriers + 8 * plan.weight_slots, plan.weight_slots};
  }
  __device__ __forceinline__ uint32_t halo_address(int ring, int slot) const {
    return shared_ + (ring * plan.slots + slot) * kOfItem * plan.halo_bytes;
  }
  __device__ __forceinline__ uint32_t weight_address(int slot) const {
    return shared_ + plan.weights_at + slot * plan.stage_bytes;
  }

  // has_row: a phase of the height has a tap in this row of a pixel's halo. slot_of: the index of that tap among the
  // phase's.
  __device__ __forceinline__ static constexpr int mask_of(int phase) { return phase ? kTaps.odd : kTaps.even; }
  __device__ __forceinline__ static constexpr bool has_row(int phase, int row) { return mask_of(phase) >> row & 1; }
  __device__ __forceinline__ static constexpr int slot_of(int phase, int row) {
    return has_row(phase, 0) || row == 0 ? row : row - 1;  // a phase's first tap is in row 0 or 1
  }

  // A work tile: a tile of pixels, or one for each warpgroup, and a column. If weights are resident, a block keeps its
  // column.
  struct Column {
    int group, m_tile;
  };
  __device__ __forceinline__ int first_item(int warpgroup) const {
    if constexpr (!kResident) return blockIdx.x;
    const int tile = p.columns.quotient(blockIdx.x), column = blockIdx.x - tile * plan.columns;
    return (tile * kWarpgroups + warpgroup) * plan.columns + column;
  }
  __device__ __forceinline__ int item_step() const { return kResident ? gridDim.x * kWarpgroups : gridDim.x; }
  __device__ __forceinline__ int tile_of(int index) const { return p.columns.quotient(index) * kOfItem; }
  __device__ __forceinline__ Column column_of(int index) const {
    const int column = p.columns.remainder(index), group = p.m_tiles.quotient(column);
    return {group, column - group * plan.weights.m_tiles};
  }
  struct Place {
    int image, h, w;  // the first pixel
  };
  __device__ __forceinline__ Place place_of(int tile) const {
    const int line = p.tiles_w.quotient(tile), image = p.tiles_h.quotient(line);
    return {image, (line - image * plan.tiles_h) * (kStride2Octets / plan.octets),
            (tile - line * plan.tiles_w) * plan.octets * 8};
  }

  __device__ __forceinline__ void bring_halos(int of_ring) const {
    Ring ring = halo_ring(of_ring);
    for (int index = first_item(of_ring); index < plan.items; index += item_step()) {
      const Column column = column_of(index);
      for (int chunk = 0; chunk < plan.weights.chunks; ++chunk, ring.advance()) {
        ring.wait_empty();
        barrier_arrive_expecting(ring.full_barrier(), kOfItem * plan.halo_bytes);
#pragma unroll
        for (int i = 0; i < kOfItem; ++i) {
          const Place place = place_of(tile_of(index) + i);
          copy_tensor(halo_address(of_ring, ring.slot) + i * plan.halo_bytes, &p.source_map, ring.full_barrier(),
                      place.w + plan.origin_w, chunk * kChunk, place.h + plan.origin_h, place.image, column.group);
        }
      }
    }
  }

  // A stage of weights, for a k_block, a row of a pixel's halo and a phase of the height: the taps of even columns,
  // then those of odd columns.
  __device__ __forceinline__ void bring_weights() const {
    await_predecessors();  // the packing of the weights has ended
    const IgemmSm90Plan& weights = plan.weights;
    const int slots = weights.slots_h * weights.slots_w;
    Ring ring = weight_ring();
    for (int index = first_item(0); index < plan.items; index += item_step()) {
      const Column column = column_of(index);
      const unsigned char* const from = p.packed +
                                        (column.group * weights.m_tiles + column.m_tile) * weights.column_bytes;
      for (int chunk = 0; chunk < weights.chunks; ++chunk) {
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
#pragma unroll
          for (int phase = 0; phase < 2; ++phase) {
            if (!has_row(phase, row)) continue;
            ring.wait_empty();
            barrier_arrive_expecting(ring.full_barrier(), plan.stage_bytes);
            const int stage = (phase * weights.chunks + chunk) * 2 * slots + slot_of(phase, row) * weights.slots_w;
            const unsigned char* const even = from + static_cast<int64_t>(stage) * kTileBytes;
            copy_bulk(weight_address(ring.slot), even, kEvenTaps * kTileBytes, ring.full_barrier());
            copy_bulk(weight_address(ring.slot) + kEvenTaps * kTileBytes, even + slots * kTileBytes,
                      (kRowTaps - kEvenTaps) * kTileBytes, ring.full_barrier());
            ring.advance();
          }
        }
      }
      if (kResident) break;
    }
  }

  struct Rows {
    uint32_t half[2];  // of the rows of operand A: where the lane's words, or rows of matrices, begin
    uint32_t pitch;  // from a channel to the next
  };
  // Gathers operand A of wgmma k for each column that taps read.
  __device__ __forceinline__ void gather(uint32_t (&a)[kColumns][4], const Rows& rows, int k, int lane) const {
    constexpr bool kBefore = kTaps.before;
    if constexpr (kSize == 2) {
      // Octet i: the first eight channels of both halves of operand A's rows, then the other channels.
      constexpr int kOctets = 1 + stride2_more_octets(kTaps);
      uint32_t octet[kOctets][4];
#pragma unroll
      for (int i = 0; i < kOctets; ++i) {
        const uint32_t at = (lane / 8 % 2 ? rows.half[1] : rows.half[0]) +
                            (k * kChannels + lane / 16 * 8 + lane % 8) * rows.pitch;
        load_transposed_matrices(octet[i], at + i * kOctetBytes);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int skipped = kBefore ? 7 + c : c;  // columns from the first octet on
          const uint32_t first = octet[skipped / 8][j];
          a[c][j] = skipped % 8 == 0
                        ? first
                        : turned(first, octet[skipped / 8 + 1 < kOctets ? skipped / 8 + 1 : 0][j], skipped % 8, lane);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t at = rows.half[j % 2] + (k * kChannels + lane % 4 + j / 2 * 4) * rows.pitch + lane / 4 * kSize;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) a[c][j] = load_shared(at + (kBefore ? 7 + c : c) * kSize);
      }
    }
  }

  template <int kOdd>
  __device__ __forceinline__ static void issue(float (&acc)[kN / 2], const uint32_t (&a)[kColumns][4],
                                               uint64_t weights) {
    int tap = kOdd ? kEvenTaps : 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (mask_of(kOdd) >> c & 1) Product::issue(acc, a[c], weights + (tap++ * kTileBytes >> 4), 1);
    }
  }
  struct Sums {
    float even[kN / 2], odd[kN / 2];  // columns
  };
  // Slots that products under way may still read; negative: none.
  struct Held {
    int halo = -1, weights[2] = {-1, -1};
  };
  // Multiplies row kRow of a pixel's halo, for one k_block.
  template <int kRow>
  __device__ __forceinline__ void multiply_row(Sums (&sums)[2], uint32_t (&a)[2][kColumns][4], const Rows& rows,
                                               Ring& weights, bool awaits, const Ring& halos, Held& held,
                                               int lane) const {
    uint64_t stage[2] = {};
    Held next;
#pragma unroll
    for (int phase = 0; phase < 2; ++phase) {
      if (!has_row(phase, kRow)) continue;
      if (awaits) weights.wait_full();
      stage[phase] = tile_descriptor(weight_address(weights.slot), 8 * kSm90RowBytes);
      next.weights[phase] = weights.slot;
      weights.advance();
    }
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      gather(a[k % 2], rows, k, lane);
      wgmma_fence();
#pragma unroll
      for (int phase = 0; phase < 2; ++phase) {
        if (!has_row(phase, kRow)) continue;
        issue<0>(sums[phase].even, a[k % 2], stage[phase] + 2 * k);
        issue<1>(sums[phase].odd, a[k % 2], stage[phase] + 2 * k);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the wgmma before are done, so their operands are free
      if (k == 0) {  // predicated: a branch would make the compiler wait for each wgmma
#pragma unroll
        for (int phase = 0; phase < 2; ++phase) {
          weights.release_if(!kResident && lane == 0 && held.weights[phase] >= 0, max(held.weights[phase], 0));
        }
        if (kRow == 0) halos.release_if(lane == 0 && held.halo >= 0, max(held.halo, 0));
      }
    }
    held.weights[0] = next.weights[0], held.weights[1] = next.weights[1];
  }

  // warp: of the warpgroup.
  __device__ __forceinline__ void multiply(int warpgroup, int warp) const {
    const int lane = threadIdx.x % 32, of_ring = kResident ? warpgroup : 0;
    Ring halos = halo_ring(of_ring), weights = weight_ring();
    const uint32_t bias = shared_ + plan.bias_at + warpgroup * kN * 4;
    Rows rows;
    rows.pitch = plan.halo_octets * kOctetBytes;
    const uint32_t row_bytes = kChunk * rows.pitch;
    uint32_t octets[2];  // where the octet of each half lies in a halo
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Octet octet = octet_of(warp, half);
      octets[half] = octet.row * row_bytes + octet.column * kOctetBytes;
    }
    Sums sums[2];  // of the phases of the height
    bool knows_column = false;
    for (int index = first_item(of_ring); index < plan.items; index += item_step()) {
      const Column column = column_of(index);
      const int tile = tile_of(index) + (kResident ? 0 : warpgroup);
      const bool is_new = !kResident || !knows_column;
      if (is_new) {
        if (!kResident) named_barrier_sync(kBiasBarriers + warpgroup, 128);  // the last biases have been read
        write_bias(column, bias, 32 * warp + lane);
      }
#pragma unroll
      for (int phase = 0; phase < 2; ++phase) {
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) sums[phase].even[i] = sums[phase].odd[i] = 0;
        wgmma_pin(sums[phase].even);
        wgmma_pin(sums[phase].odd);
      }
      uint32_t a[2][kColumns][4];  // while wgmma reads one, the next is gathered
      Held held;
#pragma unroll 1
      for (int chunk = 0; chunk < plan.weights.chunks; ++chunk) {
        halos.wait_full();
        const uint32_t halo = halo_address(of_ring, halos.slot) + (kResident ? 0 : warpgroup * plan.halo_bytes);
        rows.half[0] = halo + octets[0], rows.half[1] = halo + octets[1];
        multiply_row<0>(sums, a, rows, weights, is_new, halos, held, lane);
        rows.half[0] += row_bytes, rows.half[1] += row_bytes;
        multiply_row<1>(sums, a, rows, weights, is_new, halos, held, lane);
        if constexpr (kRows == 3) {
          rows.half[0] += row_bytes, rows.half[1] += row_bytes;
          multiply_row<2>(sums, a, rows, weights, is_new, halos, held, lane);
        }
        held.halo = halos.slot;
        halos.advance();
      }
      wgmma_wait<0>();
      if (lane == 0) {
#pragma unroll
        for (int phase = 0; phase < 2; ++phase) {
          weights.release_if(!kResident && held.weights[phase] >= 0, max(held.weights[phase], 0));
        }
        halos.release(held.halo);
      }
      if (is_new) named_barrier_sync(kBiasBarriers + warpgroup, 128);  // biases are there
      knows_column = true;
#pragma unroll
      for (int phase = 0; phase < 2; ++phase) {
        wgmma_pin(sums[phase].even);
        wgmma_pin(sums[phase].odd);
        store(tile, column, phase, warp, lane, bias, sums[phase].even, sums[phase].odd);
      }
    }
  }

  // The octet in a half of a warp's rows of operand A.
  struct Octet {
    int row, column;  // of a tile; column: in octets
  };
  __device__ __forceinline__ Octet octet_of(int warp, int half) const {
    const int index = 2 * warp + half, row = index / plan.octets;
    return {row, index - row * plan.octets};
  }

  __device__ __forceinline__ void write_bias(const Column& column, uint32_t bias, int thread) const {
    for (int n = thread; n < kN; n += 128) {
      const int m = column.m_tile * kN + n;
      const bool exists = p.bias != nullptr && m < p.result_channels;
      store_shared(bias + n * 4, __float_as_uint(exists ? widen(p.bias[column.group * p.result_channels + m]) : 0.0f));
    }
  }

  __device__ __forceinline__ void store(int tile, const Column& column, int phase, int warp, int lane, uint32_t bias,
                                        const float (&even)[kN / 2], const float (&odd)[kN / 2]) const {
    const Place place = place_of(tile);
    const int first = column.m_tile * kN + lane % 4 * 2, channels = p.result_channels - first;
    T* to[2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Octet octet = octet_of(warp, half);
      const int h = (place.h + octet.row) * 2 + phase;
      const int w = (place.w + octet.column * 8 + lane / 4) * 2;
      exists[half] = tile < plan.tiles && h < p.height && w < p.width;
      to[half] = p.result + place.image * p.result_n + (column.group * p.result_channels + first) * p.result_m +
                 h * p.result_h + w;
    }
    // Keeps addresses in registers: otherwise the compiler computes them anew for each element.
    asm volatile("" : "+l"(to[0]), "+l"(to[1]));
    bias += lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const uint2 both = load_shared_8(bias + j * 32);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const float more = __uint_as_float(b ? both.y : both.x);
        const bool is_channel = 8 * j + b < channels;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float low = even[4 * j + 2 * half + b] + more, high = odd[4 * j + 2 * half + b] + more;
          T* const at = to[half] + (8 * j + b) * p.result_m;
          if constexpr (kSize == 4) {
            store_if(exists[half] && is_channel, at, make_float2(low, high));
          } else {
            store_if(exists[half] && is_channel, at, pack_pair<T>(low, high));
          }
        }
      }
    }
  }

  const Stride2Params<T>& p;
  const Stride2Plan& plan;
  uint32_t shared_;
};

template <class T, int kPattern, bool kResident>
__global__ void __launch_bounds__(kStride2Threads, 1) stride2_kernel(const __grid_constant__ Stride2Params<T> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  start_dependents();
  Stride2Block<T, kPattern, kResident>(params, shared).run();
#endif
}

}  // namespace deconv::sm90
