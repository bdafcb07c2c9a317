// Stores by TMA: a warpgroup stages its results in the order of a halo's rows, then one thread sends them.
#pragma once

#include "device/tma_sm90.cuh"
#include "families/igemm_sm90/result_tile.cuh"

namespace deconv::sm90 {

template <class Tile>
class TmaStore : Tile {
  using T = typename Tile::Element;
  using Tile::column_;
  using Tile::first_channel_;
  using Tile::first_channel_of_warpgroup;
  using Tile::kFold;
  using Tile::kGroups;
  using Tile::kPhases;
  using Tile::kSize;
  using Tile::kTileM;
  using Tile::lane_;
  using Tile::p;
  using Tile::warpgroup_;

 public:
  using typename Tile::Accumulators;

  __device__ __forceinline__ explicit TmaStore(const Tile& tile) : Tile(tile) {}

  // Channels adjacent: this warpgroup's pixels become swizzled rows of channels at `staged`, in the order of a halo's
  // rows, with the phases of a column side by side. Groups between two lines are staged too. A swizzled row has at most
  // 128 bytes, so for float32 half of the warps stage and send, then the other half (kCopies).
  static constexpr int kCopies = sm90_copied_bytes(sizeof(T), kFold) < kSm90TileM / kFold * sizeof(T) ? 2 : 1;
  __device__ __forceinline__ void stage_channels(const Accumulators& acc, int copy, uint32_t staged) const {
    const int first_channel = first_channel_ % kTileM - copy * kCopiedChannels;
    if (kCopies > 1 && (first_channel < 0 || first_channel >= kCopiedChannels)) return;
    const bool groups_of_columns = p.plan.inner == Sm90Inner::kWidth;
    const uint32_t of_column = staged + column_ * 8 * kCopiedBytes;
#pragma unroll
    for (int k = 0; k < kPhases; ++k) {
      const auto place = [&](int pixel, int channel) {
        const int row = groups_of_columns ? pixel * kPhases + k : pixel + 8 * k;
        return of_column + swizzled(row * kCopiedBytes + (first_channel + channel) * kSize, kCopiedBytes);
      };
      if constexpr (sizeof(T) == 2) {
        // A lane addresses a row of one of four matrices: the lower or upper 8 channels, of this group or the next.
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

  // Columns adjacent, two phases, groups of columns: a row is a run of adjacent columns of one channel, in the order
  // [run][channel][column]. A lane's two pixels are neighbours. Groups between two lines are staged too.
  __device__ __forceinline__ void stage_columns(const Accumulators& acc, uint32_t staged) const {
    static_assert(kSize == 2 && kPhases == 2 && kFold == 1, "pairs of phases of 16 bits");
    constexpr int kRowBytes = kSm90CopiedRun * kSize, kGroupBytes = kRowBytes / kSm90RunGroups;
    const uint32_t of_lane = staged + (first_channel_ % kTileM + lane_ / 4) * kRowBytes + lane_ % 4 * 8;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j >= p.plan.copied_groups) continue;
      const uint32_t to = of_lane + j / kSm90RunGroups * kTileM * kRowBytes + j % kSm90RunGroups * kGroupBytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float *a = acc[0] + 4 * j + 2 * half, *b = acc[1] + 4 * j + 2 * half;
        store_shared(to + half * 8 * kRowBytes, make_uint2(pack_pair<T>(a[0], b[0]), pack_pair<T>(a[1], b[1])));
      }
    }
  }

  // One thread sends what was staged, a copy for each line. TMA leaves out pixels and channels beyond the result.
  __device__ __forceinline__ void send_channels(const Item& item, int phase_group, int copy, uint32_t staged) const {
    const IgemmSm90Plan& plan = p.plan;
    const CUtensorMap& map = p.source_map[sm90_result_map(phase_group)];
    const int channel = item.m_tile * plan.tile_m + first_channel_of_warpgroup() + copy * kCopiedChannels;
    const int n = item.n + warpgroup_ * plan.second.n, h = item.h + warpgroup_ * plan.second.h;
    const int w = (item.w + warpgroup_ * plan.second.w) * kPhases;
    for (int line = 0; line < plan.copied_lines; ++line, staged += plan.staged_line_bytes) {
      if (plan.inner == Sm90Inner::kHeight) {
        copy_tensor_out(&map, staged, channel, h, w, n + line, item.group);
      } else if (plan.inner == Sm90Inner::kBatch) {
        copy_tensor_out(&map, staged, channel, n, w, h + line, item.group);
      } else {
        copy_tensor_out(&map, staged, channel, w, h + line, n, item.group);
      }
    }
    commit_copies_out();
  }
  __device__ __forceinline__ void send_columns(const Item& item, int phase_group, uint32_t staged) const {
    const IgemmSm90Plan& plan = p.plan;
    const CUtensorMap& map = p.source_map[sm90_result_map(phase_group)];
    const int channel = item.group * p.result_channels + item.m_tile * plan.tile_m + first_channel_of_warpgroup();
    const int h = item.h + warpgroup_ * plan.second.h, run = item.w * kPhases / kSm90CopiedRun;
    for (int line = 0; line < plan.copied_lines; ++line, staged += plan.staged_line_bytes) {
      copy_tensor_out(&map, staged, 0, channel, run, h + line, item.n);
    }
    commit_copies_out();
  }

 private:
  // Staged bytes of a pixel, and of a group with all its columns and phases.
  static constexpr int kCopiedBytes = sm90_copied_bytes(sizeof(T), kFold);
  static constexpr int kCopiedChannels = kCopiedBytes / static_cast<int>(sizeof(T));
  static constexpr int kGroupBytes = 8 * kFold * kPhases * kCopiedBytes;

  __device__ __forceinline__ static void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                                   uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
  }
};

}  // namespace deconv::sm90
