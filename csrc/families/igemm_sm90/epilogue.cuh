// From a warpgroup's accumulators to the result: bias, one rounding, whole sectors where the layout allows.
//
// A sector (32 bytes) that two warps write a part of each is read from memory first, unless they do so within some
// hundred cycles; so a tile may be planned to write whole sectors, but at the ends of the result's rows
// (plan.whole_sectors): tiles side by side overlap, and each row is divided between them where a sector begins.
//
// wgmma leaves row r of the tile (a result channel) in lanes r % 8 * 4 .. + 3 of warp r / 16, columns (pixels) in
// pairs: acc[4 j + 2 (row >= 8) + b] is pixel 2 (lane % 4) + b of group j.
#pragma once

#include "device/tma_sm90.cuh"
#include "families/igemm_sm90/params.cuh"

namespace deconv::hopper {

// The row of operand A, of a warpgroup's, that computes a channel of its in folded column `column`. Folded columns are
// in one warp if columns are adjacent in the result, in different ones if channels are. Then 16-bit types that leave
// from registers are permuted so that transposing 8x8 matrices leaves each lane four neighbouring channels.
template <class T>
__device__ __forceinline__ int row_of(const HopperConvPlan& plan, int channel, int column) {
  if (!plan.channels_adjacent) {
    return plan.tile.fold == 1 ? channel : channel / 8 * 16 + column * 8 + channel % 8;
  }
  const int c = channel % 16;
  const int row = hopper_permutes_rows(plan, sizeof(T)) ? c / 4 * 2 + c % 2 + c / 2 % 2 * 8 : c;
  return column * (kHopperTileM / plan.tile.fold) + channel / 16 * 16 + row;
}
// The channel, of a warp's, that row `row` (0..15) of its computes. Rows of M-major weights are the channels.
template <class T, bool kMajorM>
__device__ __forceinline__ int channel_of_row(const HopperConvPlan& plan, int row) {
  if (!kMajorM && hopper_permutes_rows(plan, sizeof(T))) return row % 8 / 2 * 4 + row % 2 + row / 8 * 2;
  return !plan.channels_adjacent && plan.tile.fold > 1 ? row % 8 : row;
}

template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// kToBlocks: plan.to_blocks, in instances of their own, for it takes registers.
template <class T, int kGroups, int kPhases, int kFold, bool kMajorM, bool kToBlocks>
class Result {
 public:
  // shared: this warp's staging rows, used where columns are adjacent, in groups of rows or images, and for whole
  // sectors.
  __device__ __forceinline__ Result(const ConvParams<T>& params, int warpgroup, int warp, int lane, uint32_t shared)
      : p(params),
        warpgroup_(warpgroup),
        first_channel_(first_channel_of_warpgroup() + (fold_in_warp() ? 8 * warp : 16 * warp % kTileM)),
        column_(kFold == 1 || fold_in_warp() ? 0 : 16 * warp / kTileM),
        lane_(lane),
        shared_(shared),
        used_groups_(used_groups()) {}

  using Accumulators = float[kPhases][kGroups * 4];

