// What the mma family's planner gives to its kernels: plain data, host and device.
#pragma once

#include <cstdint>

#include "core/taps.h"

namespace deconv {

inline constexpr int kSm80Threads = 128;  // four warps
inline constexpr int kSm80WarpPixels = 64;  // of a warp's tile
inline constexpr int kSm80BandBytes = 64;  // of a pixel's channels: of one turn of the loop
// From one pixel of a halo to the next: an odd number of 16-byte pieces, so eight neighbours lie in eight groups of
// banks.
constexpr int sm80_row_pitch(int row_bytes) { return row_bytes + 16; }
inline constexpr int kSm80Stages = 3;  // weights of as many turns are in shared memory or on the way
inline constexpr int kSm80PassRows = 32;  // pixels of a halo that a block's threads copy at once
inline constexpr int kSm80TablePasses = 4;  // whose places lie together for a thread
inline constexpr int kSm80MaxKernel = 128;  // taps along one axis
inline constexpr int kSm80MaxStride = 64;
inline constexpr int kSm80PlaceBytes = 16;  // of a pixel's entry in a table of places
inline constexpr int kSm80OffsetBytes = 4;  // of a pixel's entry in the table of a halo
inline constexpr int kSm80MostTablePlanes = 16;  // of a halo's table; more are entered one after the other
// Words from one channel to the next of the 8 that a warp stages on their way to a result with adjacent columns: four
// lanes' columns further in banks.
constexpr int sm80_staging_pitch(int element_bytes) { return kSm80WarpPixels * element_bytes / 4 * 9 / 8; }

// Blocks of a multiprocessor that registers must suffice for; rows: Sm80Tile::rows; split: 3xTF32.
constexpr int sm80_blocks(int rows, bool split) { return rows == 4 || split ? 2 : 3; }

// Four warps: warps_m along the result channels, the others along the pixels; a warp has 16 * rows channels (an
// instance of the kernel) and 64 pixels.
struct Sm80Tile {
  int rows, warps_m;
  constexpr int channels() const { return 16 * rows * warps_m; }
  constexpr int pixels() const { return kSm80WarpPixels * (kSm80Threads / 32 / warps_m); }
};
inline constexpr Sm80Tile kSm80Tiles[] = {{4, 1}, {4, 2}, {4, 4}, {2, 1}, {2, 2}};

// Pixels along each axis.
struct Sm80Extent {
  int n = 1, h = 1, w = 1;
};

// Forward and grad_input (kernels/mma/conv.cuh has the meaning). Pixels are counted in q (taps.h): a tile is the same
// for every phase.
struct IgemmSm80Plan {
  static constexpr const char* kFamily = "igemm_sm80";

