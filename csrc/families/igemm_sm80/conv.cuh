// igemm_sm80, forward and grad_input: implicit GEMM with mma.sync, from compute capability 8.0 on.
//
//   sums[m][q] += w[m, c, tap] * source[c, q + shift(tap)]       for each phase, source phase, k_block, tap
//
//   M = result channels   operand A   weights, packed in the order of use (pack_weight.cuh)
//   N = pixels            operand B   one halo for all taps, a row of shared memory for each pixel (load_source.cuh)
//   K = source channels   a turn of the loop: one tap, one band of 64 bytes of channels, two steps of 32 bytes
//
//   block   4 warps: tile.warps_m along M, the others along N;  warp   16 * kRows channels x 64 pixels
//
// Each lane names the rows that ldmatrix reads, so a tap's shift is one addition to its addresses. All warps copy and
// multiply: each turn issues the weights two turns ahead, the first turn of a halo also the next halo. A block takes
// work tiles (`item`: a tile of pixels in one phase) one after the other.
#pragma once

#include "families/igemm_sm80/epilogue.cuh"
#include "families/igemm_sm80/load_source.cuh"
#include "families/igemm_sm80/params.cuh"
#include "families/igemm_sm80/tf32x3.cuh"

namespace deconv::sm80 {

template <class T, int kRows_, bool kSplit_, SourceKind kSource_>
struct ConvConfig {
  using Element = T;
  static constexpr int kRows = kRows_;  // rows of 16 result channels of a warp
  static constexpr int kColumns = kSm80WarpPixels / 8;
  static constexpr bool kSplit = kSplit_;  // tf32x3
  static constexpr SourceKind kSource = kSource_;
  static constexpr bool kRounds = sizeof(T) == 4 && !kSplit && kSource != SourceKind::kRounded;  // pixels to TF32
  static constexpr int kBlocks = sm80_blocks(kRows, kSplit);
  static_assert(!kSplit || sizeof(T) == 4, "only float32 is split");
};

template <class Config>
class ConvBlock {
  using T = typename Config::Element;
  static constexpr int kRows = Config::kRows, kColumns = Config::kColumns;
  using SourceOf = Source<T, Config::kSource != SourceKind::kAny>;
  static constexpr bool kCopies = SourceOf::kCopies;
  static constexpr int kSteps = kSm80BandBytes / kStepBytes;
  static_assert(kSteps == 2, "the loop multiplies an even step and an odd one");

