// Hopper family, grad_weight of float32 on tensor cores:
//   gw[m, n, kh, kw] = sum over images and pixels i of  x[m, i] * gy[n, i * s - p + k * d].
//
// TF32 operands must be K-major, K are pixels, and a descriptor moves by 16 bytes at least; so that any shift of
// grad_output can be an operand, neighbours in K are not neighbours in the image but the same position of eight strips:
// parts of rows, of one or several images. A kernel before packs both operands so (weight_strips_pack.cuh). Both are
// read from shared memory as they lie: A are 64 input channels m, B output channels n where the tap finds its position.
// A warpgroup accumulates the columns of plan.tile: taps and tiles of n. All warpgroups of a block share the input (and
// take other taps or other n) or grad_output (and take other m). A block walks down the rows of its strips, so that a
// row of grad_output is brought once for all taps.
//
// Splits write partial sums; add_splits.cuh adds them in order, so the result never changes from run to run.
#pragma once

#include "../../divisor.h"
#include "../../hopper_plan.h"
#include "../../hopper_weight_strips_plan.h"
#include "../../taps.h"
#include "../primitives.cuh"
#include "async.cuh"
#include "split.cuh"
#include "wgmma.cuh"

namespace deconv::hopper {

struct WeightStripsParams {
  const unsigned char *x, *y;  // a slice of both operands, packed
  float* result;  // (groups * channels_m, channels_n, kernel height, kernel width)
  float* partial;  // (splits, groups, taps, m, n), m and n padded; null without splits
  int64_t result_m, result_n, result_h, result_w;
  int channels_m, channels_n, groups, kernel_h, kernel_w;
  AxisGeometry axis_w;
  int stride_h, dilation_h;
  int steps;  // of the slice
  bool adds;  // to the partial sums of the slices before
  Divisor height, kernel_rows;
  HopperWeightStripsPlan plan;
};

// What one block computes: a tile of input channels, output channels and taps, over a range of steps.
struct StripsItem {
  int group, m, n;  // first group, first channels within it
  int first_tap;  // in the order of plan.kernel_column, rows of the kernel innermost
  int split;
  int begin, end;  // steps

  __device__ __forceinline__ explicit StripsItem(const WeightStripsParams& p) {
    const HopperWeightStripsPlan& plan = p.plan;
    unsigned rest = blockIdx.x;
    const auto take = [&](unsigned count) {
      const unsigned quotient = rest / count, digit = rest - quotient * count;
      rest = quotient;
      return static_cast<int>(digit);
    };
    first_tap = take(plan.blocks_tap) * plan.block_taps;
    n = take(plan.blocks_n) * plan.y_chunks * plan.tile.n;
    m = take(plan.blocks_m) * plan.x_chunks * kHopperWeightChannels;
    group = take(plan.blocks_group) * plan.fold;
    split = static_cast<int>(rest);
    begin = static_cast<int>(split * plan.steps_per_split);
    end = static_cast<int>(min(begin + plan.steps_per_split, static_cast<int64_t>(p.steps)));
  }
};

// The taps of one block: columns of the kernel from `first` on (places in plan.kernel_column), rows from first_kh on.
struct StripsTaps {
  int first, last, first_kh;

  __device__ __forceinline__ StripsTaps(const WeightStripsParams& p, const StripsItem& item) {
    const int last_tap = min(item.first_tap + p.plan.block_taps, p.kernel_h * p.kernel_w) - 1;
    first = p.kernel_rows.quotient(item.first_tap);
    last = p.kernel_rows.quotient(last_tap);
    first_kh = first == last ? item.first_tap - first * p.kernel_h : 0;
  }
};

// The steps of a block, one after the other. A step is one row of the input of eight strips.
struct StripsWalk {
  int left;  // steps
  int row;  // of the input
  bool fresh = true;  // a tile of strips begins: no row of grad_output is there yet

