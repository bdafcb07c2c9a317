// Shared by ss and rs_nhwc: parameters, work tiles, and the thread that produces the stages by TMA.
#pragma once

#include "device/primitives.cuh"
#include "device/tma_sm90.cuh"
#include "families/wgrad_sm90/plan_tma_nhwc.h"

namespace deconv::sm90 {

template <class T, class Plan>
struct WeightCopiesParams {
  CUtensorMap x_map;  // (channel, then the axes of pixels from the innermost on)
  CUtensorMap y_map[kWgradPlanes];
  T* result;  // (groups * channels_m, channels_n, kernel height, kernel width)
  float* partial;  // (splits, groups, taps, m, n), m and n padded; null unless plan.sums
  int64_t result_m, result_n, result_h, result_w;
  int channels_m, channels_n, groups, kernel_h, kernel_w;
  bool store_packs;  // 16-bit types: eight adjacent output channels at once
  bool adds;  // to the partial sums of earlier images
  Plan plan;
};

// A work tile: input channels, output channels and taps, over a range of pixels.
struct WeightItem {
  int tap_group, n, m;  // n, m: first channels within the group
  int group, split;
  int64_t begin;
  int steps;
};

template <class T, class Plan>
__device__ __forceinline__ WeightItem find_weight_item(const WeightCopiesParams<T, Plan>& p, unsigned index) {
  constexpr int kChannels = kSm90RowBytes / static_cast<int>(sizeof(T));
  const Plan& plan = p.plan;
  const auto take = [&](unsigned count) {
    const unsigned quotient = index / count, digit = index - quotient * count;
    index = quotient;
    return static_cast<int>(digit);
  };
  WeightItem item;
  item.tap_group = take(plan.tap_groups);
  item.n = take(plan.blocks_n) * plan.y_chunks * kChannels;
  item.m = take(plan.blocks_m) * plan.x_boxes * kChannels;
  item.group = take(plan.blocks_group) * plan.fold;
  item.split = static_cast<int>(index);
  item.begin = item.split * plan.steps_per_split;
  item.steps = static_cast<int>(min(plan.steps_per_split, plan.steps - item.begin));
  return item;
}

// One thread issues the TMA loads of every tile of pixels of a work tile, as soon as a slot is free: the boxes of the
// input, then those of grad_output.
template <class T, class Plan>
__device__ __forceinline__ void bring_weight_item(const WeightCopiesParams<T, Plan>& p, const WeightItem& item,
                                                  Ring& ring, uint32_t shared) {
  constexpr int kChannels = kSm90RowBytes / static_cast<int>(sizeof(T));
  const Plan& plan = p.plan;
  const int first_box = plan.first_box[item.tap_group], last_box = plan.first_box[item.tap_group + 1];
  const int box_chunks = sizeof(T) == 2 ? 1 : plan.box_chunks;
  const int y_rows = (last_box - first_box) * box_chunks * plan.halo[0] * plan.halo[1] * plan.halo[2];
  const uint32_t bytes = plan.x_boxes * plan.x_box_bytes + y_rows * kSm90RowBytes;
  const int m = item.group * p.channels_m + item.m, n = item.group * p.channels_n + item.n;
  int64_t rest = item.begin;
  int tile[3];
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    const int64_t quotient = rest / plan.tiles[a];
    tile[a] = static_cast<int>(rest - quotient * plan.tiles[a]);
    rest = quotient;
  }
  for (int step = 0; step < item.steps; ++step) {
    const int c0 = tile[0] * plan.pixels[0], c1 = tile[1] * plan.pixels[1], c2 = tile[2] * plan.pixels[2];
    const uint32_t full = ring.full_barrier(), slot = shared + ring.slot * plan.slot_bytes;
    ring.wait_empty();
    barrier_arrive_expecting(full, bytes);
    for (int i = 0; i < plan.x_boxes; ++i) {
      copy_tensor(slot + i * plan.x_box_bytes, &p.x_map, full, m + i * kChannels, c0, c1, c2);
    }
    uint32_t to = slot + plan.y_boxes_at;
    for (int i = first_box; i < last_box; ++i) {
      const WgradBox& box = plan.boxes[i];
      const auto copy = [&](int chunk) {
        copy_tensor(to, &p.y_map[box.plane], full, n + chunk * kChannels, c0 + box.shift[0], c1 + box.shift[1],
                    c2 + box.shift[2]);
        to += plan.y_box_bytes;
      };
      if constexpr (sizeof(T) == 2) {  // no loop: it slows layers with many boxes
        copy(box.chunk);
      } else {
        for (int chunk = 0; chunk < box_chunks; ++chunk) copy(chunk);
      }
    }
    ring.advance();
    if (++tile[0] == plan.tiles[0]) {
      tile[0] = 0;
      if (++tile[1] == plan.tiles[1]) {
        tile[1] = 0;
        ++tile[2];
      }
    }
  }
}

}  // namespace deconv::sm90
