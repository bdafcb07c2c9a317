// Plan of gemm_sm90_whole_images.cuh: plain data, host and device.
#pragma once

#include <cstdint>

#include "families/igemm_sm90/plan.h"

namespace deconv {

inline constexpr int kWholeImagesKernel = 4,
                     kWholeImagesTaps = kWholeImagesKernel * kWholeImagesKernel;  // stride 2, padding 1
inline constexpr int kWholeImagesWarpgroups = 2;  // that multiply
inline constexpr int kWholeImagesThreads = 128 * (kWholeImagesWarpgroups + 1);
inline constexpr int kWholeImagesFoldWarps = 3;  // add columns and store, beside the TMA warp
inline constexpr int kWholeImagesChannels = 4 * kWholeImagesWarpgroups;  // of the result, of a block: one a warp
inline constexpr int kWholeImagesChunk = 64;  // source channels of a k_block
inline constexpr int kWholeImagesCluster = 2;  // blocks with adjacent channels share pixels
inline constexpr int kWholeImagesPixels[] = {64, 128, 192, 256};  // of a tile
inline constexpr int kWholeImagesMostQuads = 4;  // groups of 4 columns of an image
inline constexpr int kWholeImagesWeightBytes = kWholeImagesChunk * kWholeImagesChannels * kWholeImagesTaps *
                                               2;  // of a stage
// Rows of sums that a warp hands on. Each is kWholeImagesPitch floats longer than a tile, so that eight rows meet
// different banks.
inline constexpr int kWholeImagesRows = kWholeImagesTaps / 2, kWholeImagesPitch = 8;

inline constexpr int kWholeImagesSumsBarriers = 3;  // of each multiplying warp: two full, one empty

// TMA loads weights and pixels in place. A warp multiplies all taps of a channel by all pixels; then products are added
// up where they belong (gemm_sm90_whole_images.cuh).
struct WholeImagesPlan {
  static constexpr const char* kFamily = "igemm_sm90";

  int pixels = 0;  // of a tile, of whole images
  int run = 0;  // adjacent pixels of an image in shared memory: 16, 32 or 64
  int image_pixels = 0;  // of an image: whole runs
  int quads = 0;  // groups of 4 columns of an image
  int images = 0;  // of a tile
  int chunks = 0;  // k_blocks
  int tiles = 0;  // of pixels, over all images
  int m_tiles = 0;  // of channels of a group: a cluster's
  int columns = 0;  // work tiles that share pixels: groups x m_tiles
  int items = 0, blocks = 0;
  int slots = 0, stage_bytes = 0;
  int sums_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets
};

}  // namespace deconv
