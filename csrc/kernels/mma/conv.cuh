// The mma family, forward and grad_input on tensor cores from compute capability 8.0 on: the same computation as
// kernels/gather/conv.cuh, as   sums[m][q] += w[m][c of a chunk, one tap] * source[c][q + shift of the tap].
//
// The weights are operand A, packed in the order of use (pack_weight.cuh); the pixels are operand B. A block computes
// tiles of result channels and pixels, one phase at a time, with four warps of 16 * kRows channels x 64 pixels. The
// pixels' halo lies in shared memory, once for all taps of a chunk of channels (source.cuh): a lane names the rows that
// its fragments come from, so a tap's shift is one addition. One tap of one chunk is a stage; asynchronous copies bring
// the weights of the next stages and the next halos.
#pragma once

#include "params.cuh"
#include "result.cuh"
#include "source.cuh"
#include "split.cuh"

namespace deconv::mma {

template <class T, int kRows_, bool kSplit_, bool kVector_>
struct ConvConfig {
  using Element = T;
  static constexpr int kRows = kRows_;  // of 16 result channels, for each warp
  static constexpr int kColumns = kMmaWarpPixels / 8;
  static constexpr bool kSplit = kSplit_;  // float32 as two TF32 parts
  static constexpr bool kVector = kVector_;  // 16 bytes of adjacent source channels at once
  static constexpr int kBlocks = mma_blocks(kRows, sizeof(T));
  static_assert(!kSplit || sizeof(T) == 4, "only float32 is split");
};

template <class Config>
class ConvBlock {
  using T = typename Config::Element;
  static constexpr int kRows = Config::kRows, kColumns = Config::kColumns;
  using SourceOf = Source<T, Config::kVector>;

