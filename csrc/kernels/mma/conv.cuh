// The mma family, forward and grad_input on tensor cores from compute capability 8.0 on: the same computation as
// kernels/gather/conv.cuh, as   sums[m][q] += w[m][c of a chunk, one tap] * source[c][q + shift of the tap].
//
// The weights are operand A, packed in the order of use (pack_weight.cuh); the pixels are operand B. A block computes
// tiles of result channels and pixels, one phase at a time, with four warps of 16 * kRows channels x 64 pixels. The
// pixels' halo lies in shared memory, once for all taps of a chunk of channels (source.cuh): a lane names the rows that
// its fragments come from, so a tap's shift is one addition. One tap of one chunk is a stage; asynchronous copies bring
// the weights of the next stages and the next halos.
#pragma once

#include <climits>

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
    weights_from_ = shared_ + plan.weights_at + (row_ * 32 + lane) * 16;
    weights_to_ = shared_ + plan.weights_at + threadIdx.x * 16;
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
      Result<T, kRows, kColumns>(p, work_, tile, phase, row_, pixel_, shared_).store(sums_);
    }
    copy_wait_all();
  }

 private:
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

  // The planes of an item that have taps, chunk by chunk.
  struct PlaneWalk {
    int chunk = 0;
    Plane plane{0, -1};
  };
  __device__ __forceinline__ bool find_plane(PlaneWalk& walk, const Phase& phase) const {
    do {
      if (++walk.plane.w < plan.planes_w) continue;
      walk.plane.w = 0;
      if (++walk.plane.h < plan.planes_h) continue;
      walk.plane.h = 0;
      if (++walk.chunk == plan.chunks) return false;
    } while (taps_h(phase, walk.plane.h).count == 0 || taps_w(phase, walk.plane.w).count == 0);
    return true;
  }

  // The halos in order, item by item.
  struct HaloWalk {
    ItemWalk at;
    PlaneWalk in_item;
    int slot = 0, tile = -1;  // tile: whose places are in the table
    bool more;
  };
  __device__ __forceinline__ void find_halo() {
    while (!find_plane(ahead_.in_item, ahead_.at.phase)) {
      ahead_.in_item = {};
      ++ahead_.at.item;
      ahead_.more = find_item(ahead_.at) > 0;
      if (!ahead_.more) return;
    }
  }
  __device__ __forceinline__ void next_halo() {
    ahead_.slot = ahead_.slot == plan.halos_ahead ? 0 : ahead_.slot + 1;
    find_halo();
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
      source_.copy(ahead_.in_item.chunk, ahead_.in_item.plane, halo(ahead_.slot));
    } else {
      load_units(threadIdx.x, source_.units());
    }
    next_halo();
  }

  // The weights of the stages in order.
  struct WeightWalk {
    ItemWalk at;
    int left;  // stages of the item from this one on
    const unsigned char* from;  // of the item: this thread's part
    uint32_t offset = 0, step;  // bytes from there to this stage's; to the next stage's
  };
  __device__ __forceinline__ void find_weights() {
    const int stages = find_item(weights_.at);
    weights_.offset = 0;
    weights_.left = stages > 0 ? stages : INT_MAX;  // after the last one nobody uses what comes
    weights_.step = stages > 0 ? stage_bytes_ : 0;
    const int64_t phase = stages > 0 ? static_cast<int64_t>(weights_.at.phase.h) * plan.phases_w + weights_.at.phase.w
                                     : 0;
    const int64_t column = static_cast<int64_t>(work_.group * plan.m_tiles + work_.m_tile) * plan.phases_h *
                               plan.phases_w +
                           phase;
    weights_.from = p.packed + column * plan.chunks * plan.slots_h * plan.slots_w * stage_bytes_ + threadIdx.x * 16;
  }
  // Into the slot of the stage before the current one, and on to the next stage.
  __device__ __forceinline__ void ask_for_weights() {
    constexpr int kBytes = kMmaThreads * 16, kOfWarp = kRows * 16 * kMmaRowBytes;
    static_assert(kOfWarp == kBytes || kOfWarp == 2 * kBytes, "one or two pieces for each thread and tile of a warp");
    const unsigned char* const from = weights_.from + weights_.offset;
    const uint32_t to = weights_to_ + spare_slot_;
    copy_16(to, from);
    if constexpr (kOfWarp == 2 * kBytes) copy_16(to + kBytes, from + kBytes);
    if (stage_bytes_ == 2 * kOfWarp) {
      copy_16(to + kOfWarp, from + kOfWarp);
      if constexpr (kOfWarp == 2 * kBytes) copy_16(to + kOfWarp + kBytes, from + kOfWarp + kBytes);
    }
    copy_commit();
    weights_.offset += weights_.step;
    if (--weights_.left == 0) {
      ++weights_.at.item;
      find_weights();
    }
  }
  __device__ __forceinline__ void next_slot() {
    spare_slot_ = stage_slot_;
    stage_slot_ = stage_slot_ == (kMmaStages - 1) * stage_bytes_ ? 0 : stage_slot_ + stage_bytes_;
  }

  __device__ __forceinline__ void start() {
    find_result_places(p, shared_ + plan.places_at);
    __syncthreads();
    ahead_.at.item = weights_.at.item = work_.first_item;
    find_weights();
    ahead_.more = find_item(ahead_.at) > 0;
    if (ahead_.more) find_halo();
    for (int i = 0; i < plan.halos_ahead && ahead_.more; ++i) bring_halo();
    static_assert(kMmaStages == 3, "the current stage, the next one and the spare slot");
    for (int stage = 0; stage < kMmaStages - 1; ++stage) {
      spare_slot_ = stage * stage_bytes_;
      ask_for_weights();
    }
    stage_slot_ = 0;
    spare_slot_ = (kMmaStages - 1) * stage_bytes_;
  }

  // A stage's share of a halo that comes through registers: the first loads are on the way while the tensor cores work.
  static constexpr int kUnits = 2;
  struct Units {
    typename SourceOf::Unit of[SourceOf::kCopies ? 1 : kUnits];
  };

  // The taps of one halo in order; each is a stage.
  struct TapWalk {
    int tap = 0, taps;
    int left_w, taps_w;  // of a line of taps: from this one on, all
    uint32_t pixels, next_w, next_h;  // address of the tap's first pixel; bytes to the next tap's, of the next line
  };
  __device__ __forceinline__ TapWalk taps_of(const Phase& phase, Plane plane) const {
    const TapRows h = taps_h(phase, plane.h), w = taps_w(phase, plane.w);
    TapWalk walk;
    walk.taps = h.count * w.count;
    walk.left_w = walk.taps_w = w.count;
    walk.pixels = halo(halo_slot_) + (h.first * plan.halo.w + w.first) * kMmaRowPitch;
    walk.next_w = w.step * kMmaRowPitch;
    walk.next_h = h.step * plan.halo.w * kMmaRowPitch - (w.count - 1) * walk.next_w;
    return walk;
  }
  __device__ __forceinline__ static void next_tap(TapWalk& walk) {
    ++walk.tap;
    const bool ends = --walk.left_w == 0;
    walk.pixels += ends ? walk.next_h : walk.next_w;
    walk.left_w = ends ? walk.taps_w : walk.left_w;
  }

  // Whether the operands of a step are loaded before the products of the one before it, so that tensor cores need not
  // wait for shared memory. Three products of one step hide the next one's loads, and need the registers.
  static constexpr bool kAhead = !Config::kSplit;

  // All stages of one item, each of two steps.
  __device__ __forceinline__ void accumulate(const Phase& phase) {
    static_assert(kMmaRowBytes == 2 * kStepBytes, "two steps of a stage");
    Operands even, odd;
    Units units;
    bool first = true;
    for (PlaneWalk walk; find_plane(walk, phase); first = false) {
      TapWalk tap = taps_of(phase, walk.plane);
      wait_for_stage();
      if constexpr (SourceOf::kCopies) {
        if (ahead_.more) bring_halo();
      }
      begin_stage(tap, units);
      load(even, tap.pixels, 0);
      if (kAhead && !first) multiply(odd);
      for (;;) {
        keep(tap, units);
        if constexpr (kAhead) {
          load(odd, tap.pixels, 1);
          multiply(even);
        } else {
          multiply(even);
          load(odd, tap.pixels, 1);
          multiply(odd);
        }
        next_slot();
        if (tap.tap + 1 == tap.taps) break;
        next_tap(tap);
        wait_for_stage();
        begin_stage(tap, units);
        load(even, tap.pixels, 0);
        if constexpr (kAhead) multiply(odd);
      }
      halo_slot_ = halo_slot_ == plan.halos_ahead ? 0 : halo_slot_ + 1;
    }
    if (kAhead && !first) multiply(odd);
  }

  // Until the next stage has come, and the current one is done with.
  __device__ __forceinline__ static void wait_for_stage() {
    copy_wait<kMmaStages - 2>();
    __syncthreads();
  }
  // Asks for what later stages need.
  __device__ __forceinline__ void begin_stage(const TapWalk& tap, Units& units) {
    if constexpr (!SourceOf::kCopies) {
      if (ahead_.more) {
        enter_tile();
        const int first = first_unit(tap);
#pragma unroll
        for (int i = 0; i < kUnits; ++i) units.of[i] = load_unit(first + i * kMmaThreads, end_unit(tap));
      }
    }
    ask_for_weights();
  }

  __device__ __forceinline__ int end_unit(const TapWalk& tap) const { return (tap.tap + 1) * share(tap); }
  __device__ __forceinline__ int first_unit(const TapWalk& tap) const { return tap.tap * share(tap) + threadIdx.x; }
  __device__ __forceinline__ int share(const TapWalk& tap) const {
    return (source_.units() + tap.taps * kMmaThreads - 1) / (tap.taps * kMmaThreads) * kMmaThreads;
  }
  __device__ __forceinline__ void keep(const TapWalk& tap, const Units& units) {
    if constexpr (!SourceOf::kCopies) {
      if (!ahead_.more) return;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) SourceOf::store(units.of[i]);
      load_units(first_unit(tap) + kUnits * kMmaThreads, end_unit(tap));
      if (tap.tap + 1 == tap.taps) next_halo();
    }
  }

  // Units begin, begin + kMmaThreads, ... below end of the halo ahead, some loads in flight at once.
  __device__ __forceinline__ void load_units(int begin, int end) const {
    for (int first = begin; first < end; first += kUnits * kMmaThreads) {
      typename SourceOf::Unit unit[kUnits];
#pragma unroll
      for (int i = 0; i < kUnits; ++i) unit[i] = load_unit(first + i * kMmaThreads, end);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) SourceOf::store(unit[i]);
    }
  }
  __device__ __forceinline__ typename SourceOf::Unit load_unit(int index, int end) const {
    return source_.load(index < end ? index : source_.units(), ahead_.in_item.chunk, ahead_.in_item.plane,
                        halo(ahead_.slot));
  }

  // Of one step.
  struct Operands {
    uint4 weights[kRows];
    uint32_t pixels[kColumns][2];
  };
  __device__ __forceinline__ void load(Operands& operands, uint32_t pixels, int step) const {
    const uint32_t weights = weights_from_ + stage_slot_ + step * (stage_bytes_ / 2);
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      uint32_t v[4];
      load_matrices(v, pixels + rows_[j / 2] + step * kStepBytes);
      operands.pixels[j][0] = v[0], operands.pixels[j][1] = v[1];
      operands.pixels[j + 1][0] = v[2], operands.pixels[j + 1][1] = v[3];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) operands.weights[i] = load_shared_16(weights + i * 512);
  }
  __device__ __forceinline__ void multiply(Operands& operands) {
    auto& b = operands.pixels;
    if constexpr (Config::kSplit) {
      const LowParts<kColumns> low_b(b);
#pragma unroll
      for (int i = 0; i < kRows; ++i) multiply_add_split<4>(sums_[i], operands.weights[i], b, low_b);
    } else {
      if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) b[j][0] = round_to_tf32(b[j][0]), b[j][1] = round_to_tf32(b[j][1]);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) multiply_add<T>(sums_[i][j], operands.weights[i], b[j][0], b[j][1]);
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
  uint32_t weights_from_, weights_to_;  // addresses in the first slot: of this lane's operands, of what it copies
  int rows_[kColumns / 2];  // bytes from a halo's beginning to what this lane names of 16 pixels
  HaloWalk ahead_;  // the next halo to bring
  WeightWalk weights_;  // the next weights
  int halo_slot_ = 0;  // in use
  uint32_t stage_slot_, spare_slot_;  // of the current stage; of the one before: bytes
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
