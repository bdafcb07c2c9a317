// Shared by col2im's kernels: the walk of a block down its segments, and the warps that add up products.
#pragma once

#include "device/mbarrier.cuh"
#include "families/col2im/params.cuh"

namespace deconv::col2im {

// A segment's image, first row and first column, in pixels of a phase.
struct Segment {
  int n, h, w;
};

template <class Params>
__device__ __forceinline__ Segment place_segment(const Params& p, int index) {
  const int line = p.by_strips.quotient(index), n = p.by_segments.quotient(line);
  return {n, (line - n * p.plan.segments) * p.plan.segment_rows, (index - line * p.plan.strips) * p.plan.columns};
}

// A block's part of the work.
struct Share {
  int group, first_m;            // first_m: result channel, of the group
  int rows;                      // of products: channels and taps
  int first_segment, segments;   // segments: of all blocks
};

template <class Params>
__device__ __forceinline__ Share share_of_block(const Params& p) {
  Share share;
  unsigned block = blockIdx.x;
  const auto take = [&block](int count) {
    const int index = static_cast<int>(block % count);
    block /= count;
    return index;
  };
  share.first_m = take(p.plan.passes) * p.plan.channels;
  share.group = take(p.groups);
  share.first_segment = static_cast<int>(block);
  share.rows = p.plan.channels * static_cast<int>(p.by_taps.divisor);
  share.segments = p.batch * p.plan.strips * p.plan.segments;
  return share;
}

// Row of the ring of products for the next step's first source row.
__device__ __forceinline__ int next_row(const Col2imWalk& plan, int row) {
  return row + plan.rows >= plan.ring_rows ? row + plan.rows - plan.ring_rows : row + plan.rows;
}

// Offset of a row's weight from that of its group, first channel and source channel 0.
template <class Params>
__device__ __forceinline__ int64_t weight_of_row(const Params& p, int row) {
  const int m = p.by_taps.quotient(row), tap = row - m * static_cast<int>(p.by_taps.divisor);
  const int tap_h = p.by_kernel_w.quotient(tap), tap_w = tap - tap_h * p.axis[1].kernel;
  return m * p.weight_m + tap_h * p.weight_h + tap_w * p.weight_w;
}

// Shared memory, without operands: products, barriers, tables.
struct Products {
  float* at;  // [row][row of the ring][column], then a row of zeros for missing taps
  Ring stages;    // of the source
  Ring steps;  // of products
  int4* taps[2];  // by axis and phase: taps, first tap, its shift from the smallest

  template <class Params>
  __device__ __forceinline__ Products(const Params& p, unsigned char* shared) {
    at = reinterpret_cast<float*>(shared + p.plan.products_at);
    unsigned char* const tables = shared + p.plan.tables_at;
    const uint32_t of_stages = shared_address(tables), of_steps = of_stages + 16 * p.plan.slots;
    stages = {of_stages, of_stages + 8 * p.plan.slots, p.plan.slots};
    steps = {of_steps, of_steps + 16, 2};
    taps[0] = reinterpret_cast<int4*>(tables + 16 * (p.plan.slots + 2));
    taps[1] = taps[0] + p.axis[0].phases();
  }

  // fills, frees: arrivals that complete a stage's full and empty barriers. The others count threads that multiply and
  // add.
  __device__ __forceinline__ void init_barriers(int fills, int frees, int multiply_threads, int add_threads) const {
    for (int slot = 0; slot < stages.slots; ++slot) {
      barrier_init(stages.full + 8 * slot, fills);
      barrier_init(stages.empty + 8 * slot, frees);
    }
    for (int slot = 0; slot < steps.slots; ++slot) {
      barrier_init(steps.full + 8 * slot, multiply_threads);
      barrier_init(steps.empty + 8 * slot, add_threads);
    }
  }

  template <class Params>
  __device__ __forceinline__ void prepare(const Params& p, const Share& share, int threads) const {
    for (int a = 0; a < 2; ++a) {
      for (int phase = threadIdx.x; phase < p.axis[a].phases(); phase += threads) {
        const AxisTaps of = axis_taps(p.axis[a], phase, 0);
        taps[a][phase] = {of.count, of.first_tap, of.first_shift - (a == 0 ? p.plan.origin_h : p.plan.origin_w), 0};
      }
    }
    for (int i = threadIdx.x; i < p.plan.product_pitch; i += threads) at[share.rows * p.plan.product_pitch + i] = 0;
  }
};

// After each step, adds up the results whose last source row came in it. Results are divided into kinds (phase of the
// height, the channel if columns are adjacent, kVector neighbours of one source column) and units (32 columns of a
// row). A warp adds up some units of a kind at once.
template <class Params, int kWarps, int kMostUnits>
class AddingWarp {
  using T = typename Params::Element;
  static constexpr int kWordBytes = sizeof(float);

