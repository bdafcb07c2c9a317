// Shared by the planners of wgrad_sm90: the Pipeline's stages, splits, the estimate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>

#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/split_k.h"

namespace deconv {

// The stages that fit into shared memory with their barriers; 0 if fewer than two do.
struct StageRing {
  int stages, barriers_at, shared_bytes;
};
inline StageRing stage_ring(const Device& device, int64_t stage_bytes) {
  constexpr int kMostStages = 8, kBarriers = 24;  // kBarriers: bytes a stage
  const int stages = std::min<int64_t>(kMostStages,
                                       (device.shared_bytes_per_block - kBarriers * kMostStages) / stage_bytes);
  if (stages < 2) return {0, 0, 0};
  const int bytes = stages * stage_bytes;
  return {stages, bytes, bytes + kBarriers * stages};
}

// Costs on an H200, fitted to 542 settings of results/h200.csv.
// Cycles of a wgmma m64nNk with 32 bytes of K: N/2 by the data sheet, over the share that is reached.
constexpr double wgmma_cycles(int n) {
  constexpr double kShareOfPeak = 0.93;
  return n / (2 * kShareOfPeak);
}
inline constexpr double kSplitProducts = 4.7;  // times a TF32 product: tf32x3 adds outside the tensor cores
inline constexpr double kBlockCycles = 1500;   // to start and end a block's work
// Cycles of what overlaps: the longest, plus a part of all, because hidden work still delays.
inline double overlapped(std::initializer_list<double> cycles) {
  constexpr int kShown = 32;  // this part, 1 / kShown
  return std::max(cycles) + std::accumulate(cycles.begin(), cycles.end(), double{}) / kShown;
}
// bytes: of the operands. sums_bytes: of all splits.
inline double weight_ms(const Device& device, double cycles, double bytes, int64_t sums_bytes) {
  constexpr double kLaunchMs = 3.4e-3;
  return 1e3 * std::max(cycles / kClock, bytes / device.bandwidth) + kLaunchMs + add_splits_ms(sums_bytes);
}

}  // namespace deconv
