// What the planner of the Hopper family's folded products gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

#include "families/igemm_sm90/plan.h"

namespace deconv {

inline constexpr int kFoldedKernel = 4, kFoldedTaps = kFoldedKernel * kFoldedKernel;  // stride 2, padding 1
inline constexpr int kFoldedWarpgroups = 2;  // that multiply
inline constexpr int kFoldedThreads = 128 * (kFoldedWarpgroups + 1);
inline constexpr int kFoldedFoldWarps = 3;  // beside one that brings
inline constexpr int kFoldedChannels = 4 * kFoldedWarpgroups;  // of the result, of a block: one a warp
inline constexpr int kFoldedChunk = 64;  // source channels
inline constexpr int kFoldedCluster = 2;  // blocks of neighbouring channels that share pixels
inline constexpr int kFoldedPixels[] = {64, 128, 192, 256};  // of a tile
inline constexpr int kFoldedMostQuads = 4;  // of columns of an image
inline constexpr int kFoldedWeightBytes = kFoldedChunk * kFoldedChannels * kFoldedTaps * 2;  // of a stage
// Rows of sums that a warp hands on, each so many floats longer than a tile, which keeps eight of them in different
// banks.
inline constexpr int kFoldedRows = kFoldedTaps / 2, kFoldedPitch = 8;

inline constexpr int kFoldedSumsBarriers = 3;  // of each warp

// Weights and pixels are multiplied as they lie, each tap of each channel with each pixel, and the products of a
// channel added up where they belong (kernels/hopper/folded.cuh).
struct HopperFoldedPlan {
  static constexpr const char* kFamily = "igemm_sm90";

  int pixels = 0;        // of a tile, of whole images
  int run = 0;           // pixels of an image that lie together in shared memory: 16, 32 or 64
  int image_pixels = 0;  // whole runs
  int quads = 0;         // of columns of an image
  int images = 0;        // of a tile
  int chunks = 0;        // of source channels
  int tiles = 0;         // of pixels, of all images
  int m_tiles = 0;       // of channels of a group, a cluster's
  int columns = 0;       // items that share pixels: groups, tiles of channels
  int items = 0, blocks = 0;
  int slots = 0, stage_bytes = 0;
  int plane_bytes = 0;  // of an image of one channel of the result
  int sums_at = 0, results_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets
};

}  // namespace deconv