 public:
  // adding_warp: of those that add.
  __device__ __forceinline__ AddingWarp(const Params& params, const Products& of_products, const Share& of_block,
                                        int adding_warp, int lane_of_warp)
      : p(params), plan(params.plan), products(of_products), share(of_block), warp(adding_warp), lane(lane_of_warp) {}

  __device__ __forceinline__ void run() const {
    switch (p.vector_result) {
      case 4: add_neighbours<4>(); break;
      case 2: add_neighbours<2>(); break;
      default: add_neighbours<1>();
    }
  }

 private:
  template <int kVector>
  __device__ __forceinline__ void add_neighbours() const {
    const bool more = plan.units == kMostUnits;
    if (p.most_taps_w == 3) {
      more ? add_all<kVector, 3, kMostUnits>() : add_all<kVector, 3, kMostUnits / 2>();
    } else {
      more ? add_all<kVector, 2, kMostUnits>() : add_all<kVector, 2, kMostUnits / 2>();
    }
  }

  // kTaps: taps of a phase of the width that are loaded together.
  template <int kVector, int kTaps, int kUnits>
  __device__ __forceinline__ void add_all() const {
    const int behind = plan.shifts_h - 1, blocks = static_cast<int>(p.by_blocks.divisor);
    Neighbours<kVector> results;
    int found = -1;  // the kind that `results` describes
    Ring kept = products.steps;
    int ring = 0;  // row of the ring for the step's first source row
    for (int segment = share.first_segment; segment < share.segments; segment += plan.segment_blocks) {
      const Segment place = place_segment(p, segment);
      for (int step = 0; step < plan.steps; ++step) {
        const int first = max(0, step * plan.rows - behind);  // in pixels of a phase
        const int count = max(0, min(plan.segment_rows, (step + 1) * plan.rows - behind) - first);
        const int turns = (count * blocks + kUnits - 1) / kUnits, all = p.kinds * turns;
        const int each = (all + kWarps - 1) / kWarps, end = min(all, (warp + 1) * each);
        int item = warp * each, kind = item < end ? item / turns : 0, turn = item - kind * turns;
        kept.wait_full();
        for (; item < end; ++item) {
          if (kind != found) results = find_neighbours<kVector>(kind);
          found = kind;
          add_up<kVector, kTaps, kUnits>(place, results, first, count, turn * kUnits, first - step * plan.rows + ring);
          if (++turn == turns) ++kind, turn = 0;
        }
        kept.release(kept.slot);
        kept.advance();
        ring = next_row(plan, ring);
      }
    }
  }

  template <int kVector>
  struct Neighbours {
    int phase_h, phase_w;  // of the first one
    int64_t at;  // elements from a source column's first pixel, in channel 0, to its first result
    int taps_h, first_h;  // of the height: taps, shift of the first
    int most, taps_w[kVector];  // of the width
    int from[kVector];  // bytes to their first products, from those of column 0
    float bias[kVector];
  };

  template <int kVector>
  __device__ __forceinline__ Neighbours<kVector> find_neighbours(int kind) const {
    const int line = p.by_run.quotient(kind), e = (kind - line * static_cast<int>(p.by_run.divisor)) * kVector;
    Neighbours<kVector> r;
    r.phase_h = plan.columns_adjacent ? p.by_channels.quotient(line) : line;
    const int m0 = line - r.phase_h * (plan.columns_adjacent ? plan.channels : 1);
    const int4 of_h = products.taps[0][r.phase_h];
    r.taps_h = of_h.x;
    r.first_h = of_h.z;
    r.most = 0;
    int m = 0;
#pragma unroll
    for (int v = kVector - 1; v >= 0; --v) {
      r.phase_w = plan.columns_adjacent ? e + v : p.by_channels.quotient(e + v);
      m = plan.columns_adjacent ? m0 : e + v - r.phase_w * plan.channels;
      const int4 of_w = products.taps[1][r.phase_w];
      const int product = m * static_cast<int>(p.by_taps.divisor) + of_h.y * p.axis[1].kernel + of_w.y;
      r.from[v] = kWordBytes * (product * plan.product_pitch + of_w.z);
      r.taps_w[v] = of_w.x;
      r.most = max(r.most, of_w.x);
      r.bias[v] = p.bias == nullptr ? 0.f : widen(p.bias[share.group * p.result_channels + share.first_m + m]);
    }
    r.at = (share.group * p.result_channels + share.first_m + m) * p.result_m + r.phase_w * p.result_w;
    return r;
  }

