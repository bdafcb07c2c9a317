// What the planner of the Hopper family's folded products gives to its kernel: plain data, host and device.
#pragma once

#include <cstdint>

#include "families/igemm_sm90/plan.h"

namespace deconv {

inline constexpr int kWholeImagesKernel = 4,
                     kWholeImagesTaps = kWholeImagesKernel * kWholeImagesKernel;  // stride 2, padding 1
inline constexpr int kWholeImagesWarpgroups = 2;  // that multiply
inline constexpr int kWholeImagesThreads = 128 * (kWholeImagesWarpgroups + 1);
inline constexpr int kWholeImagesFoldWarps = 3;  // beside one that brings
inline constexpr int kWholeImagesChannels = 4 * kWholeImagesWarpgroups;  // of the result, of a block: one a warp
inline constexpr int kWholeImagesChunk = 64;  // source channels
inline constexpr int kWholeImagesCluster = 2;  // blocks of neighbouring channels that share pixels
inline constexpr int kWholeImagesPixels[] = {64, 128, 192, 256};  // of a tile
inline constexpr int kWholeImagesMostQuads = 4;  // of columns of an image
inline constexpr int kWholeImagesWeightBytes = kWholeImagesChunk * kWholeImagesChannels * kWholeImagesTaps *
                                               2;  // of a stage
// Rows of sums that a warp hands on, each so many floats longer than a tile, which keeps eight of them in different
// banks.
inline constexpr int kWholeImagesRows = kWholeImagesTaps / 2, kWholeImagesPitch = 8;

inline constexpr int kWholeImagesSumsBarriers = 3;  // of each warp

// Weights and pixels are multiplied as they lie, each tap of each channel with each pixel, and the products of a
// channel added up where they belong (gemm_sm90_whole_images.cuh).
struct WholeImagesPlan {
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
  int sums_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets
};

}  // namespace deconv
