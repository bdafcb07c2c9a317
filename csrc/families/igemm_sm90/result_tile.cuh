// Base of all stores: where the accumulators of a warpgroup lie in the result.
#pragma once

#include "device/mma_sm80.cuh"
#include "families/igemm_sm90/params.cuh"

namespace deconv::sm90 {

template <class T, int kGroups_, int kPhases_, int kFold_, bool kMajorM_>
struct ResultTile {
  using Element = T;
  static constexpr int kGroups = kGroups_, kPhases = kPhases_, kFold = kFold_;
  static constexpr bool kMajorM = kMajorM_;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kTileM = kSm90TileM / kFold;  // channels of a warpgroup
  using Accumulators = float[kPhases][kGroups * 4];

  // shared: this warp's staging rows, used with columns adjacent: by groups of rows or images, and for whole sectors.
  __device__ __forceinline__ ResultTile(const ConvParams<T>& params, int warpgroup, int warp, int lane, uint32_t shared)
      : p(params),
        warpgroup_(warpgroup),
        first_channel_(first_channel_of_warpgroup() + (fold_in_warp() ? 8 * warp : 16 * warp % kTileM)),
        column_(kFold == 1 || fold_in_warp() ? 0 : 16 * warp / kTileM),
        lane_(lane),
        shared_(shared),
        used_groups_(used_groups()) {}

  // A bit for each group of this warpgroup that holds pixels of the tile.
  __device__ __forceinline__ uint32_t used_groups() const {
    const IgemmSm90Plan& plan = p.plan;
    const Cursor first = first_group();
    const int columns = plan.inner == Sm90Inner::kWidth ? 8 : kFold;
    const int lines = plan.inner == Sm90Inner::kHeight ? plan.pixels.n : plan.pixels.h;
    uint32_t groups = 0;
    for (int j = 0; j < kGroups; ++j) {
      const int group = first.group + j, line = first.line + group / plan.line_groups;
      if (line < lines && group % plan.line_groups * columns < plan.pixels.w) groups |= 1u << j;
    }
    return groups;
  }

  // Counted from the block's first.
  __device__ __forceinline__ int first_channel_of_warpgroup() const {
    return p.plan.tile_m > kSm90TileM ? kSm90TileM * warpgroup_ : 0;
  }
  __device__ __forceinline__ bool fold_in_warp() const { return kFold > 1 && !p.plan.channels_adjacent; }

  // Where a warpgroup's pixels lie in the result, and how many of them exist.
  struct Window {
    T* first;  // this warp's first channel, the tile's first pixel
    int channels;  // of this warp's that exist
    int64_t inner, group, line;  // elements to the next pixel of a group; the next group; the next line
    int inners, lines;  // that exist: pixels of a group; lines
    int widths[kPhases];  // columns that exist; folded across warps: of this warp's
    bool groups_of_columns;  // a group is 8 columns
  };

  __device__ __forceinline__ Window window_of(const Item& item, const Phases& phases) const {
    const IgemmSm90Plan& plan = p.plan;
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
    v.groups_of_columns = plan.inner == Sm90Inner::kWidth;
    v.inner = plan.inner == Sm90Inner::kHeight ? along_h : plan.inner == Sm90Inner::kBatch ? p.result_n : along_w;
    v.group = v.groups_of_columns ? 8 * along_w : kFold * along_w;
    v.line = plan.inner == Sm90Inner::kHeight ? p.result_n : along_h;
    const int second_inner = warpgroup_ == 0 || v.groups_of_columns ? 0
                             : plan.inner == Sm90Inner::kHeight     ? plan.second.h
                                                                    : plan.second.n;
    v.inners = (plan.inner == Sm90Inner::kHeight ? heights : images) - second_inner;
    v.lines = plan.inner == Sm90Inner::kHeight ? images : heights;
    const int channel = item.m_tile * plan.tile_m + first_channel_;
    v.channels = p.result_channels - channel;
    v.first = p.result + item.n * p.result_n +
              (static_cast<int64_t>(item.group) * p.result_channels + channel) * p.result_m +
              (static_cast<int64_t>(item.h) * step_h + phases.h) * p.result_h +
              (static_cast<int64_t>(item.w) * step_w + phases.w) * p.result_w + column_ * along_w +
              second_inner * v.inner;
    return v;
  }

  // A group of the tile: its index in its line, and its line.
  struct Cursor {
    int group, line;
  };
  __device__ __forceinline__ Cursor first_group() const {
    const IgemmSm90Plan& plan = p.plan;
    if (warpgroup_ == 0) return {0, 0};
    return {plan.inner == Sm90Inner::kWidth ? 0 : plan.second.w / kFold,
            plan.inner == Sm90Inner::kHeight                       ? plan.second.n
            : plan.inner == Sm90Inner::kBatch && plan.second.n > 0 ? 0
                                                                   : plan.second.h};
  }
  // Number of groups of a line in which pixel `inner` of phase k exists.
  __device__ __forceinline__ static int groups_with(const Window& v, int k, int inner) {
    if (v.groups_of_columns) return (v.widths[k] - inner + 7) / 8;
    return inner < v.inners ? v.widths[k] : 0;
  }

  // Walks the groups of a warpgroup in order: the address of this lane's part, and the group's index in its line.
  struct Walk {
    T* at;
    int group, lines;  // lines: left, this one included; past the last, group is kBeyond
  };
  static constexpr int kBeyond = 1 << 30;
  __device__ __forceinline__ Walk walk_from(const Window& v, T* of_lane) const {
    const Cursor first = first_group();
    const int lines = v.lines - first.line;
    return {of_lane + first.group * v.group + first.line * v.line, lines > 0 ? first.group : kBeyond, lines};
  }
  __device__ __forceinline__ void next(bool one_line, const Window& v, Walk& walk) const {
    const int line_groups = p.plan.line_groups;
    if (!one_line && walk.group + 1 == line_groups) {
      walk.at += v.line - (line_groups - 1) * v.group;
      walk.group = --walk.lines > 0 ? 0 : kBeyond;
    } else {
      walk.at += v.group;
      if (!one_line) ++walk.group;
    }
  }

  // True if the walk's group, its j-th, is one of the first `count` of its line.
  __device__ __forceinline__ static bool exists(bool one_line, const Walk& walk, int j, int count) {
    return one_line ? j < count - walk.group : walk.group < count;
  }

  // Rows that are not permuted leave a lane two channels and the two 8 further on. Pairs of lanes exchange words, so
  // that each lane has four adjacent channels.
  __device__ __forceinline__ void exchange(uint32_t& low, uint32_t& high) const {
    const bool is_odd = lane_ % 2 == 1;
    const uint32_t other = __shfl_xor_sync(~0u, is_odd ? low : high, 1);
    (is_odd ? low : high) = other;
  }

  __device__ __forceinline__ static void store_global(T* address, uint32_t low, uint32_t high) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(low), "r"(high) : "memory");
  }

  const ConvParams<T>& p;
  int warpgroup_;
  int first_channel_;  // this warp's, counted from the block's first
  int column_;  // the folded column of this warp
  int lane_;
  uint32_t shared_;
  uint32_t used_groups_;
};

}  // namespace deconv::sm90
