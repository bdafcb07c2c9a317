// Plans of conv.cuh and wgrad.cuh: plain data, host and device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deconv {

inline constexpr int kSimtThreads = 256;
inline constexpr int kSimtThreadRows = 8;

// Source phases along each axis whose taps a block keeps in shared memory.
inline constexpr int kSimtKnownPlanes = 16;

// Result channels of a thread: registers hold 64 float32 or 32 float64 sums.
constexpr int simt_thread_m(size_t accumulator_bytes) { return accumulator_bytes == 8 ? 4 : 8; }

// Elements from one tile row to the next. Columns past lane_columns hold the halo. Rows that a warp reads at once (32 /
// lane_columns units, 8 rows apart) meet different banks.
constexpr int simt_pitch(int lane_columns) { return lane_columns == 32 ? 40 : lane_columns == 16 ? 26 : 17; }

// Forward and grad_input (conv.cuh).
struct SimtConvPlan {
  static constexpr const char* kFamily = "simt";

  int lane_columns = 32;  // 32, 16 or 8
  int warps_m = 1;        // warps side by side along the result channels; the others take units of pixels
  int units_h = 1;        // units below each other
  int units_n = 1;  // images of a block
  int taps_h = 1;         // largest group of taps staged at once
  int taps_w = 1;
  int chunk = 1;  // source channels staged at once: a k_block
  int positions = 0;      // of one channel's tile, halo and padding included
  int image_pitch = 0;
  int channel_pitch = 0;
  int weight_pitch = 0;
  int weights_at = 0;     // byte offsets in shared memory
  int tile_at = 0;
  int taps_at = 0;
  int shared_bytes = 0;
  int blocks_m = 1, blocks_w = 1, blocks_h = 1, blocks_n = 1;
  int64_t blocks = 0;  // with all phases and groups
  bool vector_source = false;  // 16-byte accesses along the channels
  bool vector_result = false;
};

// grad_weight (wgrad.cuh).
struct SimtWgradPlan {
  static constexpr const char* kFamily = "simt";

  int tile = 0;           // index into kSimtWgradTiles
  int warps_m = 1, warps_n = 1, warps_tap = 1;
  int pixels = 32;        // columns staged at once, a power of two
  int rows = 1;           // rows staged at once
  int span = 0;           // grad_output columns staged per row
  int pixel_step = 1;     // staged columns from one pixel to the next
  int tap_step = 1;       // staged columns from one tap to the next
  bool shared_span = true;  // the taps' columns overlap and are staged once; else each tap stages its own
  int x_pitch = 0, y_pitch = 0;
  int y_at = 0, shared_bytes = 0;
  int blocks_m = 1, blocks_n = 1, blocks_tap = 1;
  int64_t segments = 0;  // stages of the whole sum
  int64_t segments_per_split = 0;
  int splits = 1;
  int64_t blocks = 0;
};

// A warp's tile of (input channels m, output channels n): thread tile and lanes. Lanes left over share the pixels.
struct SimtWgradTile {
  int thread_m, thread_n, lanes_m, lanes_n;
  constexpr int m() const { return thread_m * lanes_m; }
  constexpr int n() const { return thread_n * lanes_n; }
};
inline constexpr int kSimtWgradTileCount = 5;
inline constexpr SimtWgradTile kSimtWgradTiles[kSimtWgradTileCount] = {
    {8, 8, 4, 8}, {8, 4, 4, 8}, {4, 4, 2, 4}, {8, 4, 4, 1}, {1, 1, 1, 1}};
inline constexpr SimtWgradTile kSimtWgradTilesDouble[kSimtWgradTileCount] = {
    {4, 4, 4, 8}, {4, 4, 4, 8}, {4, 4, 2, 4}, {4, 4, 4, 1}, {1, 1, 1, 1}};

}  // namespace deconv
