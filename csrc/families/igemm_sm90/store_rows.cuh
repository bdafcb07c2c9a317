// Stores with columns adjacent and groups of columns, in whole sectors: rows pass through shared memory and leave in
// pieces of 16 bytes.
//
//   row of the result   | elements | piece | piece | ... | piece | elements |
//   staged              [channel][line][column of the staged phases], a line begins at a word
//
// A tile's part of a row begins and ends at sectors, except at the ends of the row.
// store: rows of the tile's phases, some channels of a warp at a time. store_all_phases: rows of all phases, 16
// channels, which wait in shared memory until the last phase group has come.
#pragma once

#include "families/igemm_sm90/result_tile.cuh"

namespace deconv::sm90 {

template <class Tile>
class RowStore : Tile {
  using T = typename Tile::Element;
  using Tile::first_group;
  using Tile::kBeyond;
  using Tile::kGroups;
  using Tile::kPhases;
  using Tile::kSize;
  using Tile::lane_;
  using Tile::p;
  using Tile::shared_;
  using typename Tile::Accumulators;
  using typename Tile::Window;

 public:
  __device__ __forceinline__ explicit RowStore(const Tile& tile) : Tile(tile) {}

  template <bool kOneLine>
  __device__ __forceinline__ void store(const Item& item, const Window& v, const Accumulators& acc) const {
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

  // Stages the phases of a phase group; `phase` is the first. The last phase group of a row stores it.
  template <bool kOneLine>
  __device__ __forceinline__ void store_all_phases(const Item& item, const Window& v, int phase,
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

 private:
  static constexpr int kRowChannels = sm90_row_channels(kSize);
  static constexpr int kPiece = 16, kSector = 32;

  // The bytes of a row that are this tile's, counted from the piece that holds the tile's first column.
  struct RowBytes {
    int skew;  // where the tile's columns begin
    int begin, end;
    __device__ __forceinline__ int first_piece() const { return (begin + kPiece - 1) / kPiece * kPiece; }
    __device__ __forceinline__ int pieces_end() const { return end / kPiece * kPiece; }
  };
  // Rounds up to a word, where staged rows begin.
  template <class Int>
  __device__ __forceinline__ static Int staged_skew(Int skew) {
    return (skew + 3) / 4 * 4;
  }
  // What every row of a tile has in common, in bytes.
  struct RowWindow {
    uint32_t base;  // the result's address, low word
    bool is_even;  // rows begin and end at multiples of 16 bytes
    bool is_first, is_last;  // of the tiles that share a row
    int exist;  // of a row, from the tile's first column on
    int own;  // until the next tile begins

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
    const IgemmSm90Plan& plan = p.plan;
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

  // Stores the staged lines of `channels` channels, from `first` on in the result.
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

  // Stages this lane's channel of half `half`; its first line lies at `row` in the result.
  template <bool kOneLine, bool kWaits>
  __device__ __forceinline__ void stage_rows(const Window& v, const T* row, int phase, const Accumulators& acc,
                                             int half, uint32_t shared) const {
    static_assert(kPhases == 2, "pairs of phases");
    const IgemmSm90Plan& plan = p.plan;
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

  // Stages two phases of a pixel; the row may lack the second. in_words: a 16-bit pair is whole and lies in one word.
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

  // plan.row_lanes lanes store the tile's part of a row.
  __device__ __forceinline__ void store_line(const RowWindow& window, T* row, uint32_t staged, bool exists) const {
    constexpr int kPieces = kGroups * 8 * kPhases * kSize / (8 * kPiece);  // of a lane, if eight share a row
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
    // The elements before and after the pieces.
    const int left_end = min(bytes.first_piece(), bytes.end), right = max(bytes.first_piece(), bytes.pieces_end());
#pragma unroll 1
    for (int at = of_lane * kSize; at < kPiece; at += row_lanes * kSize) {
      if (bytes.begin + at < left_end) store_element(start + bytes.begin + at, staged + bytes.begin + at + shift);
      if (right + at < bytes.end) store_element(start + right + at, staged + right + at + shift);
    }
  }

  // The 16 bytes `shift` bytes after `address`; shift is 0, or 2 if the row begins at an odd 16-bit element.
  __device__ __forceinline__ static uint4 staged_piece(uint32_t address, int shift) {
    const uint4 value = load_shared_16(address);
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
};

}  // namespace deconv::sm90
