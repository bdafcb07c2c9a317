// What the mma family's planner gives to its kernels: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kMmaThreads = 128;  // four warps
inline constexpr int kMmaWarpPixels = 64;  // of a warp's tile
inline constexpr int kMmaRowBytes = 64;  // of one pixel's channels in shared memory: one chunk
// From one pixel to the next: an odd number of 16-byte pieces, so eight neighbours lie in eight groups of banks.
inline constexpr int kMmaRowPitch = kMmaRowBytes + 16;
inline constexpr int kMmaStages = 3;  // weights of as many stages (taps of a chunk) are in shared memory or on the way
inline constexpr int kMmaMaxKernel = 128;  // taps along one axis
inline constexpr int kMmaMaxStride = 64;
inline constexpr int kMmaPlaceBytes = 16;  // of a halo pixel's entry in the table of places
// Words from one channel to the next of the 16 that a warp stages on their way to a result with adjacent columns.
constexpr int mma_staging_pitch(int element_bytes) { return element_bytes == 4 ? 72 : 36; }
constexpr int mma_staging_bytes(int element_bytes) {
  return kMmaThreads / 32 * 16 * mma_staging_pitch(element_bytes) * 4;
}

// Blocks of a multiprocessor that registers must suffice for; rows: MmaTile::rows.
constexpr int mma_blocks(int rows, int element_bytes) { return rows == 4 || element_bytes == 4 ? 2 : 3; }

// Four warps: warps_m along the result channels, the others along the pixels; a warp has 16 * rows channels (an
// instance of the kernel) and 64 pixels.
struct MmaTile {
  int rows, warps_m;
  constexpr int channels() const { return 16 * rows * warps_m; }
  constexpr int pixels() const { return kMmaWarpPixels * (kMmaThreads / 32 / warps_m); }
};
inline constexpr MmaTile kMmaTiles[] = {{4, 1}, {4, 2}, {2, 1}, {2, 2}};

// Pixels along each axis.
struct MmaExtent {
  int n = 1, h = 1, w = 1;
};

// Forward and grad_input (kernels/mma/conv.cuh has the meaning). Pixels are counted in q (taps.h): a tile is the same
// for every phase.
struct MmaConvPlan {
  MmaTile tile{4, 1};
  bool split = false;  // float32 as two TF32 parts, three products
  MmaExtent pixels;  // of a tile
  MmaExtent halo;  // pixels staged
  MmaExtent tiles;
  int origin_h = 0, origin_w = 0;  // smallest source shift of any tap
  int phases_h = 1, phases_w = 1;
  int planes_h = 1, planes_w = 1;
  int slots_h = 1, slots_w = 1;  // taps of the fullest phase along each axis, over all planes
  int chunks = 1;  // of source channels
  int m_tiles = 1;
  int halos_ahead = 1;  // halos on the way while one is in use
  int halo_bytes = 0;  // of one
  int weights_at = 0, staging_at = 0, table_at = 0, shared_bytes = 0;  // byte offsets
  int items = 1;  // tiles of pixels of a slice, in each phase
  int items_per_block = 1;  // one after the other
  int runs = 1;  // blocks that share the items of a tile of result channels
  int64_t blocks = 0;
  bool repack = false;  // a kernel before makes the source channels_last in the workspace,
  int slice = 1;  // so many images at a time; all, without
  int64_t packed_bytes = 0;  // of the packed weights, in the workspace; the repacked source follows
  int64_t repacked_bytes = 0;  // of a slice
};

}  // namespace deconv
