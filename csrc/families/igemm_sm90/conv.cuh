// Implicit GEMM with wgmma, forward and grad_input: the same computation as families/simt/conv.cuh.
//
//   acc[64 result channels m][N pixels q]  +=  sum over c of a k_block  w[m, c, tap] * source[c, q + shift(tap)]
//
//   A: weights, a row of plan.row_bytes of c for each m       B: halo, a row of plan.row_bytes of c for each pixel;
//                                                                a tap begins at another row (device/wgmma_sm90.cuh)
//   warpgroups 0, 1   multiply and store: neighbouring pixels with the same weights, the same pixels with the next 64
//                     channels, or (ping-pong) work tiles of their own
//   warp 8            one thread produces weights, packed in order of use (lowerings/pack_weight.cuh) or in place
//   warps 9..         produce halos (load_source.cuh, load_source_nchw.cuh) or im2col rows (load_source_im2col.cuh)
//
// Blocks are persistent; Pipelines connect the warps. If work tiles are too few for all multiprocessors, the blocks of
// a cluster share one: each takes a part of the source phases and k_blocks, and their sums are added in rank order.
#pragma once

#include "device/cluster_sum.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "families/igemm_sm90/epilogue.cuh"
#include "families/igemm_sm90/load_source_im2col.cuh"
#include "families/igemm_sm90/load_source_nchw.cuh"
#include "families/igemm_sm90/params.cuh"

namespace deconv::sm90 {

template <class Config>
class ConvBlock {
  using T = typename Config::Element;
  static constexpr int kPhases = Config::kPhases;
  static constexpr int kRowBytes = Config::kRowBytes;
  static constexpr int kMultiplyWarps = 8;
  static constexpr int kSkewBarrier = 1, kTurnBarriers = 2;  // kTurnBarriers: one for each warpgroup
  static constexpr int kSumBarrier = 4, kCopyBarriers = 5;  // kCopyBarriers: one for each warpgroup
  static constexpr bool kIsIm2col = Config::kSource == Sm90Source::kIm2col;

