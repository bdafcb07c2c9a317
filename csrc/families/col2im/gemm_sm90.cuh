// col2im on sm_90: as gemm_sm80.cuh, but TMA loads source rows and wgmma multiplies.
//
//   operand A   64 pixels: channels_last as TMA left it in shared memory; of NCHW, a warp gathers octets of columns
//   operand B   (channel, tap) rows in shared memory, weight-stationary
#pragma once

#include <cuda.h>

#include "device/mma_sm80.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/col2im/plan.h"
#include "families/col2im/scatter_add.cuh"
#include "families/igemm_sm90/load_weight.cuh"

namespace deconv::col2im {

template <class T>
struct Sm90Params {
  CUtensorMap source_map;
  Divisor of_channel;  // weights of a source channel in a block
  ConvParams<T, Col2imSm90Plan> conv;
};

template <class T, bool kPlanes>
class Sm90Block {
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kWarpgroups = kCol2imWarpgroups, kMultiplyWarps = 4 * kWarpgroups;
  static constexpr int kProducts = kCol2imChunkBytes / 32;  // of a k_block: 32 bytes of channels each
  static constexpr int kChannels = 32 / kSize;  // of one of them
  static constexpr int kChunk = kCol2imChunkBytes / kSize;  // channels
  static constexpr int kPrepareThreads = 32 * (kMultiplyWarps + kCol2imSm90AddWarps);
  static constexpr int kPrepared = 1;  // a named barrier
  static constexpr int kMultiplyRegisters = 120, kOtherRegisters = 80;  // of a thread

 public:
  using Params = Sm90Params<T>;
  static constexpr bool kHopper = true;
  static constexpr int kThreads = kCol2imSm90Threads;

  __device__ __forceinline__ Sm90Block(const Sm90Params<T>& params, unsigned char* shared)
      : p(params.conv),
        plan(params.conv.plan),
        source_map(&params.source_map),
        of_channel(params.of_channel),
        share(share_of_block(params.conv)),
        warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),  // tells the compiler that all lanes agree
        lane(threadIdx.x % 32),
        products(params.conv, shared),
        source(shared_address(shared)),
        weights(shared_address(shared) + plan.weights_at) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      products.init_barriers(1, kMultiplyWarps, 32 * kMultiplyWarps, 32 * kCol2imSm90AddWarps);
      sm90::barrier_init_fence();
    }
    __syncthreads();
    if (warp < kMultiplyWarps) {
      sm90::take_registers<kMultiplyRegisters>();
      prepare();
      multiply();
    } else {
      sm90::leave_registers<kOtherRegisters>();
      if (warp == kMultiplyWarps + kCol2imSm90AddWarps) {
        if (lane == 0) bring();
        return;
      }
      prepare();
      AddingWarp<ConvParams<T, Col2imSm90Plan>, kCol2imSm90AddWarps, kCol2imSm90MostUnits>(p, products, share,
                                                                                           warp - kMultiplyWarps, lane)
          .run();
    }
  }

 private:
  // Operand B: [k_block][row (result channel, tap)][128 bytes of channels].
  __device__ __forceinline__ void prepare() const {
    products.prepare(p, share, kPrepareThreads);
    const T* const from = p.weight + share.group * p.weight_group + share.first_m * p.weight_m;
    sm90::fill_operand_b<T, kPrepareThreads>(
        weights, plan.chunks, plan.operand_rows * kCol2imChunkBytes, p.source_channels, of_channel, kPrepared,
        [&](int c, int row) { return from[c * p.weight_c + weight_of_row(p, row)]; }, [](int row) { return row; });
  }

  __device__ __forceinline__ void bring() const {
    Ring ring = products.stages;
    for (int segment = share.first_segment; segment < share.segments; segment += plan.segment_blocks) {
      const Segment place = place_segment(p, segment);
      const int w = place.w + plan.origin_w - plan.staged_lead;
      int h = place.h + plan.origin_h;
      for (int step = 0; step < plan.steps; ++step, h += plan.rows) {
        for (int chunk = 0; chunk < plan.chunks; ++chunk, ring.advance()) {
          ring.wait_empty();
          sm90::barrier_arrive_expecting(ring.full_barrier(), plan.stage_bytes());
          const int c = chunk * kChunk;
          sm90::copy_tensor(source + ring.slot * plan.slot_bytes, source_map, ring.full_barrier(), kPlanes ? w : c,
                            kPlanes ? c : w, h, place.n, share.group);
        }
      }
    }
  }

  // --- multiplying warps ---

  __device__ __forceinline__ void multiply() const {
    switch (plan.operand_rows) {
      case 16: multiply_all<16>(); break;
      case 32: multiply_all<32>(); break;
      case 48: multiply_all<48>(); break;
      case 64: multiply_all<64>(); break;
      case 96: multiply_all<96>(); break;
      default: multiply_all<128>();
    }
  }

  // Where a lane finds its words of a tile's operand A in a stage. 16 bits: a row of 8x8 matrices. TF32: the first word
  // of either half of the rows.
  struct Words {
    uint32_t half[2];
  };
  __device__ __forceinline__ uint32_t channel_pitch() const { return plan.staged_pitch * kSize; }
  __device__ __forceinline__ Words find_words(int tile) const {
    const int octets = plan.staged_pitch / 8;
    uint32_t half[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int octet = min(8 * tile + 2 * (warp % 4) + i, plan.rows * octets - 1), row = octet / octets;
      half[i] = row * kChunk * channel_pitch() + (octet - row * octets) * 8 * kSize;
    }
    if constexpr (kSize == 2) {
      const uint32_t at = (lane / 8 % 2 ? half[1] : half[0]) + (lane / 16 * 8 + lane % 8) * channel_pitch();
      return {{at, at}};
    } else {
      const uint32_t at = lane % 4 * channel_pitch() + lane / 4 * kSize;
      return {{half[0] + at, half[1] + at}};
    }
  }
  __device__ __forceinline__ void gather(uint32_t (&a)[4], const Words& words, uint32_t stage, int k) const {
    const uint32_t at = stage + k * kChannels * channel_pitch();
    if constexpr (kSize == 2) {
      load_transposed_matrices(a, at + words.half[0]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j] = load_shared(at + words.half[j % 2] + j / 2 * 4 * channel_pitch());
    }
  }

  template <int kN>
  __device__ __forceinline__ void multiply_all() const {
    constexpr int kTiles = col2im_sm90_tiles(kN);
    const int warpgroup = warp / 4;
    Words words[kTiles];
    int place[kTiles][2];  // of a lane's products, from the step's first; -1: not needed
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = warpgroup + kWarpgroups * i;
      if constexpr (kPlanes) words[i] = find_words(tile);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        place[i][half] = place_pixel(64 * tile + 16 * (warp % 4) + 8 * half + lane / 4);
      }
    }
    Ring ring = products.stages, kept = products.steps;
    int row = 0;  // row of the ring for this step's first source row
    float acc[kTiles][kN / 2] = {};
    uint32_t a[2][kTiles][4];  // tensor cores read one set while the other is gathered
    for (int segment = share.first_segment; segment < share.segments; segment += plan.segment_blocks) {
#pragma unroll 1
      for (int step = 0; step < plan.steps; ++step) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) sm90::wgmma_pin(acc[i]);
        int held = -1;  // the slot that instructions in flight read