  __device__ __forceinline__ StripsWalk(const WeightStripsParams& p, const StripsItem& item)
      : left(item.end - item.begin), row(p.height.remainder(item.begin)) {}
  __device__ __forceinline__ void next(int height) {
    --left;
    fresh = ++row == height;
    if (fresh) row = 0;
  }
  // Rows of grad_output that this step is the first to read.
  __device__ __forceinline__ int new_rows(const HopperWeightStripsPlan& plan) const {
    return fresh ? plan.span : plan.advance;
  }
};

template <int kWarpgroups_, int kColumns_, int kN_, int kParts_>
struct WeightStripsConfig {
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kN = kN_;
  static constexpr int kParts = kParts_;  // 2: float32 as two TF32 parts
  static constexpr int kThreads = 128 * (kWarpgroups + 1);
};

template <class Config>
class WeightStripsBlock {
  static constexpr int kColumns = Config::kColumns, kN = Config::kN, kParts = Config::kParts;
  static constexpr int kMultiplyWarps = 4 * Config::kWarpgroups;
  using Product = Mma<float, kN>;

 public:
  __device__ __forceinline__ WeightStripsBlock(const WeightStripsParams& params, unsigned char* shared)
      : p(params), plan(params.plan), item_(params), taps_(params, item_), shared_(shared_address(shared)) {
    const uint32_t barriers = shared_ + plan.barriers_at;
    x_ = {barriers, barriers + 8 * plan.x_slots, plan.x_slots};
    const uint32_t of_rows = barriers + 16 * plan.x_slots;
    y_ = {of_rows, of_rows + 8 * plan.y_rows, plan.y_rows};
  }

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      start_ring(x_);
      start_ring(y_);
      barrier_init_fence();
    }
    __syncthreads();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;  // warp: the same in all lanes
    if (warp < kMultiplyWarps) {
      take_registers<Config::kWarpgroups == 3 ? 152 : 232>();
      multiply(warp / 4, warp % 4, lane);
    } else {
      leave_registers<Config::kWarpgroups == 3 ? 56 : 40>();
      if (warp == kMultiplyWarps && lane == 0) bring();
    }
  }

 private:
  __device__ __forceinline__ static void start_ring(const Ring& ring) {
    for (int i = 0; i < ring.slots; ++i) {
      barrier_init(ring.full + 8 * i, 1);
      barrier_init(ring.empty + 8 * i, 32 * kMultiplyWarps);
    }
  }

  __device__ __forceinline__ int plane_of(int place) const {
    return tap_place(p.axis_w, plan.kernel_column[place]).plane;
  }

  // One thread asks for every row of strips, as soon as its slot is free.
  __device__ __forceinline__ void bring() const {
    Ring x = x_, y = y_;
    int first_plane = 0, planes = 1;  // of the block's taps
    for (int i = 1; i <= taps_.last; ++i) {
      if (plane_of(i) != plane_of(i - 1)) ++(i <= taps_.first ? first_plane : planes);
    }
    // Bytes of a row of strips, of one plane; a slice has fewer than 2^32.
    const int group = item_.group / plan.fold;
    const uint32_t chunks_x = plan.blocks_m * plan.x_chunks, chunks_y = plan.blocks_n * plan.y_chunks;
    const uint32_t x_row = plan.blocks_group * chunks_x * plan.x_box_bytes;
    const uint32_t y_plane = plan.blocks_group * chunks_y * plan.y_box_bytes, y_row = plan.all_planes * y_plane;
    const uint32_t x_first = (group * chunks_x + item_.m / kHopperWeightChannels) * plan.x_box_bytes;
    const uint32_t y_first = (group * chunks_y + item_.n / kN) * plan.y_box_bytes + first_plane * y_plane;
    const uint32_t x_bytes = plan.x_chunks * plan.x_box_bytes, y_bytes = plan.y_chunks * plan.y_box_bytes;
    int step = item_.begin, tile = p.height.quotient(step);
    for (StripsWalk walk(p, item_); walk.left > 0; ++step) {
      const int new_rows = walk.new_rows(plan);
      int row = tile * plan.rows + walk.row * p.stride_h + taps_.first_kh * p.dilation_h + plan.span - new_rows;
      for (int i = 0; i < new_rows; ++i, ++row, y.advance()) {
        y.wait_empty();
        barrier_arrive_expecting(y.full_barrier(), kParts * planes * y_bytes);
        for (int part = 0; part < kParts; ++part) {
          const uint32_t to = shared_ + plan.y_at + y.slot * plan.y_row_bytes + part * (plan.y_row_bytes / 2);
          const uint32_t from = y_first + part * static_cast<uint32_t>(plan.y_part) + row * y_row;
          for (int plane = 0; plane < planes; ++plane) {
            copy_bulk(to + plane * y_bytes, p.y + from + plane * y_plane, y_bytes, y.full_barrier());
          }
        }
      }
      x.wait_empty();
      barrier_arrive_expecting(x.full_barrier(), kParts * x_bytes);
      for (int part = 0; part < kParts; ++part) {
        copy_bulk(shared_ + x.slot * plan.x_slot_bytes + part * (plan.x_slot_bytes / 2),
                  p.x + x_first + part * static_cast<uint32_t>(plan.x_part) + step * x_row, x_bytes, x.full_barrier());
      }
      x.advance();
      walk.next(p.height.divisor);
      if (walk.fresh) ++tile;
    }
  }

  // Of column t of a warpgroup.
  __device__ __forceinline__ int tap_of(int warpgroup, int t) const {
    const bool of_taps = plan.share == HopperWeightShare::kTaps;
    return item_.first_tap + (of_taps ? warpgroup * plan.column_taps : 0) + t / plan.column_chunks;
  }
  __device__ __forceinline__ int chunk_of(int warpgroup, int t) const {
    const bool of_n = plan.share == HopperWeightShare::kOutputChannels;
    return (of_n ? warpgroup * plan.column_chunks : 0) + t % plan.column_chunks;
  }

  // Where a column finds its operand B: the row after a step's first, the bytes from a row's begin to its tile, and
  // the position of a strip's first pixel.
  struct Column {
    int row, at, position;
  };
  __device__ __forceinline__ Column find_column(int warpgroup, int t) const {
    const int tap = min(tap_of(warpgroup, t), p.kernel_h * p.kernel_w - 1);  // past the last: nobody stores it
    const int place = p.kernel_rows.quotient(tap), kh = tap - place * p.kernel_h;
    const TapPlace at = tap_place(p.axis_w, plan.kernel_column[place]);
    int plane = 0, first_shift = 0;  // among the block's; of all taps of that plane
    for (int i = 0; i <= place; ++i) {
      if (i > 0 && plane_of(i) == plane_of(i - 1)) continue;
      first_shift = tap_place(p.axis_w, plan.kernel_column[i]).shift;
      if (i > taps_.first) ++plane;
    }
    const int box = plane * plan.y_chunks + chunk_of(warpgroup, t);
    return {(kh - taps_.first_kh) * p.dilation_h, box * plan.y_box_bytes, at.shift - first_shift};
  }

  // From a strip's position 0 to another, in units of 16 bytes; `rows`: channels of a box.
  __device__ __forceinline__ static uint32_t at_position(int position, int rows) {
    return position / kHopperStripUnit * (rows * kHopperRowBytes >> 4) + position % kHopperStripUnit * 2;
  }

  // A step's operands: lower halves of descriptors at position 0 of the strips.
  struct Step {
    uint32_t a, b[kColumns];
  };
  __device__ __forceinline__ static uint64_t join(uint32_t low, uint32_t high) {
    return static_cast<uint64_t>(high) << 32 | low;
  }

  __device__ __forceinline__ void multiply(int warpgroup, int warp, int lane) {
    const int x_box = plan.share == HopperWeightShare::kInputChannels ? warpgroup : 0;
    const uint64_t descriptor = tile_descriptor(shared_, 8 * kHopperRowBytes);
    const uint32_t high = static_cast<uint32_t>(descriptor >> 32), first_row = static_cast<uint32_t>(descriptor);
    const uint32_t a_row = first_row + (x_box * plan.x_box_bytes >> 4), b_row = first_row + (plan.y_at >> 4);
    int row[kColumns], position[kColumns];
    uint32_t at[kColumns];
#pragma unroll
    for (int t = 0; t < kColumns; ++t) {
      const Column column = find_column(warpgroup, t);
      row[t] = column.row;
      at[t] = b_row + (column.at >> 4);
      position[t] = column.position;
    }
    float acc[kColumns][kN / 2];
#pragma unroll
    for (int t = 0; t < kColumns; ++t) {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) acc[t][i] = 0;
      mma_pin(acc[t]);
    }
    int first = 0;  // slot of the step's first row of grad_output
    int done_rows = 0, done_first = 0, done_slot = 0;  // of the step before, which tensor cores may still read
    for (StripsWalk walk(p, item_); walk.left > 0;) {
      for (int i = walk.new_rows(plan); i > 0; --i, y_.advance()) y_.wait_full();
      x_.wait_full();
      Step step;
      step.a = a_row + (x_.slot * plan.x_slot_bytes >> 4);
#pragma unroll
      for (int t = 0; t < kColumns; ++t) {
        int slot = first + row[t];
        if (slot >= plan.y_rows) slot -= plan.y_rows;
        step.b[t] = at[t] + (slot * plan.y_row_bytes >> 4);
      }
      if constexpr (kParts == 1) {
#pragma unroll 1
        for (int j = 0; j < plan.width; j += 2) {
          mma_fence();
#pragma unroll
          for (int k = j; k < j + 2; ++k) {
            const uint64_t a = join(step.a + at_position(k, kHopperWeightChannels), high);
#pragma unroll
            for (int t = 0; t < kColumns; ++t) {
              Product::issue(acc[t], a, join(step.b[t] + at_position(position[t] + k, kN), high), 1);
            }
          }
          mma_commit();
          mma_wait<1>();
          if (j == 0) release(done_slot, done_first, done_rows);
        }
      } else {
        release(done_slot, done_first, done_rows);
        add_split(acc, step, position, high);
      }
      walk.next(p.height.divisor);
      done_slot = x_.slot;
      done_first = first;
      done_rows = walk.fresh || walk.left == 0 ? plan.span : plan.advance;
      first += done_rows;
      if (first >= plan.y_rows) first -= plan.y_rows;
      x_.advance();
      if (walk.fresh || walk.left == 0) {  // its rows may be all that the ring holds
        mma_wait<0>();
        release(done_slot, done_first, done_rows);
        done_rows = 0;
      }
    }
    mma_wait<0>();
