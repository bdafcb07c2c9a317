// Stores small_channel's staged results: whole runs of adjacent elements.
#pragma once

#include "families/small_channel/params.cuh"

namespace deconv::small_channel {

// A tile's first image and first pixel.
struct Tile {
  int n, h, w;
};

// Copies vectors first, first + lanes, ... below `end` of `count` runs, a few runs at a time: neighbours in memory are
// written soon after each other, and loads are in flight before their stores. kAlike: all vectors of a run are like its
// first.
template <class Vector, bool kAlike>
__device__ __forceinline__ void copy_runs(const void* from, void* to, int count, uint32_t from_step, int64_t to_step,
                                          int first, int end, int lanes) {
  constexpr int kAhead = 4;
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
#pragma unroll 1
  for (; count > 0; count -= kAhead, source += kAhead * from_step, target += kAhead * to_step) {
    uint32_t run[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) run[a] = min(a, count - 1) * from_step;
    Vector v[kAhead];
    const auto load = [&](int i) {
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        v[a] = *reinterpret_cast<const Vector*>(source + i * static_cast<int>(sizeof(Vector)) + run[a]);
      }
    };
    if constexpr (kAlike) load(0);
#pragma unroll 1
    for (int i = first; i < end; i += lanes) {
      char* place = target + i * static_cast<int>(sizeof(Vector));
      if constexpr (!kAlike) load(i);
#pragma unroll
      for (int a = 0; a < kAhead; ++a, place += to_step) {
        if (a < count) *reinterpret_cast<Vector*>(place) = v[a];
      }
    }
  }
}

// Stores staged results in runs of adjacent elements.
template <class Vector, class T>
__device__ __forceinline__ void store_runs(const ConvParams<T>& p, const T* stage, const Tile tile, int pass_h,
                                           int first_channel, int channels) {
  const SmallChannelPlan& plan = p.plan;
  const int log_lanes = p.store.log_lanes, log_runs = p.store.log_runs;
  const auto shift_up = [](int value, int log) { return (value + (1 << log) - 1) >> log; };
  int step_w = p.axis[1].phases();
  asm volatile("" : "+r"(step_w));  // keep the compiler from holding what follows across tiles
  const int step_h = p.axis[0].result_step();
  const int heights = plan.all_heights ? p.axis[0].phases() : 1;
  const int line_w = plan.tile.w * step_w, lines = plan.tile.h * heights;
  const int first_w = tile.w * step_w, columns = min(line_w, p.axis[1].result_size - first_w);
  // Runs of an (image, line): the columns of each channel; the channels of each pixel; or the whole line of pixels.
  const bool by_pixel = !plan.columns_adjacent && !plan.whole_lines;
  const int length = by_pixel ? channels : plan.whole_lines ? columns * plan.channels : columns;
  const int vectors = length / static_cast<int>(sizeof(Vector) / sizeof(T));
  const int all_lines = min(plan.tile.n, p.batch - tile.n) * lines;
  const int runs = plan.columns_adjacent ? channels : by_pixel ? columns : 1;  // of a line
  const int lanes = 1 << log_lanes, first = threadIdx.x & (lanes - 1), slot = threadIdx.x >> log_lanes;
  const int first_run = slot & ((1 << log_runs) - 1);
  const int64_t next_run = plan.columns_adjacent ? p.result_m : p.result_w;
  // With one run a line, a lane's vectors count as runs.
  const bool one = p.store.one;
  const int own = shift_up(vectors - first, log_lanes), line_bytes = lanes * static_cast<int>(sizeof(Vector));
  const int count = one ? own : shift_up(runs - first_run, log_runs), end = one ? first + 1 : vectors;
  const int64_t to_step = one ? line_bytes : (next_run << log_runs) * static_cast<int>(sizeof(T));
  const uint32_t from_step = one ? line_bytes : (plan.stage_channel << log_runs) * static_cast<int>(sizeof(T));
  for (int index = slot >> log_runs; index < all_lines; index += kSmallChannelThreads >> (log_lanes + log_runs)) {
    const int n = p.by_staged_lines.quotient(index), line = index - n * lines;
    const int q = plan.all_heights ? p.by_heights.quotient(line) : line;
    const int phase = plan.all_heights ? line - q * heights : pass_h, h = (tile.h + q) * step_h + phase;
    if (h >= p.axis[0].result_size) continue;
    const T* from = stage + first_run * plan.stage_channel +
                    (plan.columns_adjacent ? n * plan.channels * plan.stage_channel + line * line_w
                                           : index * line_w * plan.stage_channel);
    T* to = p.result + (tile.n + n) * p.result_n + first_channel * p.result_m + h * p.result_h + first_w * p.result_w +
            first_run * next_run;
    if (plan.columns_adjacent && !one && p.walk[0].positions[phase] == 0) {  // bias alone
      copy_runs<Vector, true>(from, to, count, from_step, to_step, first, end, lanes);
    } else {
      copy_runs<Vector, false>(from, to, count, from_step, to_step, first, end, lanes);
    }
  }
}

}  // namespace deconv::small_channel