  __device__ __forceinline__ void add_bias(const Item& item, Accumulators& acc) const {
    if (p.bias == nullptr) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = item.m_tile * p.plan.tile_m + first_channel_ +
                          channel_of_row<T, kMajorM>(p.plan, lane_ / 4 + 8 * half);
      const float bias = channel < p.result_channels ? widen(p.bias[bias_of(item, channel)]) : 0.0f;
#pragma unroll
      for (int k = 0; k < kPhases; ++k) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          acc[k][4 * j + 2 * half] += bias;
          acc[k][4 * j + 2 * half + 1] += bias;
        }
      }
    }
  }

  // Which of the biases a channel has.
  __device__ __forceinline__ int bias_of(const Item& item, int channel) const {
    const int of_all = item.group * p.result_channels + channel;
    if constexpr (!kToBlocks) return of_all;
    const InBlock in = in_block(p.apart.blocks, of_all);
    return in.m + p.apart.blocks.line.remainder(in.k);
  }

  __device__ __forceinline__ void store(const Item& item, const Phases& phases, Accumulators& acc) const {
    if constexpr (kToBlocks) {
      store_to_blocks(item, acc);
      return;
    }
    const Window window = window_of(item, phases);
    // A warpgroup within one line of the tile, which large images give, has a shorter way.
    const bool one_line = first_group().group + kGroups <= p.plan.line_groups;
    if (p.plan.channels_adjacent) {
      one_line ? store_channels<true>(window, acc) : store_channels<false>(window, acc);
    } else if (p.plan.inner == HopperInner::kWidth) {
      const bool in_line = p.plan.pixels.h - p.plan.second.h == 1;
      if constexpr (hopper_joins_phases(HopperTile{kGroups, kPhases, kFold})) {
        if (p.plan.row_phases > kPhases) {
          in_line ? store_rows_of_all_phases<true>(item, window, phases.w, acc)
                  : store_rows_of_all_phases<false>(item, window, phases.w, acc);
          return;
        }
      }
      if constexpr (hopper_writes_whole_sectors(HopperTile{kGroups, kPhases, kFold})) {
        if (p.plan.whole_sectors) {
          in_line ? store_rows<true>(item, window, acc) : store_rows<false>(item, window, acc);
          return;
        }
      }
      if constexpr (hopper_stores_flat(HopperTile{kGroups, kPhases, kFold})) {
        if (p.plan.flat) {
          p.vector_result == 2 ? store_flat<2>(window, acc) : store_flat<1>(window, acc);
          return;
        }
      }
      one_line ? store_runs<true>(window, acc) : store_runs<false>(window, acc);
    } else {
      store_columns(window, acc);
    }
  }

  // Channels adjacent, by tensor copies: this warpgroup's pixels become rows of their channels, swizzled, in shared
  // memory at `staged`, in the order of a halo's, with the phases of a column beside each other. Groups between two
  // lines come along. Rows have 128 bytes at most, so of float32 half of the warps stage, are copied, then the other
  // half.
  static constexpr int kCopies = hopper_copied_bytes(sizeof(T), kFold) < kHopperTileM / kFold * sizeof(T) ? 2 : 1;
  __device__ __forceinline__ void stage_channels(const Accumulators& acc, int copy, uint32_t staged) const {
    const int first_channel = first_channel_ % kTileM - copy * kCopiedChannels;
    if (kCopies > 1 && (first_channel < 0 || first_channel >= kCopiedChannels)) return;
    const bool groups_of_columns = p.plan.inner == HopperInner::kWidth;
    const uint32_t of_column = staged + column_ * 8 * kCopiedBytes;
#pragma unroll
    for (int k = 0; k < kPhases; ++k) {
      const auto place = [&](int pixel, int channel) {
        const int row = groups_of_columns ? pixel * kPhases + k : pixel + 8 * k;
        return of_column + swizzled(row * kCopiedBytes + (first_channel + channel) * kSize, kCopiedBytes);
      };
      if constexpr (sizeof(T) == 2) {
        // A lane names a row of one of four matrices: of the lower or upper 8 channels, of this group or the next.
        const uint32_t at = place(lane_ % 8, lane_ / 8 % 2 * 8) + lane_ / 16 * kGroupBytes;
#pragma unroll
        for (int j = 0; j < kGroups; j += 2) {
          if (j >= p.plan.copied_groups) continue;
          const float* a = acc[k] + 4 * j;
          store_matrices_transposed(at + j * kGroupBytes, pack_pair<T>(a[0], a[1]), pack_pair<T>(a[2], a[3]),
                                    pack_pair<T>(a[4], a[5]), pack_pair<T>(a[6], a[7]));
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at = place(lane_ % 4 * 2 + i % 2, lane_ / 4 + i / 2 * 8);
#pragma unroll
          for (int j = 0; j < kGroups; ++j) {
            if (j >= p.plan.copied_groups) continue;
            store_shared(at + j * kGroupBytes, __float_as_uint(acc[k][4 * j + i]));
          }
        }
      }
    }
  }

  // The same with columns adjacent, of pairs of phases in groups of columns: a row is a run of neighbouring columns of
  // one channel. The rows of all channels follow each other, then those of the next columns. A lane's two pixels are
  // neighbours; groups between two lines come along.
  __device__ __forceinline__ void stage_columns(const Accumulators& acc, uint32_t staged) const {
    static_assert(kSize == 2 && kPhases == 2 && kFold == 1, "pairs of phases of 16 bits");
    constexpr int kRowBytes = kHopperCopiedRun * kSize, kGroupBytes = kRowBytes / kHopperRunGroups;
    const uint32_t of_lane = staged + (first_channel_ % kTileM + lane_ / 4) * kRowBytes + lane_ % 4 * 8;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j >= p.plan.copied_groups) continue;
      const uint32_t to = of_lane + j / kHopperRunGroups * kTileM * kRowBytes + j % kHopperRunGroups * kGroupBytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float *a = acc[0] + 4 * j + 2 * half, *b = acc[1] + 4 * j + 2 * half;
        store_shared(to + half * 8 * kRowBytes, make_uint2(pack_pair<T>(a[0], b[0]), pack_pair<T>(a[1], b[1])));
      }
    }
  }

  // One thread sends what was staged to the result, a copy a line; pixels and channels beyond it are left out.
  __device__ __forceinline__ void copy_staged_channels(const Item& item, int phase_group, int copy,
                                                       uint32_t staged) const {
    const HopperConvPlan& plan = p.plan;
    const CUtensorMap& map = p.source_map[hopper_result_map(phase_group)];
    const int channel = item.m_tile * plan.tile_m + first_channel_of_warpgroup() + copy * kCopiedChannels;
    const int n = item.n + warpgroup_ * plan.second.n, h = item.h + warpgroup_ * plan.second.h;
    const int w = (item.w + warpgroup_ * plan.second.w) * kPhases;
    for (int line = 0; line < plan.copied_lines; ++line, staged += plan.staged_line_bytes) {
      if (plan.inner == HopperInner::kHeight) {
        copy_tensor_out(&map, staged, channel, h, w, n + line, item.group);
      } else if (plan.inner == HopperInner::kBatch) {
        copy_tensor_out(&map, staged, channel, n, w, h + line, item.group);
      } else {
        copy_tensor_out(&map, staged, channel, w, h + line, n, item.group);
      }
    }
    commit_copies_out();
  }
  __device__ __forceinline__ void copy_staged_columns(const Item& item, int phase_group, uint32_t staged) const {
    const HopperConvPlan& plan = p.plan;
    const CUtensorMap& map = p.source_map[hopper_result_map(phase_group)];
    const int channel = item.group * p.result_channels + item.m_tile * plan.tile_m + first_channel_of_warpgroup();
    const int h = item.h + warpgroup_ * plan.second.h, run = item.w * kPhases / kHopperCopiedRun;
    for (int line = 0; line < plan.copied_lines; ++line, staged += plan.staged_line_bytes) {
      copy_tensor_out(&map, staged, 0, channel, run, h + line, item.n);
    }
    commit_copies_out();
  }

  // Whether the sums of the tile's pixels are; groups beyond it may hold anything.
  __device__ __forceinline__ bool all_finite(const Accumulators& acc) const {
    float nothing[4] = {};  // NaN from the first sum on that is not finite
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if ((used_groups_ >> j & 1) == 0) continue;
#pragma unroll
      for (int k = 0; k < kPhases; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) nothing[i] += 0 * acc[k][4 * j + i];
      }
    }
    return nothing[0] + nothing[1] + (nothing[2] + nothing[3]) == 0;
  }

  static constexpr int kWords = kGroups * kPhases * kFold * static_cast<int>(sizeof(T)) / 4;  // of one row of columns
  static constexpr int kStagedWords = hopper_staged_words(kWords);
  static constexpr int kStagedPitch = kStagedWords | 1;
  static_assert(kWords % kStagedWords == 0, "even shares");

 private:
  static constexpr int kSize = static_cast<int>(sizeof(T));

  __device__ __forceinline__ void store_to_blocks(const Item& item, const Accumulators& acc) const {
    if constexpr (kSize == 4) {
      constexpr bool kMayExchange = hopper_may_exchange(kSize, HopperTile{kGroups, kPhases, kFold});
      if (kMayExchange && p.plan.exchanges) {
        store_blocks<kMayExchange>(item, acc);
      } else {
        store_blocks<false>(item, acc);
      }
    } else {
      p.vector_result == 4   ? store_blocks_by<4>(item, acc)
      : p.vector_result == 2 ? store_blocks_by<2>(item, acc)
                             : store_blocks_by<1>(item, acc);
    }
  }

  // A bit for each group of this warpgroup that holds pixels of the tile.
  __device__ __forceinline__ uint32_t used_groups() const {
    const HopperConvPlan& plan = p.plan;
    const Cursor first = first_group();
    const int columns = plan.inner == HopperInner::kWidth ? 8 : kFold;
    const int lines = plan.inner == HopperInner::kHeight ? plan.pixels.n : plan.pixels.h;
    uint32_t groups = 0;
    for (int j = 0; j < kGroups; ++j) {
      const int group = first.group + j, line = first.line + group / plan.line_groups;
      if (line < lines && group % plan.line_groups * columns < plan.pixels.w) groups |= 1u << j;
    }
    return groups;
  }

  static constexpr int kTileM = kHopperTileM / kFold;  // channels of a warpgroup
  // Staged for tensor copies: of a pixel, and of a group with all its columns and phases.
  static constexpr int kCopiedBytes = hopper_copied_bytes(sizeof(T), kFold);
  static constexpr int kCopiedChannels = kCopiedBytes / static_cast<int>(sizeof(T));
  static constexpr int kGroupBytes = 8 * kFold * kPhases * kCopiedBytes;
  // Of the block's.
  __device__ __forceinline__ int first_channel_of_warpgroup() const {
    return p.plan.tile_m > kHopperTileM ? kHopperTileM * warpgroup_ : 0;
  }
  __device__ __forceinline__ bool fold_in_warp() const { return kFold > 1 && !p.plan.channels_adjacent; }

  // Where a warpgroup's pixels lie in the result, and how many of them exist.
  struct Window {
    T* first;  // this warp's first channel, the tile's first pixel
    int channels;  // of this warp's that exist
    int64_t inner, group, line;  // elements from one pixel of a group to the next; to the next group; to the next line
    int inners, lines;  // pixels that exist of a group; lines
    int widths[kPhases];  // columns that exist (folded by warps: of this warp's)
    bool groups_of_columns;  // a group is 8 columns
  };

  __device__ __forceinline__ Window window_of(const Item& item, const Phases& phases) const {
    const HopperConvPlan& plan = p.plan;
    Window v;
    const int step_h = p.axis[0].result_step(), step_w = p.axis[1].result_step();
    const int64_t along_h = step_h * p.result_h, along_w = step_w * p.result_w;
    const int heights = min(phase_size(p, 0, phases.h) - item.h, plan.pixels.h);
    const int images = min(p.batch - item.n, plan.pixels.n);
#pragma unroll
    for (int k = 0; k < kPhases; ++k) {
      v.widths[k] = phases.w + k < plan.phases_w ? min(phase_size(p, 1, phases.w + k) - item.w, plan.pixels.w) : 0;
    }
    if (kFold > 1 && !fold_in_warp()) v.widths[0] = (v.widths[0] - column_ + kFold - 1) / kFold;
    v.groups_of_columns = plan.inner == HopperInner::kWidth;
    v.inner = plan.inner == HopperInner::kHeight ? along_h : plan.inner == HopperInner::kBatch ? p.result_n : along_w;
    v.group = v.groups_of_columns ? 8 * along_w : kFold * along_w;
    v.line = plan.inner == HopperInner::kHeight ? p.result_n : along_h;
    const int second_inner = warpgroup_ == 0 || v.groups_of_columns ? 0
                             : plan.inner == HopperInner::kHeight   ? plan.second.h
                                                                    : plan.second.n;
    v.inners = (plan.inner == HopperInner::kHeight ? heights : images) - second_inner;
    v.lines = plan.inner == HopperInner::kHeight ? images : heights;
    const int channel = item.m_tile * plan.tile_m + first_channel_;
    v.channels = p.result_channels - channel;
    v.first = p.result + item.n * p.result_n +
              (static_cast<int64_t>(item.group) * p.result_channels + channel) * p.result_m +
              (static_cast<int64_t>(item.h) * step_h + phases.h) * p.result_h +
              (static_cast<int64_t>(item.w) * step_w + phases.w) * p.result_w + column_ * along_w +
              second_inner * v.inner;
    return v;
  }

  // A group within the tile: which of its line, which line.
  struct Cursor {
    int group, line;
  };
  __device__ __forceinline__ Cursor first_group() const {
    const HopperConvPlan& plan = p.plan;
    if (warpgroup_ == 0) return {0, 0};
    return {plan.inner == HopperInner::kWidth ? 0 : plan.second.w / kFold,
            plan.inner == HopperInner::kHeight                       ? plan.second.n
            : plan.inner == HopperInner::kBatch && plan.second.n > 0 ? 0
                                                                     : plan.second.h};
  }
  // How many groups of a line hold pixel `inner` in phase k.
  __device__ __forceinline__ static int groups_with(const Window& v, int k, int inner) {
    if (v.groups_of_columns) return (v.widths[k] - inner + 7) / 8;
    return inner < v.inners ? v.widths[k] : 0;
  }

  // The groups of a warpgroup in order: where a lane's part of each lies, and which of its line it is.
  struct Walk {
    T* at;
    int group, lines;  // lines: left, with this one; past the last, no group exists
  };
  static constexpr int kBeyond = 1 << 30;
  __device__ __forceinline__ Walk walk_from(const Window& v, T* of_lane) const {
    const Cursor first = first_group();
    const int lines = v.lines - first.line;
    return {of_lane + first.group * v.group + first.line * v.line, lines > 0 ? first.group : kBeyond, lines};
  }
  template <bool kOneLine>
  __device__ __forceinline__ void next(const Window& v, Walk& walk) const {
    const int line_groups = p.plan.line_groups;
    if (!kOneLine && walk.group + 1 == line_groups) {
      walk.at += v.line - (line_groups - 1) * v.group;
      walk.group = --walk.lines > 0 ? 0 : kBeyond;
    } else {
      walk.at += v.group;
      if (!kOneLine) ++walk.group;
    }
  }

  // Whether the walk's group, its j-th, is one of the first `count` of its line.
  template <bool kOneLine>
  __device__ __forceinline__ bool exists(const Walk& walk, int j, int count) const {
    return kOneLine ? j < count - walk.group : walk.group < count;
  }

  // Channels adjacent: eight lanes (float) or four (16-bit, after a transposition) fill a sector of one pixel.
  template <bool kOneLine>
  __device__ __forceinline__ void store_channels(const Window& v, Accumulators& acc) const {
    constexpr bool kShort = sizeof(T) == 2;
    const int inner = kShort ? lane_ / 4 : lane_ % 4 * 2;
    const int channel = !kShort ? lane_ / 4 : kMajorM ? lane_ % 4 / 2 * 4 + lane_ % 2 * 8 : lane_ % 4 * 4;
    const int channels = v.channels - channel;
#pragma unroll
    for (int k = 0; k < kPhases; ++k) {
      Walk walk = walk_from(v, v.first + inner * v.inner + channel + k * p.result_w);
      // Of this lane's pixel and (float) the one after: groups that hold them.
      const int count = groups_with(v, k, inner), second = kShort ? 0 : groups_with(v, k, inner + 1);
      if constexpr (kShort) {
        p.vector_result > 1 ? store_channels_by<4, kOneLine>(v, acc[k], walk, channels > 0 ? count : 0, channels)
                            : store_channels_by<1, kOneLine>(v, acc[k], walk, count, channels);
      } else {
        const int low = channels > 0 ? count : 0, high = channels > 8 ? count : 0;
        const int second_low = channels > 0 ? second : 0, second_high = channels > 8 ? second : 0;
#pragma unroll
        for (int j = 0; j < kGroups; ++j, next<kOneLine>(v, walk)) {
          const float* a = acc[k] + 4 * j;
          if (exists<kOneLine>(walk, j, low)) walk.at[0] = a[0];
          if (exists<kOneLine>(walk, j, high)) walk.at[8] = a[2];
          if (exists<kOneLine>(walk, j, second_low)) walk.at[v.inner] = a[1];
          if (exists<kOneLine>(walk, j, second_high)) walk.at[v.inner + 8] = a[3];
        }
      }
    }
  }

  // 16-bit types: four channels of each group's pixel, kCount a store.
  template <int kCount, bool kOneLine>
  __device__ __forceinline__ void store_channels_by(const Window& v, const float (&acc)[kGroups * 4], Walk walk,
                                                    int count, int channels) const {
    constexpr int kAhead = kGroups % 4 == 0 ? 4 : 2;
    static_assert(kGroups % kAhead == 0, "whole batches of groups");
#pragma unroll
    for (int first = 0; first < kGroups; first += kAhead) {
      uint32_t low[kAhead], high[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const float* a = acc + 4 * (first + j);
        low[j] = transposed(pack_pair<T>(a[0], a[1]));
        high[j] = transposed(pack_pair<T>(a[2], a[3]));
        if constexpr (kMajorM) exchange(low[j], high[j]);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j, next<kOneLine>(v, walk)) {
        if (!exists<kOneLine>(walk, first + j, count)) continue;
        if constexpr (kCount == 4) {
          store_global(walk.at, low[j], high[j]);
        } else {
          const Pack<uint32_t, 2> words{low[j], high[j]};
          const Pack<T, 4> values = reinterpret_cast<const Pack<T, 4>&>(words);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            if (c < channels) walk.at[c] = values.value[c];
          }
        }
      }
    }
  }

  // Pixels that are blocks of another result's. Of the pixels q in [0, count) of a tile that begins with pixel `first`:
  // those whose block has a row, or column, k in it.
  struct Range {
    int begin, end;
    __device__ __forceinline__ bool has(int i) const { return i >= begin && i < end; }
  };
  __device__ __forceinline__ static Range pixels_with(int first, int count, int k, int shift, int size,
                                                      const Divisor& block) {
    const int last = size - 1 + shift - k, end = last < 0 ? 0 : block.quotient(last) + 1;
    return {max((k < shift ? 1 : 0) - first, 0), min(end - first, count)};
  }

  // The groups of this warpgroup in order: where this lane's pixel lies, and elements to the next group, and more to
  // that of the next line.
  struct BlockWalk {
    T* at;
    int64_t group, line;
    int groups_left;  // of the line
    int inner;  // of this lane, within a group of the tile's
    bool groups_of_columns, is_height;
  };
  __device__ __forceinline__ BlockWalk block_walk(const Item& item, int inner) const {
    const HopperConvPlan& plan = p.plan;
    BlockWalk walk;
    walk.groups_of_columns = plan.inner == HopperInner::kWidth;
    walk.is_height = plan.inner == HopperInner::kHeight;
    if (warpgroup_ == 1 && !walk.groups_of_columns) inner += walk.is_height ? plan.second.h : plan.second.n;
    walk.inner = inner;
    walk.group = walk.groups_of_columns ? 8 * p.result_w : p.result_w;
    const int64_t next_line = walk.is_height ? p.result_n : p.result_h;
    walk.line = next_line - plan.line_groups * walk.group;
    const Cursor first = first_group();
    walk.groups_left = plan.line_groups - first.group;
    walk.at = p.result + item.n * p.result_n + item.h * p.result_h + item.w * p.result_w + inner * inner_step(walk) +
              first.group * walk.group + first.line * next_line - p.apart.blocks.shift_h * p.apart.blocks.stride_h -
              p.apart.blocks.shift_w;
    return walk;
  }
  __device__ __forceinline__ int64_t inner_step(const BlockWalk& walk) const {
    return walk.groups_of_columns ? p.result_w : walk.is_height ? p.result_h : p.result_n;
  }

  // An element of this lane's pixel, of channel `channel` of the tile: how far from the pixel's first it lies, and a
  // bit for each group of this warpgroup in which it exists.
  struct BlockElement {
    int offset;
    uint32_t groups;
  };
  __device__ __forceinline__ BlockElement block_element(const Item& item, const BlockWalk& walk, int channel,
                                                        int pixel) const {
    const HopperConvPlan& plan = p.plan;
    const BlockedResult& b = p.apart.blocks;
    const int of_group = item.m_tile * plan.tile_m + channel, inner = walk.inner + pixel;
    const auto [m, r, k] = in_block(b, item.group * p.result_channels + of_group);
    BlockElement element{static_cast<int>(m * p.result_m) + r * b.stride_h + k, 0};
    const Range images{0, min(p.batch - item.n, plan.pixels.n)};
    const Range height = pixels_with(item.h, plan.pixels.h, r, b.shift_h, b.size_h, b.height);
    const Range width = pixels_with(item.w, plan.pixels.w, k, b.shift_w, b.size_w, b.width);
    const bool exists = walk.groups_of_columns || (walk.is_height ? height.has(inner) : images.has(inner));
    if (!exists || of_group >= p.result_channels) return element;
    const int first_line = walk.is_height ? images.begin : height.begin, end = walk.is_height ? images.end : height.end;
    const int of_line = walk.groups_of_columns ? width.begin > inner : width.begin;  // the first group
    const int end_of_line = walk.groups_of_columns ? (width.end - inner + 7) >> 3 : width.end;
    const Cursor first = first_group();
    int begin = -first.group;  // of a line's groups, among this warpgroup's
#pragma unroll 1
    for (int line = first.line; begin < kGroups && line < end; ++line, begin += plan.line_groups) {
      if (line >= first_line) element.groups |= bits_below(begin + end_of_line) & ~bits_below(begin + of_line);
    }
    return element;
  }
  // The lowest `count` bits, of less or more than there are.
  __device__ __forceinline__ static uint32_t bits_below(int count) {
    return count <= 0 ? 0 : count >= 32 ? ~0u : (1u << count) - 1;
  }
  __device__ __forceinline__ void next(BlockWalk& walk) const {
    walk.at += walk.group;
    if (--walk.groups_left == 0) {
      walk.at += walk.line;
      walk.groups_left = p.plan.line_groups;
    }
  }

  // float32: this lane's two pixels of a group, of two channels. Where blocks have short rows and neighbouring pixels
  // are neighbouring blocks, lanes of two rows exchange one of their pixels: then a row's are stored together.
  template <bool kExchanges>
  __device__ __forceinline__ void store_blocks(const Item& item, const Accumulators& acc) const {
    const int apart = !kExchanges ? 0 : p.apart.blocks.width.divisor > 2 ? 4 : 2;  // channels
    const int channel = first_channel_ + (lane_ / 4 & ~apart), pixel = kExchanges && (lane_ / 4 & apart) != 0 ? 1 : 0;
    BlockWalk walk = block_walk(item, lane_ % 4 * 2 + pixel);
    const int64_t second = kExchanges ? 0 : inner_step(walk);
    // In the order of the accumulators: of each channel, its pixels, or the exchanged ones of two channels.
    const auto find = [&](int half, int i) {
      return block_element(item, walk, channel + half * 8 + (kExchanges ? i * apart : 0), kExchanges ? 0 : i);
    };
    const BlockElement element[4] = {find(0, 0), find(0, 1), find(1, 0), find(1, 1)};
#pragma unroll
    for (int j = 0; j < kGroups; ++j, next(walk)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float a = acc[0][4 * j + 2 * half], b = acc[0][4 * j + 2 * half + 1];
        if constexpr (kExchanges) {
          const float other = __shfl_xor_sync(~0u, pixel == 0 ? b : a, 4 * apart);
          a = pixel == 0 ? a : other;
          b = pixel == 0 ? other : b;
        }
        const BlockElement &one = element[2 * half], &next = element[2 * half + 1];
        if ((one.groups >> j & 1) != 0) walk.at[one.offset] = narrow<T>(a);
        if ((next.groups >> j & 1) != 0) walk.at[next.offset + second] = narrow<T>(b);
      }
    }
  }

  // 16-bit types: four neighbouring channels of this lane's pixel of a group, kCount a store.
  template <int kCount>
  __device__ __forceinline__ void store_blocks_by(const Item& item, const Accumulators& acc) const {
    BlockWalk walk = block_walk(item, lane_ / 4);
    const int channel = first_channel_ + (kMajorM ? lane_ % 4 / 2 * 4 + lane_ % 2 * 8 : lane_ % 4 * 4);
    BlockElement element[4 / kCount];
#pragma unroll
    for (int i = 0; i < 4 / kCount; ++i) element[i] = block_element(item, walk, channel + i * kCount, 0);
#pragma unroll
    for (int j = 0; j < kGroups; ++j, next(walk)) {
      const float* a = acc[0] + 4 * j;
      uint32_t low = transposed(pack_pair<T>(a[0], a[1])), high = transposed(pack_pair<T>(a[2], a[3]));
      if constexpr (kMajorM) exchange(low, high);
      const Pack<uint32_t, 2> words{low, high};
      const Pack<T, 4> values = reinterpret_cast<const Pack<T, 4>&>(words);
#pragma unroll
      for (int i = 0; i < 4 / kCount; ++i) {
        if ((element[i].groups >> j & 1) == 0) continue;
        T* const to = walk.at + element[i].offset;
        if constexpr (kCount == 4) {
          store_global(to, low, high);
        } else if constexpr (kCount == 2) {
          *reinterpret_cast<uint32_t*>(to) = words.value[i];
        } else {
          *to = values.value[i];
        }
      }
    }
  }

  // Rows that are not permuted leave a lane two channels and the two 8 further on; neighbouring lanes join theirs.
  __device__ __forceinline__ void exchange(uint32_t& low, uint32_t& high) const {
    const bool is_odd = lane_ % 2 == 1;
    const uint32_t other = __shfl_xor_sync(~0u, is_odd ? low : high, 1);
    (is_odd ? low : high) = other;
  }

  __device__ __forceinline__ static void store_global(T* address, uint32_t low, uint32_t high) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(low), "r"(high) : "memory");
  }

  __device__ __forceinline__ static void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                                   uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
  }

  __device__ __forceinline__ static uint32_t transposed(uint32_t fragment) {
    uint32_t result;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(fragment));
    return result;
  }

  static constexpr int kRowsOfLane = 4 / kFold;  // of columns
  // Element e of a lane's row b of columns: rows 8 (b / 2) + lane / 4, pixels 2 (lane % 4) + b % 2, group e / kPhases,
  // phase e % kPhases; or the columns folded in this warp.
  __device__ __forceinline__ static float element(const Accumulators& acc, int e, int b) {
    return kFold == 1 ? acc[e % kPhases][e / kPhases * 4 + b] : acc[0][e / 2 * 4 + e % 2 * 2 + b];
  }
  // The 32 bits of element e, or of e and the next.
  template <int kPerWord>
  __device__ __forceinline__ static uint32_t word(const Accumulators& acc, int e, int b) {
    if constexpr (kPerWord == 2) {
      return pack_pair<T>(element(acc, e, b), element(acc, e + 1, b));
    } else {
      return __float_as_uint(element(acc, e, b));
    }
  }

  // Columns adjacent, groups of columns: a lane holds two pixels of each channel, in all phases a run of neighbours.
  template <bool kOneLine>
  __device__ __forceinline__ void store_runs(const Window& v, Accumulators& acc) const {
    constexpr int kRun = 2 * kPhases;
    if (p.vector_result == kRun) {
      store_runs_by<kRun, kOneLine>(v, acc);
    } else if (kPhases == 2 && p.vector_result == 2) {
      store_runs_by<2, kOneLine>(v, acc);
    } else {
      store_runs_by<1, kOneLine>(v, acc);
    }
  }

  // kCount neighbours a store.
  template <int kCount, bool kOneLine>
  __device__ __forceinline__ void store_runs_by(const Window& v, Accumulators& acc) const {
    constexpr int kRun = 2 * kPhases;
    const int inner = lane_ % 4 * 2;
    int count[kRun];  // groups that hold each of the run's elements
#pragma unroll
    for (int e = 0; e < kRun; ++e) count[e] = groups_with(v, e % kPhases, inner + e / kPhases);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = lane_ / 4 + 8 * half;
      if (channel >= v.channels) continue;
      Walk walk = walk_from(v, v.first + channel * p.result_m + inner * v.inner);
#pragma unroll
      for (int j = 0; j < kGroups; ++j, next<kOneLine>(v, walk)) {
#pragma unroll
        for (int e = 0; e < kRun; e += kCount) {
          float run[kCount];
#pragma unroll
          for (int i = 0; i < kCount; ++i) run[i] = acc[(e + i) % kPhases][4 * j + 2 * half + (e + i) / kPhases];
          T* const at = walk.at + e / kPhases * v.inner + e % kPhases * p.result_w;
          if (exists<kOneLine>(walk, j, count[e])) {
            if constexpr (kCount == 1) {
              *at = narrow<T>(run[0]);
            } else {
              store_neighbours<kCount>(at, run);
            }
          }
        }
      }
    }
  }

  // Flat lines: a group may begin in one and end in the next. kCount: a lane's pixels that a store takes, both where a
  // line has an even number of them.
  template <int kCount>
  __device__ __forceinline__ void store_flat(const Window& v, const Accumulators& acc) const {
    const int pitch = p.plan.halo.w, channels = v.channels - lane_ / 4;
    const int64_t next_line = v.line - pitch, next_half = 8 * p.result_m;
    const auto store = [](T* at, const float* values) {
      if constexpr (kCount == 1) {
        *at = narrow<T>(values[0]);
      } else {
        store_neighbours<kCount>(at, values);
      }
    };
#pragma unroll
    for (int pixel = 0; pixel < 2; pixel += kCount) {
      int column = lane_ % 4 * 2 + pixel, lines = v.lines;
      T* at = v.first + lane_ / 4 * p.result_m + column;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const bool exists = column < v.widths[0] && lines > 0;
        if (exists && channels > 0) store(at, acc[0] + 4 * j + pixel);
        if (exists && channels > 8) store(at + next_half, acc[0] + 4 * j + 2 + pixel);
        column += 8;
        at += 8;
        if (column >= pitch) {
          column -= pitch;
          at += next_line;
          --lines;
        }
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ static void store_neighbours(T* address, const float* values) {
    if constexpr (sizeof(T) == 4) {
      if constexpr (kCount == 4) {
        *reinterpret_cast<float4*>(address) = make_float4(values[0], values[1], values[2], values[3]);
      } else {
        *reinterpret_cast<float2*>(address) = make_float2(values[0], values[1]);
      }
    } else if constexpr (kCount == 4) {
      store_global(address, pack_pair<T>(values[0], values[1]), pack_pair<T>(values[2], values[3]));
    } else {
      *reinterpret_cast<uint32_t*>(address) = pack_pair<T>(values[0], values[1]);
    }
  }

  // Columns adjacent, groups of columns: rows pass through shared memory and leave by 16 bytes ("pieces"). Rows of the
  // tile's phases do so some channels at a time; rows of more phases wait there for the phase groups that are missing.
  static constexpr int kRowChannels = hopper_row_channels(kSize);
  static constexpr int kPiece = 16, kSector = 32;

  // Which bytes of a row are a tile's, from the first piece on that any of the tile's columns is in.
  struct RowBytes {
    int skew;  // where the tile's columns begin
    int begin, end;
    __device__ __forceinline__ int first_piece() const { return (begin + kPiece - 1) / kPiece * kPiece; }
    __device__ __forceinline__ int pieces_end() const { return end / kPiece * kPiece; }
  };
  // A staged row begins at a word.
  template <class Int>
  __device__ __forceinline__ static Int staged_skew(Int skew) {
    return (skew + 3) / 4 * 4;
  }
  // What every row of a tile has in common, in bytes.
  struct RowWindow {
    uint32_t base;  // the result's address
    bool is_even;  // rows begin and end with pieces
    bool is_first, is_last;  // of the tiles that share a row
    int exist;  // of a row, from the tile's first column on
    int own;  // until the next tile

    __device__ __forceinline__ RowBytes of_row(const T* row) const {
      const uint32_t at = low_word(row), offset = at - base;
      const int skew = at % kPiece;
      const int begin = is_first ? 0 : static_cast<int>(-offset % kSector);
      const int end = is_last ? exist : own + static_cast<int>(-(offset + own) % kSector);
      return {skew, skew + begin, skew + end};
    }
  };
  __device__ __forceinline__ static uint32_t low_word(const void* pointer) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer));
  }

  __device__ __forceinline__ RowWindow row_window(const Item& item) const {
    const HopperConvPlan& plan = p.plan;
    const uint32_t base = low_word(p.result);
    const bool is_first = item.w == 0, is_last = item.w == (plan.tiles.w - 1) * plan.tile_step;
    const int left = p.axis[1].result_size - item.w * plan.row_phases;
    return {base,
            base % kPiece == 0 && (plan.even_rows || !(is_first || is_last)),
            is_first,
            is_last,
            min(left, plan.pixels.w * plan.row_phases) * kSize,
            plan.tile_step * plan.row_phases * kSize};
  }
  template <bool kOneLine>
  __device__ __forceinline__ int lines_staged() const {
    return kOneLine ? 1 : p.plan.pixels.h - p.plan.second.h;
  }

  template <bool kOneLine>
  __device__ __forceinline__ void store_rows(const Item& item, const Window& v, const Accumulators& acc) const {
    const RowWindow window = row_window(item);
    T* const rows = v.first + first_group().line * v.line;
    const int channel_bytes = lines_staged<kOneLine>() * p.plan.staged_line_bytes;
#pragma unroll
    for (int part = 0; part < 16 / kRowChannels; ++part) {
      T* const first = rows + part * kRowChannels * p.result_m;
      __syncwarp();
      if (lane_ / 4 / kRowChannels == part % (8 / kRowChannels)) {
        const int row = lane_ / 4 % kRowChannels;
        stage_rows<kOneLine, false>(v, first + row * p.result_m, 0, acc, part * kRowChannels / 8,
                                    shared_ + row * channel_bytes);
      }
      __syncwarp();
      store_lines<kOneLine>(window, v, first, shared_, min(v.channels - part * kRowChannels, kRowChannels));
    }
  }

  // phase: the first of the phase group's. The last phase group of a row stores it.
  template <bool kOneLine>
  __device__ __forceinline__ void store_rows_of_all_phases(const Item& item, const Window& v, int phase,
                                                           const Accumulators& acc) const {
    T* const rows = v.first - phase + first_group().line * v.line;
    const int channel_bytes = lines_staged<kOneLine>() * p.plan.staged_line_bytes;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = lane_ / 4 + 8 * half;
      stage_rows<kOneLine, true>(v, rows + channel * p.result_m, phase, acc, half, shared_ + channel * channel_bytes);
    }
    if (phase + kPhases < p.plan.row_phases) return;
    __syncwarp();
    const RowWindow window = row_window(item);
    store_lines<kOneLine>(window, v, rows, shared_, min(v.channels, 16));
  }

  // The staged lines of `channels` channels, from `first` on in the result.
  template <bool kOneLine>
  __device__ __forceinline__ void store_lines(const RowWindow& window, const Window& v, T* first, uint32_t staged,
                                              int channels) const {
    const int lines = min(v.lines - first_group().line, lines_staged<kOneLine>());
    const int channel_bytes = lines_staged<kOneLine>() * p.plan.staged_line_bytes;
    const bool is_short = p.plan.row_lanes == 4;
    const int of_lane = lane_ >> (is_short ? 2 : 3), stored = is_short ? 8 : 4;
#pragma unroll 1
    for (int channel = of_lane; channel - of_lane < channels; channel += stored) {
      T* row = first + channel * p.result_m;
      uint32_t staged_row = staged + channel * channel_bytes;
#pragma unroll 1
      for (int line = 0; line < lines; ++line, row += v.line, staged_row += p.plan.staged_line_bytes) {
        store_line(window, row, staged_row, channel < channels);
      }
    }
  }

  // This lane's channel of half `half`, whose first line lies at `row` in the result.
  template <bool kOneLine, bool kWaits>
  __device__ __forceinline__ void stage_rows(const Window& v, const T* row, int phase, const Accumulators& acc,
                                             int half, uint32_t shared) const {
    static_assert(kPhases == 2, "pairs of phases");
    const HopperConvPlan& plan = p.plan;
    const auto skew_of = [](const T* of_row) { return staged_skew(low_word(of_row) % kPiece); };
    const int groups = plan.pixels.w / 8, pixel_bytes = (kWaits ? plan.row_phases : kPhases) * kSize;
    const bool in_words = !kWaits || plan.row_phases % 2 == 0, has_second = !kWaits || phase + 1 < plan.row_phases;
    int group = 0, lines = plan.pixels.h - plan.second.h;
    uint32_t line_at = shared + lane_ % 4 * 2 * pixel_bytes + phase * kSize, at = line_at + skew_of(row);
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (kOneLine ? j < groups : group < groups) {
#pragma unroll
        for (int pixel = 0; pixel < 2; ++pixel) {
          const int i = 4 * j + 2 * half + pixel;
          stage_pair(at + pixel * pixel_bytes, acc[0][i], acc[1][i], in_words, has_second);
        }
      }
      at += 8 * pixel_bytes;
      if (!kOneLine) {
        if (++group == plan.line_groups) {
          row += v.line;
          line_at += plan.staged_line_bytes;
          at = line_at + skew_of(row);
          group = --lines > 0 ? 0 : kBeyond;
        }
      }
    }
  }

  // Two phases of a pixel, of which the row may lack the second. in_words: a 16-bit pair is whole and lies in one word.
  __device__ __forceinline__ static void stage_pair(uint32_t to, float first, float second, bool in_words,
                                                    bool has_second) {
    if constexpr (kSize == 4) {
      store_shared(to, __float_as_uint(first));
      if (has_second) store_shared(to + 4, __float_as_uint(second));
    } else if (in_words) {
      store_shared(to, pack_pair<T>(first, second));
    } else {
      const uint32_t pair = pack_pair<T>(first, second);
      store_shared_short(to, static_cast<uint16_t>(pair));
      if (has_second) store_shared_short(to + 2, static_cast<uint16_t>(pair >> 16));
    }
  }

  // The tile's part of this lane's row, by plan.row_lanes lanes.
  __device__ __forceinline__ void store_line(const RowWindow& window, T* row, uint32_t staged, bool exists) const {
    constexpr int kPieces = kGroups * 8 * kPhases * kSize / (8 * kPiece);  // of one of eight lanes
    constexpr int kAhead = kPieces % 4 == 0 ? 4 : kPieces % 3 == 0 ? 3 : 2;
    static_assert(kPieces % kAhead == 0, "whole batches of loads");
    const RowBytes bytes = window.of_row(row);
    const int row_lanes = p.plan.row_lanes, stride = row_lanes * kPiece;
    const int shift = staged_skew(bytes.skew) - bytes.skew, of_lane = lane_ & (row_lanes - 1);
    char* const start = reinterpret_cast<char*>(row) - bytes.skew;
    const int first = bytes.first_piece() + of_lane * kPiece, left = exists ? bytes.pieces_end() - first : 0;
#pragma unroll 1
    for (int i = 0; i * stride < window.exist; i += kAhead) {
      uint4 value[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        value[a] = make_uint4(0, 0, 0, 0);
        if ((i + a) * stride < left) value[a] = staged_piece(staged + first + (i + a) * stride, shift);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if ((i + a) * stride < left) *reinterpret_cast<uint4*>(start + first + (i + a) * stride) = value[a];
      }
    }
    if (window.is_even || !exists) return;
    // The elements before and behind the pieces.
    const int left_end = min(bytes.first_piece(), bytes.end), right = max(bytes.first_piece(), bytes.pieces_end());
#pragma unroll 1
    for (int at = of_lane * kSize; at < kPiece; at += row_lanes * kSize) {
      if (bytes.begin + at < left_end) store_element(start + bytes.begin + at, staged + bytes.begin + at + shift);
      if (right + at < bytes.end) store_element(start + right + at, staged + right + at + shift);
    }
  }

  // What lies `shift` bytes further on.
  __device__ __forceinline__ static uint4 staged_piece(uint32_t address, int shift) {
    const uint4 value = load_shared_vector(address);
    if constexpr (kSize == 4) return value;
    const uint32_t next = load_shared(address + kPiece);
    return make_uint4(__funnelshift_r(value.x, value.y, 8 * shift), __funnelshift_r(value.y, value.z, 8 * shift),
                      __funnelshift_r(value.z, value.w, 8 * shift), __funnelshift_r(value.w, next, 8 * shift));
  }
  __device__ __forceinline__ static void store_element(char* to, uint32_t from) {
    if constexpr (kSize == 4) {
      *reinterpret_cast<uint32_t*>(to) = load_shared(from);
    } else {
      *reinterpret_cast<uint16_t*>(to) = load_shared_short(from);
    }
  }

  // Columns adjacent: rows of columns pass through shared memory, so that a warp stores neighbours together.
  __device__ __forceinline__ void store_columns(const Window& v, Accumulators& acc) const {
    if (sizeof(T) == 2 && p.vector_result == 1) {
      store_staged<1>(v, acc);
    } else {
      store_staged<4 / sizeof(T)>(v, acc);
    }
  }

  // kCount: neighbours of a store.
  template <int kCount>
  __device__ __forceinline__ void store_staged(const Window& v, Accumulators& acc) const {
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
    constexpr int kLanes = kStagedWords > 16 ? 32 : kStagedWords > 8 ? 16 : kStagedWords > 4 ? 8 : 4;  // for one row
    constexpr int kRows = 32 / kLanes;  // stored at once: neighbouring pixels of a group, then neighbouring channels
    constexpr int kSteps = kRows < 4 ? 4 / kRows : 1, kStepPixels = 2 * kRows;  // within a channel
    constexpr int kStepChannels = kRows < 4 ? 1 : kRows / 4;
    constexpr int kAhead = kRows >= 8 ? 4 : 8;
    const int lane_word = lane_ % kLanes, sub_row = lane_ / kLanes;
    const int sub_channel = sub_row / 4, sub_inner = sub_row % 4 * 2;
    const int channels = v.channels - sub_channel, inners = v.inners - sub_inner;
    const int64_t next_channel = kStepChannels * p.result_m;
    // Rows that are stored at once lie so far apart that they meet different banks.
    constexpr int kApart = 32 / kRows;
    const uint32_t staged = shared_ + (lane_ % kRows * kApart + lane_ / kRows) * kStagedPitch * 4;
    // Lanes beyond a row's words load its last, so that none reads what another warp writes.
    const uint32_t row_of_lane = shared_ + (sub_row * kApart * kStagedPitch + min(lane_word, kStagedWords - 1)) * 4;
    const Cursor start = first_group();
#pragma unroll
    for (int first = 0; first < kWords; first += kStagedWords) {
      // What this lane stores of each row.
      int64_t offset[kPerWord];
      bool stored[kPerWord];
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        const int e = (first + lane_word) * kPerWord + i, k = e % kPhases, f = e / kPhases % kFold;
        const int index = start.group + e / (kPhases * kFold);
        const Cursor at{index % p.plan.line_groups, start.line + index / p.plan.line_groups};
        stored[i] = lane_word < kStagedWords && at.line < v.lines &&
                    at.group * kFold + f < (k == 0 ? v.widths[0] : v.widths[kPhases - 1]);
        offset[i] = at.group * v.group + at.line * v.line + (f + k) * p.result_w;
      }
      T* const of_lane = v.first + offset[0] + sub_channel * p.result_m + sub_inner * v.inner;
      const int64_t second = offset[kPerWord - 1] - offset[0];
#pragma unroll
      for (int b = 0; b < kRowsOfLane; ++b) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kStagedWords; ++i) {
          store_shared(staged + i * 4, word<kPerWord>(acc, (first + i) * kPerWord, b));
        }
        __syncwarp();
        T* row[kSteps];  // of the channel's pixels that are stored in turn
        bool in_group[kSteps];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          in_group[i] = b % 2 + i * kStepPixels < inners;
          row[i] = of_lane + b / 2 * 8 * p.result_m + (b % 2 + i * kStepPixels) * v.inner;
        }
#pragma unroll
        for (int first_row = 0; first_row < 32; first_row += kRows * kAhead) {
          uint32_t value[kAhead];
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            value[i] = load_shared(row_of_lane + (first_row / kRows + i) * kStagedPitch * 4);
          }
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            const int at = first_row + i * kRows, step = at % 4 / kRows % kSteps;
            const bool in_tile = in_group[step] && at / 4 + b / 2 * 8 < channels;
            T* const to = row[step];
            row[step] += next_channel;
            if constexpr (kCount == kPerWord) {
              if (in_tile && stored[0]) *reinterpret_cast<uint32_t*>(to) = value[i];
            } else {
              const Pack<T, 2> pair = reinterpret_cast<const Pack<T, 2>&>(value[i]);
              if (in_tile && stored[0]) to[0] = pair.value[0];
              if (in_tile && stored[kPerWord - 1]) to[second] = pair.value[1];
            }
          }
        }
      }
    }
  }

  const ConvParams<T>& p;
  int warpgroup_;
  int first_channel_;  // this warp's, of the block's
  int column_;  // which of the folded columns is this warp's
  int lane_;
  uint32_t shared_;
  uint32_t used_groups_;
};

}  // namespace deconv::hopper