 public:
  __device__ __forceinline__ ConvBlock(const ConvParams<T>& params, unsigned char* shared)
      : p(params),
        plan(params.plan),
        work_(find_work(params)),
        source_(params, work_, reinterpret_cast<Place*>(shared + params.plan.table_at)),
        shared_(shared_address(shared)),
        stage_bytes_(plan.tile.channels() * kMmaRowBytes) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row_ = warp % plan.tile.warps_m * kRows;
    weights_row_ = (row_ * 32 + lane) * 16;
    pixel_ = warp / plan.tile.warps_m * kMmaWarpPixels;
    // ldmatrix: lanes 0..7 and 16..23 name the first 16 bytes of eight pixels, the others the second.
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) {
      const int index = pixel_ + 16 * j + lane % 8 + lane / 16 * 8;
      const int line = p.pixels_w.quotient(index), image = p.pixels_h.quotient(line);
      const int row = (image * plan.halo.h + line - image * plan.pixels.h) * plan.halo.w + index - line * plan.pixels.w;
      rows_[j] = (image < plan.pixels.n ? row : 0) * kMmaRowPitch + lane / 8 % 2 * 16;
    }
  }

  __device__ __forceinline__ void run() {
    start();
    const uint32_t staging = shared_ + plan.staging_at + threadIdx.x / 32 * kStagingBytes;
    for (int item = work_.first_item; item < work_.end_item; ++item) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums_[i][j][e] = 0;
        }
      }
      const Phase phase = phase_of(p, item);
      accumulate(phase);
      const Tile tile = tile_of(p, item);
      Result<T, kRows, kColumns>(p, work_, tile, phase, row_, pixel_, staging).store(sums_);
    }
  }

 private:
  static constexpr int kStagingBytes = mma_staging_bytes(sizeof(T)) / (kMmaThreads / 32);

  __device__ __forceinline__ TapRows taps_h(const Phase& phase, int plane) const {
    return p.taps[0][phase.h * plan.planes_h + plane];
  }
  __device__ __forceinline__ TapRows taps_w(const Phase& phase, int plane) const {
    return p.taps[1][phase.w * plan.planes_w + plane];
  }
  __device__ __forceinline__ int stages_of(const Phase& phase) const {
    return plan.chunks * p.totals[0][phase.h] * p.totals[1][phase.w];
  }

  // The items in order, those without taps left out.
  struct ItemWalk {
    int item;
    Phase phase;
  };
  __device__ __forceinline__ int find_item(ItemWalk& walk) const {  // from walk.item on; its stages, 0 at the end
    int stages = 0;
    for (; walk.item < work_.end_item && stages == 0; ++walk.item) {
      walk.phase = phase_of(p, walk.item);
      stages = stages_of(walk.phase);
    }
    --walk.item;
    return stages;
  }

  // The halos in order: item by item, chunk by chunk, all planes that have taps.
  struct HaloWalk {
    ItemWalk at;
    int chunk = 0, slot = 0, tile = -1;  // tile: whose places are in the table
    Plane plane{0, -1};
    bool more;
  };
  __device__ __forceinline__ void find_plane() {
    do {
      if (++ahead_.plane.w < plan.planes_w) continue;
      ahead_.plane.w = 0;
      if (++ahead_.plane.h < plan.planes_h) continue;
      ahead_.plane.h = 0;
      if (++ahead_.chunk < plan.chunks) continue;
      ahead_.chunk = 0;
      ++ahead_.at.item;
      ahead_.more = find_item(ahead_.at) > 0;
      if (!ahead_.more) return;
    } while (taps_h(ahead_.at.phase, ahead_.plane.h).count == 0 || taps_w(ahead_.at.phase, ahead_.plane.w).count == 0);
  }
  __device__ __forceinline__ void next_halo() {
    ahead_.slot = ahead_.slot == plan.halos_ahead ? 0 : ahead_.slot + 1;
    find_plane();
  }
  // Before anything is asked of a halo: the places of a new tile, once nobody needs the old one's any more.
  __device__ __forceinline__ void enter_tile() {
    const int tile = p.phases.quotient(ahead_.at.item);
    if (tile == ahead_.tile) return;
    __syncthreads();
    source_.find_places(tile_of(p, ahead_.at.item));
    __syncthreads();
    ahead_.tile = tile;
  }
  __device__ __forceinline__ uint32_t halo(int slot) const { return shared_ + slot * plan.halo_bytes; }

  // A whole halo, and on to the next.
  __device__ __forceinline__ void bring_halo() {
    enter_tile();
    if constexpr (SourceOf::kCopies) {
      source_.copy(ahead_.chunk, ahead_.plane, halo(ahead_.slot));
    } else {
      load_units(threadIdx.x, source_.units());
    }
    next_halo();
  }

  // The weights of the stages in order.
  struct WeightWalk {
    ItemWalk at;
    int left = 0;  // stages of the item
    uint32_t slot = 0;  // bytes
    const unsigned char* from;
  };
  __device__ __forceinline__ void find_weights() {
    weights_.left = find_item(weights_.at);
    if (weights_.left == 0) return;
    const int64_t column = (static_cast<int64_t>(work_.group * plan.m_tiles + work_.m_tile) * plan.phases_h +
                            weights_.at.phase.h) *
                               plan.phases_w +
                           weights_.at.phase.w;
    weights_.from = p.packed + column * plan.chunks * plan.slots_h * plan.slots_w * stage_bytes_ + threadIdx.x * 16;
  }
  __device__ __forceinline__ uint32_t next_stage(uint32_t slot) const {
    return slot == (kMmaStages - 1) * stage_bytes_ ? 0 : slot + stage_bytes_;
  }
  __device__ __forceinline__ void ask_for_weights() const {
    if (weights_.left > 0) {
      constexpr int kBytes = kMmaThreads * 16, kOfWarp = kRows * 16 * kMmaRowBytes;
      const uint32_t to = shared_ + plan.weights_at + weights_.slot + threadIdx.x * 16;
      const auto copy = [](uint32_t to, const unsigned char* from) {
        if constexpr (kOfWarp == 2 * kBytes) {
          copy_16_twice<kBytes>(to, from);
        } else {
          static_assert(kOfWarp == kBytes, "one or two pieces for each thread");
          copy_16(to, from);
        }
      };
      copy(to, weights_.from);
      if (stage_bytes_ == 2 * kOfWarp) copy(to + kOfWarp, weights_.from + kOfWarp);
    }
    copy_commit();
  }
  __device__ __forceinline__ void next_weights() {
    if (weights_.left == 0) return;
    weights_.from += stage_bytes_;
    weights_.slot = next_stage(weights_.slot);
    if (--weights_.left == 0) {
      ++weights_.at.item;
      find_weights();
    }
  }

  __device__ __forceinline__ void start() {
    ahead_.at.item = weights_.at.item = work_.first_item;
    find_weights();
    ahead_.more = find_item(ahead_.at) > 0;
    if (ahead_.more) find_plane();
    for (int i = 0; i < plan.halos_ahead && ahead_.more; ++i) bring_halo();
#pragma unroll
    for (int i = 0; i < kMmaStages - 1; ++i) ask_for_weights(), next_weights();
  }

  // All stages of one item.
  __device__ __forceinline__ void accumulate(const Phase& phase) {
    for (int chunk = 0; chunk < plan.chunks; ++chunk) {
      for (int plane_h = 0; plane_h < plan.planes_h; ++plane_h) {
        const TapRows h = taps_h(phase, plane_h);
        for (int plane_w = 0; plane_w < plan.planes_w; ++plane_w) {
          const TapRows w = taps_w(phase, plane_w);
          const int count = h.count * w.count;
          if (count == 0) continue;
          uint32_t at = halo(halo_slot_) + (h.first * plan.halo.w + w.first) * kMmaRowPitch;
          const uint32_t next_w = w.step * kMmaRowPitch;
          const uint32_t next_h = h.step * plan.halo.w * kMmaRowPitch - (w.count - 1) * next_w;
          int tap_w = w.count;
          for (int tap = 0; tap < count; ++tap) {
            copy_wait<kMmaStages - 2>();
            __syncthreads();  // this stage has come, and the one before is done with
            const uint32_t weights = shared_ + plan.weights_at + stage_slot_;
            if constexpr (SourceOf::kCopies) {
              if (tap == 0 && ahead_.more) bring_halo();
              ask_for_weights();
              multiply_stage(weights, at);
            } else {
              ask_for_weights();
              multiply_and_load(weights, at, tap, count);
            }
            next_weights();
            stage_slot_ = next_stage(stage_slot_);
            const bool ends = --tap_w == 0;
            at += ends ? next_h : next_w;
            if (ends) tap_w = w.count;
          }
          halo_slot_ = halo_slot_ == plan.halos_ahead ? 0 : halo_slot_ + 1;
        }
      }
    }
  }

  // Units begin, begin + kMmaThreads, ... below end of the halo ahead, some loads in flight at once.
  __device__ __forceinline__ void load_units(int begin, int end) const {
    constexpr int kAhead = 2;
    for (int first = begin; first < end; first += kAhead * kMmaThreads) {
      typename SourceOf::Unit unit[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) unit[i] = load_unit(first + i * kMmaThreads, end);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) SourceOf::store(unit[i]);
    }
  }
  __device__ __forceinline__ typename SourceOf::Unit load_unit(int index, int end) const {
    return source_.load(index < end ? index : source_.units(), ahead_.chunk, ahead_.plane, halo(ahead_.slot));
  }

  // A stage, and a share of a halo through registers: the first loads are on the way while the tensor cores work.
  __device__ __forceinline__ void multiply_and_load(uint32_t weights, uint32_t pixels, int tap, int count) {
    if (!ahead_.more) {
      multiply_stage(weights, pixels);
      return;
    }
    enter_tile();
    constexpr int kAhead = 2;
    const int share = (source_.units() + count * kMmaThreads - 1) / (count * kMmaThreads) * kMmaThreads;
    const int first = tap * share + threadIdx.x, end = (tap + 1) * share;
    typename SourceOf::Unit unit[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) unit[i] = load_unit(first + i * kMmaThreads, end);
    multiply_stage(weights, pixels);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) SourceOf::store(unit[i]);
    load_units(first + kAhead * kMmaThreads, end);
    if (tap + 1 == count) next_halo();
  }

  __device__ __forceinline__ void multiply_stage(uint32_t weights, uint32_t pixels) {
    weights += weights_row_;
#pragma unroll
    for (int step = 0; step < kMmaRowBytes / kStepBytes; ++step) {
      uint32_t b[kColumns][2];
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        uint32_t v[4];
        load_matrices(v, pixels + rows_[j / 2] + step * kStepBytes);
        b[j][0] = v[0], b[j][1] = v[1], b[j + 1][0] = v[2], b[j + 1][1] = v[3];
      }
      const uint32_t of_step = weights + step * (stage_bytes_ / (kMmaRowBytes / kStepBytes));
      if constexpr (Config::kSplit) {
        const LowParts<kColumns> low_b(b);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          multiply_add_split<4>(sums_[i], load_shared_16(of_step + i * 512), b, low_b);
        }
      } else {
        if constexpr (sizeof(T) == 4) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) b[j][0] = round_to_tf32(b[j][0]), b[j][1] = round_to_tf32(b[j][1]);
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const uint4 a = load_shared_16(of_step + i * 512);
#pragma unroll
          for (int j = 0; j < kColumns; ++j) multiply_add<T>(sums_[i][j], a, b[j][0], b[j][1]);
        }
      }
    }
  }

  const ConvParams<T>& p;
  const MmaConvPlan& plan;
  const Work work_;
  SourceOf source_;
  uint32_t shared_;
  uint32_t stage_bytes_;
  int row_, pixel_;  // the warp's first row of 16 channels, its first pixel
  uint32_t weights_row_;  // bytes from a stage's beginning to this lane's part of its first row
  int rows_[kColumns / 2];  // bytes from a halo's beginning to what this lane names of 16 pixels
  HaloWalk ahead_;  // the next halo to bring
  WeightWalk weights_;  // the next weights
  int halo_slot_ = 0;  // in use
  uint32_t stage_slot_ = 0;
  float sums_[kRows][kColumns][4];
};

template <class Config>
__global__ void __launch_bounds__(kMmaThreads, Config::kBlocks)
    conv_kernel(const __grid_constant__ ConvParams<typename Config::Element> params) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  ConvBlock<Config> block(params, shared);
  block.run();
#endif
}

}  // namespace deconv::mma
