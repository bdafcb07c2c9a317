// Plans of conv.cuh and wgrad.cuh: plain data, host and device.
#pragma once

#include <cstdint>

#include "core/taps.h"

namespace deconv {

inline constexpr int kSm80Threads = 128;  // four warps
inline constexpr int kSm80WarpPixels = 64;  // of a warp's tile
inline constexpr int kSm80BandBytes = 64;  // bytes of a pixel's channels in one turn of the loop
// Bytes from one pixel of a halo to the next: an odd number of 16-byte pieces, so that ldmatrix reads eight neighbours
// without bank conflicts.
constexpr int sm80_row_pitch(int row_bytes) { return row_bytes + 16; }
inline constexpr int kSm80Stages = 3;  // turns whose weights are in shared memory or in flight
inline constexpr int kSm80PassRows = 32;  // pixels of a halo that a block's threads copy at once
inline constexpr int kSm80TablePasses = 4;  // whose table entries are adjacent for a thread
inline constexpr int kSm80MaxKernel = 128;  // taps along one axis
inline constexpr int kSm80MaxStride = 64;
inline constexpr int kSm80PlaceBytes = 16;  // of a pixel's entry in a table of places
inline constexpr int kSm80OffsetBytes = 4;  // of a pixel's entry in the table of a halo
inline constexpr int kSm80MostTablePlanes = 16;  // source phases in a halo's table; more are entered one at a time
// 32-bit words from one channel to the next of the 8 that a warp stages for a result with adjacent columns. Each begins
// four lanes' words further in the banks: no conflicts.
constexpr int sm80_staging_pitch(int element_bytes) { return kSm80WarpPixels * element_bytes / 4 * 9 / 8; }

// Blocks a multiprocessor that registers must suffice for. rows: Sm80Tile::rows. split: tf32x3.
constexpr int sm80_blocks(int rows, bool split) { return rows == 4 || split ? 2 : 3; }

// Four warps: warps_m along the result channels, the others along the pixels. A warp has 16 * rows channels (an
// instance of the kernel) x 64 pixels.
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

// Forward and grad_input (conv.cuh). Pixels are counted in q (core/taps.h): all phases have the same tiles.
struct IgemmSm80Plan {
  static constexpr const char* kFamily = "igemm_sm80";

  Sm80Tile tile{4, 1};
  bool split = false;  // tf32x3
  Sm80Extent pixels;  // of a tile
  Sm80Extent halo;  // pixels staged
  Sm80Extent tiles;
  int origin_h = 0, origin_w = 0;  // smallest source shift of any tap
  int phases_h = 1, phases_w = 1;
  int planes_h = 1, planes_w = 1;
  int slots_h = 1, slots_w = 1;  // taps of the fullest phase along each axis, over all source phases
  int row_bytes = kSm80BandBytes;  // of a pixel's k_block in shared memory: one or two bands
  int bands = 1, chunks = 1;  // of the source channels: bands, k_blocks
  int m_tiles = 1;
  int halos_ahead = 1;  // halos in flight while one is in use
  bool keep_halos = false;  // reused halos: all of a tile stay for all of its phases
  int halo_slots = 2;  // in use and in flight
  int halo_bytes = 0;  // of one, in whole passes
  int table_planes = 1;  // source phases in the table at once: all, or one
  int together = 1;  // phases of the width that are stored together: 1, or all 2
  int staged_bytes = 0;  // of a warp's staged results
  // Byte offsets. kept_at: results that wait for the other phase.
  int weights_at = 0, staging_at = 0, table_at = 0, places_at = 0, kept_at = 0, shared_bytes = 0;
  int items = 1;  // work tiles of a slice: a tile of pixels in one phase each
  int items_per_block = 1;  // consecutive
  int runs = 1;  // blocks that share the work tiles of a tile of result channels
  int64_t blocks = 0;
  // Programmatic dependent launch. Only with enough blocks for all multiprocessors: few blocks, placed beside the last
  // ones of the kernel before, would leave multiprocessors empty.
  bool starts_early = false;
  bool repack = false;  // a kernel before rewrites the source channels_last in the workspace
  bool unpack = false;  // the result is computed channels_last there, and a kernel after stores it
  int slice = 1;  // images at a time; all without repack and unpack
  int64_t packed_bytes = 0;  // of the packed weights, in the workspace
  int64_t repacked_bytes = 0, unpacked_bytes = 0;  // of a slice: its source, behind the packed weights, and its result
};

// grad_weight (wgrad.cuh). A warp has 16 * rows input channels x `units` units of 16 output channels of one tap;
// instances of the kernel.
struct WgradSm80Tile {
  int rows, units;
  constexpr int channels() const { return 16 * rows; }
};
inline constexpr WgradSm80Tile kWgradSm80Tiles[] = {{4, 4}, {4, 3}, {2, 4}};
inline constexpr WgradSm80Tile kWgradSm80TilesSplit[] = {{4, 3}, {2, 4}};  // tf32x3: low parts take registers
// Warps that a multiprocessor's registers suffice for; also the most of a block.
constexpr int wgrad_sm80_warps(WgradSm80Tile tile, bool split) { return split || tile.rows * tile.units > 12 ? 8 : 12; }

// One tap along one axis, in the order in which groups are formed. The staged lines of grad_output of a group form
// segments of lines that are a stride apart.
struct WgradSm80Tap {
  int reach;  // line of grad_output that is the segment's first, for pixel 0
  int16_t tap;
  int16_t line;  // staged line for the tile's first pixel
  int16_t segment;  // first staged line of the segment
};

// Finds the lines of grad_output that a tile of `pixels` needs along one axis, for groups of `most` taps. Taps whose
// lines fall on the same residue of the stride are consecutive, so that they share lines. Returns the most lines of a
// group.
inline int wgrad_sm80_taps(int kernel, int stride, int padding, int dilation, int most, int pixels,
                           WgradSm80Tap* taps) {
  const int common = gcd(stride, dilation);
  const int step = stride / common;
  int count = 0, lines = 0, most_lines = 0;
  for (int first = 0; first < step && first < kernel; ++first) {
    int origin = 0, segment = 0;  // the segment's first tap and first line
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
  bool split = false;  // tf32x3
  int warps_m = 1, warps_n = 1;  // along the input channels, along the units
  int chunks_n = 1;  // units of 16 output channels of a block
  int taps_h = 1, taps_w = 1;  // of a group along each axis; the last group may have fewer
  int groups_h = 1, groups_w = 1;
  Sm80Extent pixels;  // of a step
  Sm80Extent tiles;
  int step_pixels = 16;  // whole instructions; the last pixels may not exist
  int y_rows = 1;  // most staged pixels of grad_output
  int x_pitch = 0, y_pitch = 0;  // bytes from one staged pixel to the next
  int y_at = 0, slot_bytes = 0;  // of a step: byte offset of grad_output, all
  int x_places_at = 0, y_places_at = 0, rows_at = 0, shared_bytes = 0;  // byte offsets
  int blocks_m = 1, blocks_n = 1;
  int64_t steps = 0, steps_per_split = 0;
  int splits = 1;
  int64_t blocks = 0;
  bool repack_x = false, repack_y = false;  // kernels before rewrite the operand channels_last in the workspace
  int64_t repacked_x_at = 0, repacked_y_at = 0;  // there, behind the partial sums
  constexpr int warps() const { return warps_m * warps_n; }
  constexpr int channels_m() const { return tile.channels() * warps_m; }
  constexpr int channels_n() const { return 16 * chunks_n; }
};
inline constexpr int kWgradSm80Slots = 2;  // steps in shared memory: one in use, one in flight

}  // namespace deconv