  // Adds up units from first_unit on, of `count` rows of the phase from `first` on. ring: row of the ring that the
  // first of these rows reads at shift 0; not yet wrapped.
  template <int kVector, int kTaps, int kUnits>
  __device__ __forceinline__ void add_up(const Segment& place, const Neighbours<kVector>& results, int first, int count,
                                         int first_unit, int ring) const {
    const char* from[kUnits];
    int row[kUnits];
    int64_t to[kUnits];
    bool exists[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int line = p.by_blocks.quotient(first_unit + u);
      const int column = (first_unit + u - line * static_cast<int>(p.by_blocks.divisor)) * 32 + lane;
      const int h = (place.h + first + line) * p.axis[0].result_step() + results.phase_h;
      const int w = (place.w + column) * p.axis[1].result_step();
      exists[u] = line < count && column < plan.columns && h < p.axis[0].result_size &&
                  w + results.phase_w < p.axis[1].result_size;
      // Lanes beyond these read the last row and column.
      row[u] = min(line, count - 1) + ring + results.first_h;
      from[u] = reinterpret_cast<const char*>(products.at + plan.lead + min(column, plan.columns - 1));
      to[u] = h * p.result_h + w * p.result_w;
    }
    float sum[kUnits][kVector];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum[u][v] = results.bias[v];
    }
    add_up_taps<kVector, kTaps, kUnits>(sum, results, from, row);
    T* const image = p.result + place.n * p.result_n + results.at;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      Pack<T, kVector> values;
#pragma unroll
      for (int v = 0; v < kVector; ++v) values.value[v] = narrow<T>(sum[u][v]);
      if (exists[u]) *reinterpret_cast<Pack<T, kVector>*>(image + to[u]) = values;
    }
  }

  // row: of the ring, at the first tap; not yet wrapped.
  template <int kVector, int kTaps, int kUnits>
  __device__ __forceinline__ void add_up_taps(float (&sum)[kUnits][kVector], const Neighbours<kVector>& results,
                                              const char* const (&from)[kUnits], int (&row)[kUnits]) const {
    const int step_w = kWordBytes * (p.tap_step[1] * plan.product_pitch + p.shift_step[1]);
    const int step_h = kWordBytes * p.tap_step[0] * p.axis[1].kernel * plan.product_pitch;
    const int pitch = kWordBytes * plan.pitch, zero = kWordBytes * share.rows * plan.product_pitch;
    int of_line = 0;  // bytes from the first tap's products to those of this line of taps
#pragma unroll 1
    for (int a = 0; a < results.taps_h; ++a, of_line += step_h) {
      const char* line[kUnits];
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const unsigned in_ring = min(min(static_cast<unsigned>(row[u]), static_cast<unsigned>(row[u] + plan.ring_rows)),
                                     static_cast<unsigned>(row[u] - plan.ring_rows));
        line[u] = from[u] + in_ring * pitch;
        row[u] += p.shift_step[0];
      }
#pragma unroll 1
      for (int b = 0; b < results.most; b += kTaps) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          float value[kTaps][kUnits];
#pragma unroll
          for (int i = 0; i < kTaps; ++i) {
            const int at = b + i < results.taps_w[v] ? results.from[v] + of_line + (b + i) * step_w : zero;
#pragma unroll
            for (int u = 0; u < kUnits; ++u) value[i][u] = *reinterpret_cast<const float*>(line[u] + at);
          }
#pragma unroll
          for (int i = 0; i < kTaps; ++i) {
#pragma unroll
            for (int u = 0; u < kUnits; ++u) sum[u][v] += value[i][u];
          }
        }
      }
    }
  }

  const Params& p;
  const Col2imWalk& plan;
  const Products& products;
  const Share& share;
  const int warp, lane;
};

// The kernel of both GEMMs. Block: ConvBlock (gemm_sm80.cuh) or Sm90Block (gemm_sm90.cuh).
template <class Block>
__global__ void __launch_bounds__(Block::kThreads, 1)
    gemm_kernel(const __grid_constant__ typename Block::Params params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kServes = true;
#elif __CUDA_ARCH__ >= 800
  constexpr bool kServes = !Block::kHopper;
#else
  constexpr bool kServes = false;
#endif
  if constexpr (kServes) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Block(params, shared).run();
  }
}

}  // namespace deconv::col2im
