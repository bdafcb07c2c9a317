// grad_weight of float32 (weight_strips.cuh): an operand rewritten as blocks have it in shared memory, so that one bulk
// copy brings it: boxes (row of strips, plane of the columns, tile of channels), each of swizzled rows of 128 bytes,
// rounded to TF32 or in two parts.
//
// A row of 128 bytes is one channel at four neighbouring positions, each with the eight strips' pixels next to each
// other: the 32 bytes of K that one instruction takes. So a tap's shift along the width is a shift by whole positions,
// whatever the layout of the tensors. grad_output comes as the stride's planes of columns, with as many positions more
// as the taps of a plane are apart.
#pragma once

#include "../../divisor.h"
#include "../../hopper_plan.h"
#include "../../hopper_weight_strips_plan.h"
#include "../primitives.cuh"
#include "async.cuh"
#include "split.cuh"

namespace deconv::hopper {

inline constexpr int kStripsPackThreads = 256;

struct StripsPackParams {
  const float* at;
  int64_t n, c, h, w;  // strides, elements
  int batch, channels, groups, height, width;  // channels of a group
  unsigned char* packed;
  int64_t part;  // bytes from the high parts to the low parts
  int box_bytes;
  int first_tile, rows, first_row;  // of strips; rows of a tile, of which the first is this one of the image
  int planes, block_planes, step;  // of the columns, of a block; columns from one position to the next
  int origin[kHopperStripsPlanes];  // of each plane: the column of a strip's first position, less `step` times its
                                    // pixel
  int positions;  // of a strip
  int chunks, group_chunks, fold;  // tiles of channels: of all, of `fold` groups together
  int strip_width, strips_shift;  // pixels; log2 of the strips side by side
  Divisor tiles_w;
  bool by_pixels;  // neighbouring lanes load neighbouring pixels; else channels
};

// A block writes boxes of kRows channels: of one plane, or of all, where those lie in the same 32 bytes of memory. By
// pixels: the lanes of a warp are four positions of all strips, the warps channels. By channels: they are eight
// channels of four strips, the warps positions and halves of the strips. Either way a thread loads every eighth channel
// of every fourth position.
template <int kRows, int kParts>
__global__ void __launch_bounds__(kStripsPackThreads) strips_pack_kernel(const __grid_constant__ StripsPackParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  constexpr int kChannelStep = 8, kCount = kRows / kChannelStep;
  unsigned rest = blockIdx.x;
  const auto take = [&](unsigned count) {
    const unsigned quotient = rest / count, digit = rest - quotient * count;
    rest = quotient;
    return static_cast<int>(digit);
  };
  const int chunk = take(p.chunks), of_block = take(p.planes / p.block_planes) * p.block_planes;
  const int of_tile = take(p.rows), row = of_tile + p.first_row;
  const int tile = p.first_tile + static_cast<int>(rest);
  const int of_images = p.tiles_w.quotient(tile);
  const int of_columns = tile - of_images * static_cast<int>(p.tiles_w.divisor);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int strip = p.by_pixels ? lane / kHopperStripUnit : lane / kChannelStep + warp % 2 * 4;
  const int position = p.by_pixels ? lane % kHopperStripUnit : warp / 2;
  const int channel = p.by_pixels ? warp : lane % kChannelStep;

  const int image = of_images * (kHopperStrips >> p.strips_shift) + (strip >> p.strips_shift);
  const int of_row = (of_columns << p.strips_shift) + (strip & ((1 << p.strips_shift) - 1));
  const int column = (of_row * p.strip_width + position) * p.step;
  const int group = chunk / p.group_chunks * p.fold;
  const int first_channel = chunk % p.group_chunks * kRows + channel;
  const bool exists = row >= 0 && row < p.height && image < p.batch;
  const int count = exists ? min(p.fold, p.groups - group) * p.channels - first_channel : 0;
  const float* line = p.at + image * p.n + (static_cast<int64_t>(group) * p.channels + first_channel) * p.c +
                      row * p.h + column * p.w;
  const int64_t channel_step = kChannelStep * p.c, unit_step = kHopperStripUnit * p.step * p.w;
  const uint32_t box = shared_address(shared);
  uint32_t to = box + channel * kHopperRowBytes + ((2 * position + strip / 4) ^ channel) * 16 + strip % 4 * 4;
#pragma unroll 1
  for (int unit = 0; unit * kHopperStripUnit < p.positions; ++unit, to += kRows * kHopperRowBytes, line += unit_step) {
    const int at = unit * kHopperStripUnit;
    const unsigned width = at + position < p.positions ? p.width : 0;
#pragma unroll 2
    for (int plane = 0; plane < p.block_planes; ++plane) {
      const int origin = p.origin[of_block + plane];
      const bool inside = static_cast<unsigned>(column + at * p.step + origin) < width;
      const float* const from = line + origin * p.w;
      float value[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        value[i] = inside && i * kChannelStep < count ? __ldg(from + i * channel_step) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t bits = __float_as_uint(value[i]);
        const uint32_t row_to = to + plane * kParts * p.box_bytes + i * kChannelStep * kHopperRowBytes;
        if constexpr (kParts == 1) {
          store_shared(row_to, operand_tf32(bits));
        } else {
          const SplitFloat split = split_float(bits);
          store_shared(row_to, split.high);
          store_shared(row_to + p.box_bytes, split.low);
        }
      }
    }
  }
  fence_to_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    const int64_t first = (static_cast<int64_t>(rest) * p.rows + of_tile) * p.planes + of_block;
    for (int plane = 0; plane < p.block_planes; ++plane) {
      for (int part = 0; part < kParts; ++part) {
        copy_bulk_out(p.packed + part * p.part + ((first + plane) * p.chunks + chunk) * p.box_bytes,
                      box + (plane * kParts + part) * p.box_bytes, p.box_bytes);
      }
    }
    wait_bulk_out();
  }
#endif
}

}  // namespace deconv::hopper
