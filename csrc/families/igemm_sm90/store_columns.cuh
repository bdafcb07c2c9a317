// Stores with columns adjacent and groups of rows or images. A group holds one column, so registers of a lane hold
// columns only across groups: rows of columns pass through shared memory, and a warp stores neighbours together.
#pragma once

#include "families/igemm_sm90/result_tile.cuh"

namespace deconv::sm90 {

template <class Tile>
class ColumnStore : Tile {
  using T = typename Tile::Element;
  using Tile::first_group;
  using Tile::kFold;
  using Tile::kGroups;
  using Tile::kPhases;
  using Tile::lane_;
  using Tile::p;
  using Tile::shared_;
  using typename Tile::Accumulators;
  using typename Tile::Cursor;
  using typename Tile::Window;

 public:
  __device__ __forceinline__ explicit ColumnStore(const Tile& tile) : Tile(tile) {}

  __device__ __forceinline__ void store(const Window& v, Accumulators& acc) const {
    if (sizeof(T) == 2 && p.vector_result == 1) {
      store_staged<1>(v, acc);
    } else {
      store_staged<4 / sizeof(T)>(v, acc);
    }
  }

 private:
  static constexpr int kWords = kGroups * kPhases * kFold * static_cast<int>(sizeof(T)) / 4;  // in a row of columns
  static constexpr int kStagedWords = sm90_staged_words(kWords);
  static constexpr int kStagedPitch = kStagedWords | 1;
  static_assert(kWords % kStagedWords == 0, "even shares");

  static constexpr int kRowsOfLane = 4 / kFold;  // of columns
  // Element e of a lane's row b of columns: channel 8 (b / 2) + lane / 4, pixel 2 (lane % 4) + b % 2, group e /
  // kPhases, phase e % kPhases. Folded: channel lane / 4, pixel 2 (lane % 4) + b, group e / 2, folded column e % 2.
  __device__ __forceinline__ static float element(const Accumulators& acc, int e, int b) {
    return kFold == 1 ? acc[e % kPhases][e / kPhases * 4 + b] : acc[0][e / 2 * 4 + e % 2 * 2 + b];
  }
  // One word: element e, or (16 bits) e and the next.
  template <int kPerWord>
  __device__ __forceinline__ static uint32_t word(const Accumulators& acc, int e, int b) {
    if constexpr (kPerWord == 2) {
      return pack_pair<T>(element(acc, e, b), element(acc, e + 1, b));
    } else {
      return __float_as_uint(element(acc, e, b));
    }
  }

  // kCount: adjacent elements of a store.
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
    // Rows stored at once lie kApart rows apart, in different banks.
    constexpr int kApart = 32 / kRows;
    const uint32_t staged = shared_ + (lane_ % kRows * kApart + lane_ / kRows) * kStagedPitch * 4;
    // Lanes beyond a row's words load its last, so that no lane reads what another warp writes.
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
};

}  // namespace deconv::sm90