 public:
  __device__ __forceinline__ ConvBlock(const ConvParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), shared_(shared_address(shared)) {
    const uint32_t barriers = shared_ + plan.barriers_at;
    halos_ = {barriers, barriers + 8 * plan.halo_slots, plan.halo_slots};
    const uint32_t weights = barriers + 16 * plan.halo_slots;
    weights_ = {weights, weights + 8 * plan.weight_slots, plan.weight_slots};
    const uint32_t raw = weights + 16 * plan.weight_slots;
    raw_ = {raw, raw + 8 * plan.raw_slots, plan.raw_slots};
    nowhere_ = raw + 16 * plan.raw_slots;
  }

  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) {
      const int consumers = plan.in_turns ? kMultiplyWarps / 2 : kMultiplyWarps;
      for (int i = 0; i < halos_.slots; ++i) {
        barrier_init(halos_.full + 8 * i, Config::kSourceWarps);
        barrier_init(halos_.empty + 8 * i, consumers);
      }
      for (int i = 0; i < weights_.slots; ++i) {
        barrier_init(weights_.full + 8 * i, 1);
        barrier_init(weights_.empty + 8 * i, consumers);
      }
      for (int i = 0; i < raw_.slots; ++i) {
        barrier_init(raw_.full + 8 * i, 1);
        barrier_init(raw_.empty + 8 * i, Config::kSourceWarps);
      }
      barrier_init_fence();
    }
    if constexpr (kIsIm2col) MatrixSource::write_table(p, shared_ + plan.table_at);
    if constexpr (Config::kSource == Sm90Source::kTransposed) {
      if (plan.raw_boxes * plan.raw_row_bytes < kRowBytes) clear_halos();
    }
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // the shuffle tells the compiler that it is uniform
    if (warp < kMultiplyWarps) {
      if constexpr (Config::kMovesRegisters) take_registers<Config::kMultiplyRegisters>();
      multiply(warp / 4, warp % 4);
    } else {
      if constexpr (Config::kMovesRegisters) leave_registers<Config::kBringRegisters>();
      if (warp == kMultiplyWarps) {
        if (threadIdx.x % 32 == 0) bring_weights();
      } else {
        bring_source(threadIdx.x - 9 * 32);
      }
    }
  }

 private:
  using MatrixSource = Im2colSource<T, Config::kParts, kRowBytes, 32 * Config::kSourceWarps>;

  // The segments (source_phase, k_block) that this block adds up, in order: all of them, or its rank's part.
  struct Share {
    int plane = 0, plane_end, chunk = 0, chunk_end;  // first segment; chunk_end: of the last source_phase
    int chunks;

    __device__ __forceinline__ int begin(int of_plane) const { return of_plane == plane ? chunk : 0; }
    __device__ __forceinline__ int end(int of_plane) const { return of_plane == plane_end - 1 ? chunk_end : chunks; }
  };
  __device__ __forceinline__ Share share() const {
    Share share;
    share.plane_end = plan.planes_h * plan.planes_w;
    share.chunk_end = share.chunks = plan.chunks;
    if constexpr (Config::kSplits) {
      const int rank = cluster_rank(), segments = share.plane_end * plan.chunks;
      const int first = segments * rank / plan.split, last = segments * (rank + 1) / plan.split - 1;
      share.plane = first / plan.chunks;
      share.chunk = first - share.plane * plan.chunks;
      share.plane_end = last / plan.chunks + 1;
      share.chunk_end = last - (share.plane_end - 1) * plan.chunks + 1;
    }
    return share;
  }
  // A cluster has one work tile.
  static __device__ __forceinline__ int first_item() {
    if constexpr (Config::kSplits) return cluster_index();
    return blockIdx.x;
  }

  struct Taps {
    TapRange h, w;
    __device__ __forceinline__ int count() const { return h.count * w.count; }
  };
  __device__ __forceinline__ Taps taps_of(const Phases& phases, int k, int plane) const {
    const int plane_h = p.planes_w.quotient(plane), plane_w = plane - plane_h * plan.planes_w;
    Taps taps{p.taps[0][phases.h * plan.planes_h + plane_h], {0, 0, 0}};
    if (phases.w + k < plan.phases_w) {
      taps.w = p.taps[1][(phases.w + k) * plan.planes_w + plane_w];
    }
    return taps;
  }
  // A segment without taps needs no halo. A reused halo belongs to all phase groups, so it is never idle.
  __device__ __forceinline__ bool is_idle(const Phases& phases, int plane) const {
    if (plan.keep_halo) return false;
    int count = 0;
#pragma unroll
    for (int k = 0; k < kPhases; ++k) count += taps_of(phases, k, plane).count();
    return count == 0;
  }

  __device__ __forceinline__ void bring_weights() {
    await_predecessors();
    Ring ring = weights_;
    const Share share = this->share();
    for (int index = first_item(); index < plan.items; index += gridDim.x) {
      const Item item = find_item(p, index);
      const unsigned char* column = p.packed + (item.group * plan.m_tiles + item.m_tile) * plan.column_bytes;
      for (int group = item.phase_begin; group < item.phase_end; ++group) {
        const Phases phases = phases_of<kPhases>(p, group);
        for (int plane = share.plane; plane < share.plane_end; ++plane) {
          for (int chunk = share.begin(plane); chunk < share.end(plane); ++chunk) {
            for (int k = 0; k < kPhases; ++k) {
              const Taps taps = taps_of(phases, k, plane);
              const int segment = (group * plan.planes_h * plan.planes_w + plane) * plan.chunks + chunk;
              const unsigned char* slots = column + static_cast<int64_t>(segment * kPhases + k) * plan.slots_h *
                                                        plan.slots_w * plan.stage_bytes;
              for (int h = 0; h < taps.h.count; ++h) {
                for (int w = 0; w < taps.w.count; ++w) {
                  ring.wait_empty();
                  barrier_arrive_expecting(ring.full_barrier(), plan.stage_bytes);
                  const uint32_t stage = shared_ + plan.weights_at + ring.slot * plan.stage_bytes;
                  const int tap = (taps.h.k + h * p.tap_step[0]) * p.weight_stride[0] +
                                  (taps.w.k + w * p.tap_step[1]) * p.weight_stride[1];
                  if constexpr (Config::kMajorM) {
                    copy_weight_major_m(p, item, tap, chunk, stage, ring.full_barrier());
                  } else if (plan.weights == Sm90Weights::kMajorK) {
                    copy_weight<kRowBytes>(p, item, tap, chunk, stage, ring.full_barrier());
                  } else {
                    copy_bulk(stage, slots + static_cast<int64_t>(h * plan.slots_w + w) * plan.stage_bytes,
                              plan.stage_bytes, ring.full_barrier());
                  }
                  ring.advance();
                }
              }
            }
          }
        }
      }
      if (plan.resident_weights) break;
    }
  }

  // The halos that this block consumes, in order.
  struct HaloWalk {
    const ConvBlock& block;
    const Share share;
    int index = first_item(), group = 0, plane = 0, chunk = 0;
    Item item;

    __device__ __forceinline__ explicit HaloWalk(const ConvBlock& of) : block(of), share(of.share()) { enter_item(); }
    __device__ __forceinline__ bool more() const { return index < block.plan.items; }
    __device__ __forceinline__ void next() {
      if (++chunk < share.end(plane)) return;
      ++plane;
      skip_idle();
    }

   private:
    __device__ __forceinline__ void enter_item() {
      while (more()) {
        item = find_item(block.p, index);
        group = item.phase_begin;
        plane = share.plane;
        if (skip_idle_planes()) return;
        index += gridDim.x;
      }
    }
    __device__ __forceinline__ void skip_idle() {
      if (skip_idle_planes()) return;
      index += gridDim.x;
      enter_item();
    }
    __device__ __forceinline__ bool skip_idle_planes() {
      while (true) {
        const Phases phases = phases_of<kPhases>(block.p, group);
        while (plane < share.plane_end && block.is_idle(phases, plane)) ++plane;
        chunk = share.begin(plane);
        if (plane < share.plane_end) return true;
        if (!Config::kMayWait || block.plan.keep_halo || ++group == item.phase_end) return false;
        plane = share.plane;
      }
    }
  };

  __device__ __forceinline__ uint32_t halo_slot(const Ring& ring) const {
    return shared_ + ring.slot * plan.halo_bytes * Config::kParts;
  }

  // Signals that this warp has written its share of a halo. wgmma reads through the async proxy, hence the fence.
  __device__ __forceinline__ static void hand_over(const Ring& ring, int thread) {
    fence_to_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(ring.full_barrier());
  }

  __device__ __forceinline__ void bring_source(int thread) {
    // Keeps addresses in registers: otherwise the compiler computes them anew at each use.
    asm volatile("" : "+r"(shared_), "+r"(halos_.full), "+r"(halos_.empty), "+r"(raw_.full), "+r"(raw_.empty));
    if (plan.repack) await_predecessors();
    HaloWalk walk(*this);
    if (Config::kAsks && thread < 32) {
      if (thread > 0) return;
      if constexpr (Config::kSource == Sm90Source::kTensor) {
        ask_for_halos(walk);
      } else {
        ask_for_raw_boxes(walk);
      }
    } else if constexpr (kIsIm2col) {
      write_matrices(walk, thread);
    } else if constexpr (Config::kSource == Sm90Source::kTransposed) {
      transpose_boxes(walk, thread - 32);
    } else if constexpr (Config::kWrites) {
      write_halos(walk, Config::kAsks ? thread - 32 : thread);
    }
  }

  __device__ __forceinline__ void ask_for_halos(HaloWalk& walk) {
    Ring ring = halos_;
    // tf32x3: a halo that has landed still lacks its low parts, so TMA signals another barrier.
    const uint32_t landed = Config::kParts == 2 ? raw_.full : ring.full;
    for (; walk.more(); walk.next(), ring.advance()) {
      ring.wait_empty();
      copy_halo<kRowBytes>(p, walk.item, walk.plane, walk.chunk, halo_slot(ring), landed + 8 * ring.slot);
    }
  }

  // Zeros the channels that no raw box holds, once: nothing else writes them.
  __device__ __forceinline__ void clear_halos() const {
    const int bytes = plan.halo_slots * plan.halo_bytes * Config::kParts;
    for (int at = threadIdx.x * 16; at < bytes; at += Config::kThreads * 16) {
      store_shared(shared_ + at, make_uint4(0, 0, 0, 0));
    }
    fence_to_async_proxy();
  }

  __device__ __forceinline__ uint32_t raw_slot(const Ring& ring) const {
    return shared_ + plan.raw_at + ring.slot * plan.raw_slot_bytes;
  }
  __device__ __forceinline__ void ask_for_raw_boxes(HaloWalk& walk) {
    Ring ring = raw_;
    for (; walk.more(); walk.next()) {
      for (int box = 0; box < plan.raw_boxes; ++box, ring.advance()) {
        ring.wait_empty();
        copy_raw(p, walk.item, walk.plane,
                 (walk.chunk * kRowBytes + box * plan.raw_row_bytes) / static_cast<int>(sizeof(T)), raw_slot(ring),
                 ring.full_barrier());
      }
    }
  }

  __device__ __forceinline__ void write_matrices(HaloWalk& walk, int thread) {
    const MatrixSource source(p, thread, shared_ + plan.table_at);
    for (Ring ring = halos_; walk.more(); walk.next(), ring.advance()) {
      ring.wait_empty();
      source.load(walk.item, walk.chunk, halo_slot(ring));
      hand_over(ring, thread);
    }
  }

  __device__ __forceinline__ void write_halos(HaloWalk& walk, int thread) {
    const WarpSource<T, Config::kParts, kRowBytes, 32 * Config::kSourceWarps> source(p, thread);
    Ring raw = raw_;
    for (Ring ring = halos_; walk.more(); walk.next(), ring.advance()) {
      if constexpr (Config::kSource == Sm90Source::kTensor) {
        raw.wait_full();
        source.add_low_parts(halo_slot(ring));
        raw.advance();
      } else {
        ring.wait_empty();
        source.load(walk.item, walk.plane, walk.chunk, halo_slot(ring));
      }
      hand_over(ring, thread);
    }
  }

  __device__ __forceinline__ void transpose_boxes(HaloWalk& walk, int thread) {
    using Source = RawSource<T, Config::kParts, kRowBytes, 32 * Config::kSourceWarps>;
    const Source source(p, thread);
    typename Source::Places places;
    Ring raw = raw_;
    for (Ring ring = halos_; walk.more(); walk.next(), ring.advance()) {
      ring.wait_empty();
      const int skipped = skipped_columns(p, walk.item);
      if (skipped != places.skipped) source.find_places(places, skipped);
      for (int box = 0; box < plan.raw_boxes; ++box, raw.advance()) {
        raw.wait_full();
        source.transpose(places, raw_slot(raw), box, halo_slot(ring), nowhere_);
        __syncwarp();
        if (thread % 32 == 0) raw.release(raw.slot);
      }
      hand_over(ring, thread);
    }
  }

  // Descriptors of a stage: one tap of one k_block.
  struct Stage {
    uint64_t weight, source;
  };
  __device__ __forceinline__ bool mixes() const { return Config::kMixes || plan.merge > 1; }

  template <int kN>
  __device__ __forceinline__ static void issue(float (&acc)[kN / 2], const Stage& stage, bool accumulate) {
    constexpr int kRows = 32 / static_cast<int>(sizeof(T));  // of M-major weights that one wgmma takes
#pragma unroll
    for (int i = 0; i < kRowBytes / 32; ++i) {
      if constexpr (Config::kMajorM) {
        WgmmaMajorM<T, kN>::issue(acc, stage.weight + (kRows * kRowBytes >> 4) * i, stage.source + 2 * i,
                                  i > 0 || accumulate);
      } else {
        Wgmma<T, kN>::issue(acc, stage.weight + 2 * i, stage.source + 2 * i, i > 0 || accumulate);
      }
    }
  }

  __device__ __forceinline__ void multiply(int warpgroup, int warp) {
    constexpr int kN = 8 * Config::kGroups;
    const int lane = threadIdx.x % 32;
    using ConvResult = Result<T, Config::kGroups, kPhases, Config::kFold, Config::kMajorM, Config::kToBlocks>;
    const ConvResult result(p, warpgroup, warp, lane,
                            shared_ + plan.staging_at + (warpgroup * 4 + warp) * plan.staged_bytes);
    const bool leader = lane == 0;  // each warp releases for itself
    const bool releases_weights = leader && !plan.resident_weights;
    const int first_row = warpgroup == 0
                              ? 0
                              : plan.second.n * plan.row.n + plan.second.h * plan.row.h + plan.second.w * plan.row.w;
    const int first_weight = plan.tile_m > kSm90TileM ? warpgroup * Config::kStageBytes * Config::kParts : 0;
    const uint32_t first_stage = shared_ + plan.weights_at + first_weight;
    const uint64_t weight_base = Config::kMajorM ? tile_descriptor_mn(first_stage, 0)
                                                 : tile_descriptor(first_stage, 8 * kRowBytes, kRowBytes);
    const uint64_t source_base = tile_descriptor(shared_ + first_row * kRowBytes, plan.group_rows * kRowBytes,
                                                 kRowBytes);
    Ring halos = halos_, weights = weights_;
    const Share share = this->share();
    float acc[kPhases][kN / 2];
    // The second warpgroup starts `lead` stages after the first and keeps that distance, so that their stores take
    // turns.
    int lead = plan.skew;
    if (lead > 0 && warpgroup == 1) {
      named_barrier_sync(kSkewBarrier, 256);
      lead = 0;
    }

    if (plan.in_turns && warpgroup == 1) {
      skip(find_item(p, blockIdx.x), halos, weights);
      give_turn(0);
    }
    const int step = plan.in_turns ? 2 * gridDim.x : gridDim.x;
    for (int index = first_item() + (plan.in_turns ? warpgroup * gridDim.x : 0); index < plan.items; index += step) {
      const Item item = find_item(p, index);
      const bool other_has_next = index + static_cast<int>(gridDim.x) < plan.items;  // of the other warpgroup
      if (plan.resident_weights) {
        weights.slot = 0;
        weights.parity = 0;
      }
      for (int group = item.phase_begin; group < item.phase_end; ++group) {
        const Phases phases = phases_of<kPhases>(p, group);
        const bool last_group = group == item.phase_end - 1;
        const bool last_use = last_group || (Config::kMayWait && !plan.keep_halo);  // of this group's halos
        // Await the turn right before the first wait for a halo or weights. Earlier, a barrier may be a round behind,
        // and its parity would match too early.
        bool awaits_turn = plan.in_turns && (warpgroup == 1 || other_has_next || group == item.phase_begin);
        Ring ring = halos;  // each phase group walks a reused halo again
        // Slots that products under way still read are released a stage later, predicated: no branch between two
        // stages. The barrier of the next weights is tested a stage ahead.
        int old_weight = 0, old_halo = 0;
        bool owes_weight = false, owes_halo = false, weights_came = false;
#pragma unroll
        for (int k = 0; k < kPhases; ++k) {
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) acc[k][i] = 0;
          wgmma_pin(acc[k]);
        }
        for (int plane = share.plane; plane < share.plane_end; ++plane) {
          if (is_idle(phases, plane)) continue;
          Taps taps[kPhases];
#pragma unroll
          for (int k = 0; k < kPhases; ++k) taps[k] = taps_of(phases, k, plane);
          bool has_taps = false;
#pragma unroll
          for (int k = 0; k < kPhases; ++k) has_taps |= taps[k].count() > 0;
          const int chunk_end = share.end(plane);
          for (int chunk = share.begin(plane); chunk < chunk_end; ++chunk) {
            if (awaits_turn) await_turn(warpgroup);
            awaits_turn = false;
            ring.wait_full();
            const uint64_t halo = source_base + (ring.slot * plan.halo_bytes * Config::kParts >> 4);
#pragma unroll
            for (int k = 0; k < kPhases; ++k) {
              for (int h = 0; h < taps[k].h.count; ++h) {
                const int first_row = p.tap_row[0][taps[k].h.first + h];
                for (int w = 0; w < taps[k].w.count; ++w) {
                  const int row = first_row + p.tap_row[1][taps[k].w.first + w];
                  if (!weights_came) weights.wait_full();
                  const Stage stage{weight_base + (weights.slot * plan.stage_bytes >> 4),
                                    halo + (row * kRowBytes >> 4)};
                  if constexpr (Config::kParts == 1) {
                    wgmma_fence();
                    issue<kN>(acc[k], stage, true);
                    wgmma_commit();
                    const int slot = weights.slot;
                    weights.advance();
                    weights_came = weights.is_full();
                    wgmma_wait<1>();
                    weights.release_if(owes_weight, old_weight);
                    ring.release_if(owes_halo, old_halo);
                    old_weight = slot;
                    owes_weight = releases_weights;
                    owes_halo = false;
                  } else {
                    add_split(acc[k], stage);
                    weights.release_if(releases_weights, weights.slot);
                    weights.advance();
                    if (lead > 0 && --lead == 0) named_barrier_arrive(kSkewBarrier, 256);
                  }
                }
              }
            }
            if (last_use) {  // release this halo, after its last products
              if (Config::kParts == 1 && has_taps) {
                old_halo = ring.slot;
                owes_halo = leader;
              } else {
                __syncwarp();  // all lanes have seen it full
                if (leader) ring.release(ring.slot);
              }
            }
            ring.advance();
          }
        }
        if (awaits_turn) await_turn(warpgroup);  // no segment had taps: the turn is still due
        if (plan.in_turns && (other_has_next || (warpgroup == 1 && !last_group))) give_turn(1 - warpgroup);
        wgmma_wait<0>();
#pragma unroll
        for (int k = 0; k < kPhases; ++k) wgmma_pin(acc[k]);
        weights.release_if(owes_weight, old_weight);
        ring.release_if(owes_halo, old_halo);
        if (last_use) halos = ring;
        if constexpr (Config::kSplits) {
          named_barrier_sync(kSumBarrier, 256);  // the only work tile: no product reads what the sums overwrite
          if (!add_over_cluster<256>(acc[0], shared_ + threadIdx.x * 16, plan.split)) return;
        }
        if (mixes() && !result.all_finite(acc)) *p.not_finite = 1;
        result.add_bias(item, acc);
        if (Config::kMayCopy && plan.results == Sm90Results::kCopied) {
          copy_results(TmaStore<typename ConvResult::Tile>(result), item, group, acc, warpgroup);
        } else {
          result.store(item, phases, acc);
          __syncwarp();  // stores diverge, and what follows needs whole warps
        }
      }
      if (lead > 0) {
        named_barrier_arrive(kSkewBarrier, 256);
        lead = 0;
      }
      if (plan.in_turns && other_has_next) skip(find_item(p, index + gridDim.x), halos, weights);
    }
    if (Config::kMayCopy && threadIdx.x % 128 == 0) wait_copies_out();
  }

  // Stages a warpgroup's results and stores them by TMA. The staging rows are free once the copies before have read
  // them.
  template <class Store>
  __device__ __forceinline__ void copy_results(const Store& store, const Item& item, int phase_group,
                                               const typename Store::Accumulators& acc, int warpgroup) const {
    const uint32_t staged = shared_ + plan.staging_at + 4 * warpgroup * plan.staged_bytes;
    const bool leader = threadIdx.x % 128 == 0;
    const auto by_copies = [&](const auto& stage, const auto& copy) {
      if (leader) wait_copies_out();
      named_barrier_sync(kCopyBarriers + warpgroup, 128);
      stage();
      fence_to_async_proxy();
      named_barrier_sync(kCopyBarriers + warpgroup, 128);
      if (leader) copy();
    };
    if constexpr (Config::kCopiesColumns) {
      if (!Config::kCopiesChannels || !plan.channels_adjacent) {
        by_copies([&] { store.stage_columns(acc, staged); }, [&] { store.send_columns(item, phase_group, staged); });
        __syncwarp();
        return;
      }
    }
    if constexpr (Config::kCopiesChannels) {
#pragma unroll
      for (int part = 0; part < Store::kCopies; ++part) {
        by_copies([&] { store.stage_channels(acc, part, staged); },
                  [&] { store.send_channels(item, phase_group, part, staged); });
      }
    }
    __syncwarp();
  }

  // Ping-pong: a warpgroup's turn to multiply. The other gives it as soon as its own last products are issued. Each
  // turn given is awaited once, so a warpgroup without another work tile gets none.
  __device__ __forceinline__ static void await_turn(int warpgroup) {
    named_barrier_sync(kTurnBarriers + warpgroup, 256);
  }
  __device__ __forceinline__ static void give_turn(int warpgroup) {
    named_barrier_arrive(kTurnBarriers + warpgroup, 256);
  }

  // Moves both Pipelines past the other warpgroup's work tile. With ping-pong, the phase groups of a work tile share
  // its halos.
  __device__ __forceinline__ void skip(const Item& item, Ring& halos, Ring& weights) const {
    int halo_count = 0, stage_count = 0;
    for (int group = item.phase_begin; group < item.phase_end; ++group) {
      const Phases phases = phases_of<kPhases>(p, group);
      int planes = 0;
      for (int plane = 0; plane < plan.planes_h * plan.planes_w; ++plane) {
        if (is_idle(phases, plane)) continue;
        ++planes;
        for (int k = 0; k < kPhases; ++k) stage_count += taps_of(phases, k, plane).count();
      }
      halo_count = planes;
    }
    halos.skip(halo_count * plan.chunks);
    weights.skip(stage_count * plan.chunks);
  }

  // tf32x3: three TF32 products. Tensor cores truncate their running sum, so each stage starts from zero and is added
  // here in float32.
  template <int kHalf>
  __device__ __forceinline__ void add_split(float (&total)[kHalf], const Stage& stage) const {
    constexpr int kN = 2 * kHalf;
    float part[kHalf];
    const Stage low_source{stage.weight, stage.source + (plan.halo_bytes >> 4)};
    const Stage low_weight{stage.weight + (Config::kStageBytes >> 4), stage.source};
    wgmma_fence();
    issue<kN>(part, low_source, false);
    issue<kN>(part, low_weight, true);
    issue<kN>(part, stage, true);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(part);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) total[i] += part[i];
  }

  const ConvParams<T>& p;
  const IgemmSm90Plan& plan;
  uint32_t shared_;
  Ring halos_, weights_, raw_;
  uint32_t nowhere_;  // 16 bytes for rows outside the halo; never read
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    conv_kernel(const __grid_constant__ ConvParams<typename Config::Element> params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  start_dependents();
  ConvBlock<Config> block(params, shared);
  block.prepare();
  block.run();
#endif
}

}  // namespace deconv::sm90