#pragma unroll 1
        for (int chunk = 0; chunk < plan.chunks; ++chunk) {
          ring.wait_full();
          const uint32_t stage = source + ring.slot * plan.slot_bytes;
          const uint64_t b = sm90::tile_descriptor(weights + chunk * kN * kCol2imChunkBytes, 8 * kCol2imChunkBytes);
#pragma unroll
          for (int k = 0; k < kProducts; ++k) {
            if constexpr (kPlanes) {
#pragma unroll
              for (int i = 0; i < kTiles; ++i) gather(a[k % 2][i], words[i], stage, k);
            }
            sm90::wgmma_fence();
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
              const int accumulate = k > 0 || chunk > 0;
              if constexpr (kPlanes) {
                sm90::WgmmaRs<T, kN, false>::issue(acc[i], a[k % 2][i], b + 2 * k, accumulate);
              } else {
                const uint32_t tile = stage + (warpgroup + kWarpgroups * i) * 64 * kCol2imChunkBytes;
                sm90::Wgmma<T, kN>::issue(acc[i], sm90::tile_descriptor(tile, 8 * kCol2imChunkBytes) + 2 * k, b + 2 * k,
                                          accumulate);
              }
            }
            sm90::wgmma_commit();
            sm90::wgmma_wait<1>();  // earlier instructions are done, their operands free
            if (k == 0) ring.release_if(lane == 0 && held >= 0, max(held, 0));
          }
          held = ring.slot;
          ring.advance();
        }
        sm90::wgmma_wait<0>();
        ring.release_if(lane == 0, held);
        kept.wait_empty();
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          sm90::wgmma_pin(acc[i]);
          keep_products<kN>(acc[i], place[i], row * plan.pitch);
        }
        barrier_arrive(kept.full_barrier());
        kept.advance();
        row = next_row(plan, row);
      }
    }
  }

  __device__ __forceinline__ int place_pixel(int pixel) const {
    const int row = pixel / plan.staged_pitch, column = pixel - row * plan.staged_pitch - plan.staged_lead;
    return row < plan.rows && column >= 0 && column < plan.pitch ? row * plan.pitch + column : -1;
  }

  // A lane has, of two pixels, the products of rows 2 * (lane % 4) and the next one of every 8. ring: where the step's
  // first pixel lies.
  template <int kN>
  __device__ __forceinline__ void keep_products(const float (&acc)[kN / 2], const int (&place)[2], int ring) const {
    const int first = lane % 4 * 2, pitch = plan.product_pitch * 4, all = plan.ring_rows * plan.pitch;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (place[half] < 0) continue;
      int at = place[half] + ring;
      if (at >= all) at -= all;
      const uint32_t to = shared_address(products.at) + at * 4 + first * pitch;
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          store_shared_if(8 * j + first + b < share.rows, to + (8 * j + b) * pitch,
                          __float_as_uint(acc[4 * j + 2 * half + b]));
        }
      }
    }
  }

  const ConvParams<T, Col2imSm90Plan>& p;
  const Col2imSm90Plan& plan;
  const CUtensorMap* source_map;
  const Divisor of_channel;
  const Share share;
  const int warp, lane;
  const Products products;
  const uint32_t source;   // shared: [slot], each [row][channel][column] or [row][column][channel]
  const uint32_t weights;  // shared
};

}  // namespace deconv::col2im