 public:
  __device__ __forceinline__ ConvBlock(const ConvParams<T>& params, unsigned char* shared)
      : p(params),
        plan(params.plan),
        work_(find_work(params)),
        shared_(shared_address(shared)),
        source_(params, work_, shared_ + params.plan.table_at),
        turn_bytes_(params.plan.tile.channels() * kSm80BandBytes) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    row_ = warp % plan.tile.warps_m * kRows;
    pixel_ = warp / plan.tile.warps_m * kSm80WarpPixels;
    weights_from_ = shared_ + plan.weights_at + (row_ * kSteps * 32 + lane) * 16;
    weights_to_ = shared_ + plan.weights_at + threadIdx.x * 16;
    // ldmatrix: lanes 0..7 and 16..23 name the first 16 bytes of eight pixels each, the other lanes the second 16.
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) {
      const int index = pixel_ + 16 * j + lane % 8 + lane / 16 * 8;
      const int line = p.pixels_w.quotient(index), image = p.pixels_h.quotient(line);
      const int row = (image * plan.halo.h + line - image * plan.pixels.h) * plan.halo.w + index - line * plan.pixels.w;
      rows_[j] = (image < plan.pixels.n ? row : 0) * sm80_row_pitch(plan.row_bytes) + lane / 8 % 2 * 16;
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
      if (count_turns(phase) > 0) {
        const bool has_halos = item < kept_until_;
        if (plan.keep_halos) kept_until_ = end_of_tile(item);
        if (has_halos) halo_slot_ = kept_from_;
        accumulate(phase, has_halos);
      }
      const Tile tile = tile_of(p, item);
      int row = row_, pixel = pixel_;
      // Keep the compiler from computing addresses before the loop, where they would hold registers. Not in tf32x3,
      // which has no registers to spare for that.
      if constexpr (!Config::kSplit) asm volatile("" : "+r"(row), "+r"(pixel));
      Result<T, kRows, kColumns>(p, work_, tile, phase, row, pixel, shared_).store(sums_);
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
  __device__ __forceinline__ int count_turns(const Phase& phase) const {
    return plan.bands * p.totals[0][phase.h] * p.totals[1][phase.w];
  }
  __device__ __forceinline__ int bands_of(int chunk) const {
    const int of_chunk = plan.row_bytes / kSm80BandBytes;
    return min(of_chunk, plan.bands - chunk * of_chunk);
  }

  // Work tiles in order, without those that have no taps.
  struct ItemWalk {
    int item;
    Phase phase;
  };
  __device__ __forceinline__ int find_item(ItemWalk& walk) const {  // from walk.item on; its turns, 0 at the end
    int turns = 0;
    for (; walk.item < work_.end_item && turns == 0; ++walk.item) {
      walk.phase = phase_of(p, walk.item);
      turns = count_turns(walk.phase);
    }
    --walk.item;
    return turns;
  }

  // Advances to the next source phase with taps; (0, -1) comes before the first.
  __device__ __forceinline__ bool next_plane(Plane& plane, const Phase& phase) const {
    do {
      if (++plane.w < plan.planes_w) continue;
      plane.w = 0;
      if (++plane.h == plan.planes_h) return false;
    } while (taps_h(phase, plane.h).count == 0 || taps_w(phase, plane.w).count == 0);
    return true;
  }

  // Halos in order: by work tile, source phase, k_block.
  struct HaloWalk {
    ItemWalk at;
    Plane plane{0, -1};
    int chunk = 0, slot = 0;
    int entered = -1;  // the tile, or tile and source phase, that the table describes
    bool more;
  };
  __device__ __forceinline__ void find_halo() {
    while (!next_plane(ahead_.plane, ahead_.at.phase)) {
      ahead_.plane = {0, -1};
      ++ahead_.at.item;
      ahead_.more = find_item(ahead_.at) > 0;
      if (!ahead_.more) return;
    }
  }
  __device__ __forceinline__ void next_halo() {
    ahead_.slot = next_slot(ahead_.slot);
    if (++ahead_.chunk < plan.chunks) return;
    ahead_.chunk = 0;
    if (plan.keep_halos) ahead_.at.item = end_of_tile(ahead_.at.item) - 1;
    find_halo();
  }
  __device__ __forceinline__ int next_slot(int slot) const { return slot + 1 == plan.halo_slots ? 0 : slot + 1; }
  // The first work tile of the next tile of pixels.
  __device__ __forceinline__ int end_of_tile(int item) const {
    return (p.phases.quotient(item) + 1) * static_cast<int>(p.phases.divisor);
  }
  // Fills the table for a new tile or source phase before its first halo is issued. Needs a barrier before it: threads
  // may still read the old entries.
  __device__ __forceinline__ void enter_tile() {
    const int tile = p.phases.quotient(ahead_.at.item), planes = plan.planes_h * plan.planes_w;
    const int place = planes == plan.table_planes ? tile
                                                  : tile * planes + ahead_.plane.h * plan.planes_w + ahead_.plane.w;
    if (place == ahead_.entered) return;
    source_.enter(tile_of(p, ahead_.at.item), ahead_.plane);
    __syncthreads();
    ahead_.entered = place;
  }
  __device__ __forceinline__ uint32_t halo(int slot) const { return shared_ + slot * plan.halo_bytes; }

  // Weights of the turns in order, the next to issue.
  struct WeightWalk {
    const unsigned char* from;  // this thread's part
    int left;  // turns of the work tile, this one included
    const unsigned char* next;  // of the next work tile that has any
    int next_item, next_turns;
  };
  // Searches from weights_.next_item on. Copies past the last work tile are never used, but the address must be valid.
  __device__ __forceinline__ void find_next_weights() {
    ItemWalk walk{weights_.next_item, {0, 0}};
    weights_.next_turns = find_item(walk);
    weights_.next_item = walk.item + 1;
    const int phase = weights_.next_turns > 0 ? walk.phase.h * plan.phases_w + walk.phase.w : 0;
    const int64_t column = static_cast<int64_t>(work_.group * plan.m_tiles + work_.m_tile) * plan.phases_h *
                               plan.phases_w +
                           phase;
    weights_.next = p.packed + column * plan.bands * plan.slots_h * plan.slots_w * turn_bytes_ + threadIdx.x * 16;
  }
  // Issues the copy into the slot of the turn before the current one, and advances to the next turn.
  __device__ __forceinline__ void ask_for_weights() {
    constexpr int kBytes = kSm80Threads * 16, kOfWarp = kRows * 16 * kSm80BandBytes;
    static_assert(kOfWarp == kBytes || kOfWarp == 2 * kBytes, "one or two pieces for each thread and tile of a warp");
    const uint32_t to = weights_to_ + spare_slot_;
#pragma unroll
    for (int i = 0; i < 4 * kOfWarp / kBytes; ++i) {
      copy_16_if(i * kBytes < turn_bytes_, to + i * kBytes, weights_.from + i * kBytes);
    }
    copy_commit();
    const bool ends = --weights_.left == 0;
    const uint32_t step = weights_.left > 0 ? turn_bytes_ : 0;  // none after the last work tile
    weights_.from = ends ? weights_.next : weights_.from + step;
    weights_.left = ends ? weights_.next_turns : weights_.left;
    if (ends) find_next_weights();
  }
  __device__ __forceinline__ void next_turn_slot() {
    spare_slot_ = turn_slot_;
    turn_slot_ = turn_slot_ == (kSm80Stages - 1) * turn_bytes_ ? 0 : turn_slot_ + turn_bytes_;
  }

  __device__ __forceinline__ void start() {
    find_result_places(p, shared_ + plan.places_at);
    __syncthreads();  // a block without halos meets no other barrier
    ahead_.at.item = weights_.next_item = work_.first_item;
    find_next_weights();
    weights_.from = weights_.next;
    weights_.left = weights_.next_turns;
    find_next_weights();
    ahead_.more = find_item(ahead_.at) > 0;
    if (ahead_.more) find_halo();
    for (int i = 0; i < plan.halos_ahead && ahead_.more; ++i) {
      if (i > 0) __syncthreads();
      enter_tile();
      if constexpr (kCopies) {
        source_.copy(ahead_.chunk, ahead_.plane, halo(ahead_.slot));
      } else {
        const int bands = bands_of(ahead_.chunk);
        load_units(0, source_.units(bands), bands);
      }
      next_halo();
    }
    static_assert(kSm80Stages == 3, "the current turn, the next one and the spare slot");
    for (int turn = 0; turn < kSm80Stages - 1; ++turn) {
      spare_slot_ = turn * turn_bytes_;
      ask_for_weights();
    }
    turn_slot_ = 0;
    spare_slot_ = (kSm80Stages - 1) * turn_bytes_;
  }

  // A turn's share of a halo that passes through registers. Its first loads are in flight while tensor cores work.
  struct Share {
    typename SourceOf::Unit first;
    int rest, end, bands;
  };

  // The turns of one halo in order: by tap, then band.
  struct TurnWalk {
    int turns, left;  // of the halo: all; from this one on
    int bands, left_of_tap;
    int taps_w, left_w;  // of a row of taps
    uint32_t pixels, next_w, next_h;  // address of the first pixel; bytes to the next tap's, to the next row's
  };
  __device__ __forceinline__ TurnWalk turns_of(const Phase& phase, Plane plane, int chunk) const {
    const TapRows h = taps_h(phase, plane.h), w = taps_w(phase, plane.w);
    const int pitch = sm80_row_pitch(plan.row_bytes);
    TurnWalk walk;
    walk.bands = walk.left_of_tap = bands_of(chunk);
    walk.turns = walk.left = h.count * w.count * walk.bands;
    walk.left_w = walk.taps_w = w.count;
    walk.pixels = halo(halo_slot_) + (h.first * plan.halo.w + w.first) * pitch;
    walk.next_w = w.step * pitch;
    walk.next_h = h.step * plan.halo.w * pitch - (w.count - 1) * walk.next_w;
    return walk;
  }
  __device__ __forceinline__ static void next_turn(TurnWalk& walk) {
    walk.pixels += kSm80BandBytes;
    if (--walk.left_of_tap > 0) return;
    walk.left_of_tap = walk.bands;
    const bool ends = --walk.left_w == 0;
    walk.pixels += (ends ? walk.next_h : walk.next_w) - walk.bands * kSm80BandBytes;
    walk.left_w = ends ? walk.taps_w : walk.left_w;
  }

  // Operands of one step.
  struct Operands {
    uint4 weights[kRows];
    uint32_t pixels[kColumns][2];
  };

  // Load the operands of a step before the products of the step before it, so that tensor cores need not wait for
  // shared memory. Not in tf32x3: three products hide the loads, and need the registers.
  static constexpr bool kAhead = !Config::kSplit;

  // All turns of one work tile. has_halos: its halos are in shared memory already.
  __device__ __forceinline__ void accumulate(const Phase& phase, bool has_halos) {
    Operands even, odd;
    Share share;
    bool first = true;
    const int first_slot = halo_slot_;
    for (Plane plane{0, -1}; next_plane(plane, phase);) {
      for (int chunk = 0; chunk < plan.chunks; ++chunk, first = false) {
        TurnWalk turn = turns_of(phase, plane, chunk);
        const bool brings = !has_halos && ahead_.more;
        wait_for_turn();
        if (brings) {
          enter_tile();
          if constexpr (kCopies) {
            source_.copy(ahead_.chunk, ahead_.plane, halo(ahead_.slot));
            next_halo();
          }
        }
        ask_for_weights();
        load(even, turn.pixels, 0);
        if (kAhead && !first) multiply(odd);
        for (;;) {
          if (!kCopies && brings) share = begin_share(turn);
          if constexpr (kAhead) {
            load(odd, turn.pixels, 1);
            multiply(even);
          } else {
            multiply(even);
            load(odd, turn.pixels, 1);
            multiply(odd);
          }
          if (!kCopies && brings) finish_share(share);
          next_turn_slot();
          if (--turn.left == 0) break;
          next_turn(turn);
          wait_for_turn();
          ask_for_weights();
          load(even, turn.pixels, 0);
          if constexpr (kAhead) multiply(odd);
        }
        if (!kCopies && brings) next_halo();
        halo_slot_ = next_slot(halo_slot_);
      }
    }
    if (kAhead && !first) multiply(odd);
    if (plan.keep_halos) kept_from_ = first_slot;
  }

  // Waits for the weights of the turn about to begin and the halos issued before them. The barrier also frees what the
  // turn before has read.
  __device__ __forceinline__ static void wait_for_turn() {
    copy_wait<kSm80Stages - 2>();
    __syncthreads();
  }

  __device__ __forceinline__ Share begin_share(const TurnWalk& turn) const {
    const int bands = bands_of(ahead_.chunk), all = source_.units(bands);
    const int count = (all + turn.turns - 1) / turn.turns, first = (turn.turns - turn.left) * count;
    const int end = min(first + count, all);
    return {load_unit(first, end, bands), first + 1, end, bands};
  }
  __device__ __forceinline__ void finish_share(const Share& share) const {
    SourceOf::store(share.first);
    load_units(share.rest, share.end, share.bands);
  }
  __device__ __forceinline__ void load_units(int first, int end, int bands) const {
    for (int index = first; index < end; ++index) SourceOf::store(load_unit(index, end, bands));
  }
  __device__ __forceinline__ typename SourceOf::Unit load_unit(int index, int end, int bands) const {
    return source_.load(index, end, bands, ahead_.chunk, ahead_.plane, halo(ahead_.slot));
  }

  __device__ __forceinline__ void load(Operands& operands, uint32_t pixels, int step) const {
    const uint32_t weights = weights_from_ + turn_slot_ + step * 512;
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      uint32_t v[4];
      load_matrices(v, pixels + rows_[j / 2] + step * kStepBytes);
      operands.pixels[j][0] = v[0], operands.pixels[j][1] = v[1];
      operands.pixels[j + 1][0] = v[2], operands.pixels[j + 1][1] = v[3];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) operands.weights[i] = load_shared_16(weights + i * kSteps * 512);
  }
  __device__ __forceinline__ void multiply(Operands& operands) {
    auto& b = operands.pixels;
    if constexpr (Config::kSplit) {
      const LowParts<kColumns> low_b(b);
#pragma unroll
      for (int i = 0; i < kRows; ++i) multiply_add_split<4>(sums_[i], operands.weights[i], b, low_b);
    } else {
      if constexpr (Config::kRounds) {
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
  const IgemmSm80Plan& plan;
  const Work work_;
  uint32_t shared_;
  SourceOf source_;
  int row_, pixel_;  // the warp's first row of 16 channels, its first pixel
  int rows_[kColumns / 2];  // bytes from a halo's start to the row that this lane names, of each 16 pixels
  uint32_t turn_bytes_;
  uint32_t weights_from_, weights_to_;  // addresses in the first slot: of this lane's operands; of what it copies
  HaloWalk ahead_;  // the next halo to produce
  WeightWalk weights_;
  int halo_slot_ = 0;  // in use
  int kept_from_ = 0, kept_until_ = 0;  // reused halos: slot of a tile's first, for work tiles below kept_until_
  uint32_t turn_slot_, spare_slot_;  // bytes: of the current turn; of the turn before
  float sums_[kRows][kColumns][4];
};

template <class Config>
__global__ void __launch_bounds__(kSm80Threads, Config::kBlocks)
    conv_kernel(const __grid_constant__ ConvParams<typename Config::Element> params) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  start_dependents();
  await_predecessors();
  ConvBlock<Config> block(params, shared);
  block.run();
#endif
}

}  // namespace deconv::sm80