  Sm80Tile tile{4, 1};
  bool split = false;  // float32 as two TF32 parts, three products
  Sm80Extent pixels;  // of a tile
  Sm80Extent halo;  // pixels staged
  Sm80Extent tiles;
  int origin_h = 0, origin_w = 0;  // smallest source shift of any tap
  int phases_h = 1, phases_w = 1;
  int planes_h = 1, planes_w = 1;
  int slots_h = 1, slots_w = 1;  // taps of the fullest phase along each axis, over all planes
  int row_bytes = kSm80BandBytes;  // of one pixel's channels in shared memory, one or two bands: one chunk
  int bands = 1, chunks = 1;  // of source channels
  int m_tiles = 1;
  int halos_ahead = 1;  // halos on the way while one is in use
  bool keep_halos = false;  // a tile's halos, all of them, stay for all of its phases
  int halo_slots = 2;  // in use and on the way
  int halo_bytes = 0;  // of one, whole passes
  int table_planes = 1;  // in the table at once: all, or one
  int together = 1;  // phases along the width whose results are stored together: 1, or all 2
  int staged_bytes = 0;  // of a warp's results on their way
  // Byte offsets; kept_at: of results that wait for their phase's neighbours.
  int weights_at = 0, staging_at = 0, table_at = 0, places_at = 0, kept_at = 0, shared_bytes = 0;
  int items = 1;  // tiles of pixels of a slice, in each phase
  int items_per_block = 1;  // one after the other
  int runs = 1;  // blocks that share the items of a tile of result channels
  int64_t blocks = 0;
  // The first blocks beside the last ones of the kernel before: there are so many that none of them leaves
  // multiprocessors empty by where it is put.
  bool starts_early = false;
  bool repack = false;  // a kernel before makes the source channels_last in the workspace,
  bool unpack = false;  // the result is computed channels_last there, and a kernel after brings it to its place,
  int slice = 1;  // so many images at a time; all, without
  int64_t packed_bytes = 0;  // of the packed weights, in the workspace
  int64_t repacked_bytes = 0, unpacked_bytes = 0;  // of a slice's source, which follows, and of its result
};

// grad_weight (kernels/mma/weight.cuh has the meaning): what one warp has, 16 * rows input channels x `units` units of
// 16 output channels of one tap each; instances of the kernel.
struct WgradSm80Tile {
  int rows, units;
  constexpr int channels() const { return 16 * rows; }
};
inline constexpr WgradSm80Tile kWgradSm80Tiles[] = {{4, 4}, {4, 3}, {2, 4}};
inline constexpr WgradSm80Tile kWgradSm80TilesSplit[] = {{4, 3}, {2, 4}};  // 3xTF32 needs registers for the parts
// Warps that a multiprocessor's registers suffice for, and the most of a block.
constexpr int wgrad_sm80_warps(WgradSm80Tile tile, bool split) { return split || tile.rows * tile.units > 12 ? 8 : 12; }

// One tap along one axis, in the order in which groups of them are formed. A group's lines of grad_output lie in
// segments: lines a stride apart, one after the other.
struct WgradSm80Tap {
  int reach;  // of the segment's first line, for pixel 0: the line of grad_output
  int16_t tap;
  int16_t line;  // of the staged ones, for the tile's first pixel
  int16_t segment;  // first line of the segment
};

// Where the taps of one axis find the lines that a tile of `pixels` needs, in groups of `most`: taps whose lines a
// stride spreads alike come together, so they share them. Returns the most lines of a group.
inline int wgrad_sm80_taps(int kernel, int stride, int padding, int dilation, int most, int pixels,
                           WgradSm80Tap* taps) {
  const int common = gcd(stride, dilation);
  const int step = stride / common;
  int count = 0, lines = 0, most_lines = 0;
  for (int first = 0; first < step && first < kernel; ++first) {
    int origin = 0, segment = 0;  // the segment's first tap, its first line
    for (int k = first; k < kernel; k += step, ++count) {
      if (count % most == 0) lines = 0;
      const bool apart = k == first || lines == 0 || segment + (k - origin) / step * (dilation / common) > lines;
      if (apart) origin = k, segment = lines;
      const int line = segment + (k - origin) / step * (dilation / common);
      taps[count] = {origin * dilation - padding, static_cast<int16_t>(k), static_cast<int16_t>(line),
                     static_cast<int16_t>(segment)};
      lines = line + pixels;
      most_lines = lines > most_lines ? lines : most_lines;
    }
  }
  return most_lines;
}

struct WgradSm80Plan {
  static constexpr const char* kFamily = "igemm_sm80";

  WgradSm80Tile tile{4, 4};
  bool split = false;  // float32 as two TF32 parts, three products
  int warps_m = 1, warps_n = 1;  // along the input channels, along the units
  int chunks_n = 1;  // of 16 output channels, of a block
  int taps_h = 1, taps_w = 1;  // of a group along each axis; the last one may have fewer
  int groups_h = 1, groups_w = 1;
  Sm80Extent pixels;  // of a step
  Sm80Extent tiles;
  int step_pixels = 16;  // whole products: the last ones may be none
  int y_rows = 1;  // pixels of grad_output staged, at most
  int x_pitch = 0, y_pitch = 0;  // bytes from one staged pixel to the next
  int y_at = 0, slot_bytes = 0;  // of a step: byte offset of grad_output, all
  int x_places_at = 0, y_places_at = 0, rows_at = 0, shared_bytes = 0;  // byte offsets
  int blocks_m = 1, blocks_n = 1;
  int64_t steps = 0, steps_per_split = 0;
  int splits = 1;
  int64_t blocks = 0;
  bool repack_x = false, repack_y = false;  // kernels before make the operand channels_last in the workspace,
  int64_t repacked_x_at = 0, repacked_y_at = 0;  // here, after the partial sums
  constexpr int warps() const { return warps_m * warps_n; }
  constexpr int channels_m() const { return tile.channels() * warps_m; }
  constexpr int channels_n() const { return 16 * chunks_n; }
};
inline constexpr int kWgradSm80Slots = 2;  // steps in shared memory: one in use, the next one on its way

}  // namespace deconv