#pragma unroll
    for (int t = 0; t < kColumns; ++t) mma_pin(acc[t]);
    store(acc, warpgroup, 64 * x_box + 16 * warp + lane / 4, lane);
  }

  // Rows of grad_output and a step of the input that are no longer read; each lane for what it read.
  __device__ __forceinline__ void release(int x_slot, int first_row, int rows) const {
    if (rows == 0) return;
    x_.release(x_slot);
    for (int i = 0; i < rows; ++i) {
      const int slot = first_row + i;
      y_.release(slot >= plan.y_rows ? slot - plan.y_rows : slot);
    }
  }

  // One step of float32 as three TF32 products. Tensor cores cut their running sum off instead of rounding it, so each
  // step starts from zero and is added here. Inf and NaN come from the product of the high parts alone, where the
  // operands still are whole.
  __device__ __forceinline__ void add_split(float (&total)[kColumns][kN / 2], const Step& step,
                                            const int (&position)[kColumns], uint32_t high_half) const {
    const uint32_t a_low = plan.x_slot_bytes / 2 >> 4, b_low = plan.y_row_bytes / 2 >> 4;
#pragma unroll
    for (int t = 0; t < kColumns; ++t) {
      float low[kN / 2], high[kN / 2];
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) low[i] = high[i] = 0;
      mma_pin(low);
      mma_pin(high);
#pragma unroll 1
      for (int j = 0; j < plan.width; ++j) {
        const uint32_t a = step.a + at_position(j, kHopperWeightChannels);
        const uint32_t b = step.b[t] + at_position(position[t] + j, kN);
        mma_fence();
        Product::issue(low, join(a, high_half), join(b + b_low, high_half), 1);
        Product::issue(low, join(a + a_low, high_half), join(b, high_half), 1);
        Product::issue(high, join(a, high_half), join(b, high_half), 1);
        mma_commit();
        mma_wait<1>();
      }
      mma_wait<0>();
      mma_pin(low);
      mma_pin(high);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) total[t][i] += (is_finite(low[i]) ? low[i] : 0.0f) + high[i];
    }
  }

  // A lane holds the neighbouring columns 2 * (lane % 4) and one more, every 8, of rows m and m + 8.
  __device__ __forceinline__ void store(const float (&acc)[kColumns][kN / 2], int warpgroup, int m, int lane) const {
#pragma unroll
    for (int t = 0; t < kColumns; ++t) {
      const int tap = tap_of(warpgroup, t);
      if (tap >= p.kernel_h * p.kernel_w) continue;
      const int n = chunk_of(warpgroup, t) * kN;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Row row = find_row(m + 8 * half, tap);
#pragma unroll
        for (int j = 0; j < kN / 8; j += 2) {
          const int i = 4 * j + 2 * half;
          store_sums(row, n + 8 * j, acc[t][i], acc[t][i + 1], acc[t][i + 4], acc[t][i + 5], lane);
        }
      }
    }
  }

  // Where the sums of one input channel and tap go; column n is output channel first_n + n.
  struct Row {
    float* partial;
    float* result;  // one of the two, or none
    int first_n, channels;
  };
  __device__ __forceinline__ Row find_row(int m, int tap) const {
    const int inside = plan.fold == 1 ? 0 : m / p.channels_m;  // the group among those of this item
    const int group = item_.group + inside, channel = item_.m + m - inside * p.channels_m;
    Row row{nullptr, nullptr, item_.n - inside * p.channels_n, 0};
    if (inside >= plan.fold || group >= p.groups) return row;
    const int place = p.kernel_rows.quotient(tap), kh = tap - place * p.kernel_h, kw = plan.kernel_column[place];
    if (p.partial != nullptr) {
      const int64_t group_of_split = static_cast<int64_t>(item_.split) * p.groups + group;
      const int64_t index = (group_of_split * p.kernel_h + kh) * p.kernel_w + kw;
      row.partial = p.partial + (index * plan.padded_m + channel) * plan.padded_n;
      row.channels = plan.padded_n;
    } else if (channel < p.channels_m) {
      row.result = p.result + (static_cast<int64_t>(group) * p.channels_m + channel) * p.result_m + kh * p.result_h +
                   kw * p.result_w;
      row.channels = p.channels_n;
    }
    return row;
  }

  // 16 columns from n on: a lane has two of the first 8 (x0, y0) and of the next 8; pairs of lanes exchange them, so
  // that each stores 16 bytes.
  __device__ __forceinline__ void store_sums(const Row& row, int n, float x0, float y0, float x1, float y1,
                                             int lane) const {
    const bool odd = lane % 2 != 0;
    const float x = __shfl_xor_sync(~0u, odd ? x0 : x1, 1), y = __shfl_xor_sync(~0u, odd ? y0 : y1, 1);
    float4 sums = odd ? make_float4(x, y, x1, y1) : make_float4(x0, y0, x, y);
    const int channel = row.first_n + n + (odd ? 8 : 0) + lane % 4 / 2 * 4;
    if (channel < 0 || channel >= row.channels) return;
    if (row.partial != nullptr) {
      auto* const partial = reinterpret_cast<float4*>(row.partial + channel);
      if (p.adds) {
        const float4 before = *partial;
        sums = make_float4(sums.x + before.x, sums.y + before.y, sums.z + before.z, sums.w + before.w);
      }
      *partial = sums;
    } else {
      const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (channel + i < row.channels) row.result[(channel + i) * p.result_n] = values[i];
      }
    }
  }

  const WeightStripsParams& p;
  const HopperWeightStripsPlan& plan;
  StripsItem item_;
  StripsTaps taps_;
  uint32_t shared_;
  Ring x_, y_;
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    weight_strips_kernel(const __grid_constant__ WeightStripsParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  WeightStripsBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::hopper
