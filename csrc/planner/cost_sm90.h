// Estimates of persistent kernels on wgmma (igemm_sm90): one table of constants, one function from cycles to ms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "planner/cost_model.h"
#include "planner/device.h"

namespace deconv::sm90 {

// Cycles of a multiprocessor at kClock unless said otherwise. Fitted to timings of an H100 and an H200 (tests/data) and
// to estimates that were fitted to many more.

// By the bytes of an element: float16 and bfloat16; float32 as TF32.
struct BySize {
  double two, four;
  constexpr double of(int64_t element) const { return element == 2 ? two : four; }
};

// Tensor cores. A column of B takes 64 rows of A and 32 bytes of K: 0.44 by the data sheet at 1.98 GHz.
inline constexpr double kSm80Column = 0.43;
inline constexpr double kTf32x3 = 3.12;  // times as much: three TF32 products, and sums added outside
inline constexpr double kStage =
    137;  // hand-over of a stage of operands to two warpgroups; twice as much in three TF32 products
inline constexpr BySize kStageCopied{17, 113};  // the same to one, while tensor copies take results away
inline constexpr double kTogether = 0.134;  // part of the lesser of products and copies that the other does not hide
inline constexpr double kHandOver = 1750;  // of an item, or a cluster's sums; latency of a stage of weights
inline constexpr double kTurn = 1280;  // the same to the other warpgroup, in turns

// Memory.
inline constexpr double kL2Bytes = 34;  // a cycle, into shared memory by TMA, while all multiprocessors load
inline constexpr BySize kBoxRow{3.7, 2.3};  // a row of a box of planes
inline constexpr double kCopy = 60;  // a small tensor copy
inline constexpr double kMemoryShare = 0.15;  // part of the time for moving all tensors that nothing hides
inline constexpr double kLaunchMs = 2.5e-3;

// Producer warps.
inline constexpr BySize kTransposed{3.65, 7.85};  // a pixel's 128 bytes of channels, from a raw box
inline constexpr double kGathered = 13.2;  // the same from memory
inline constexpr double kFarColumns = 0.13;  // times that more, for each byte between columns beyond kNearBytes
inline constexpr double kNearBytes = 12;  // L1 hides steps up to this
inline constexpr BySize kLine{224, 78.1};  // a line of a halo and 128 bytes of channels, besides
inline constexpr double kFewWriters = 2;  // times as much where accumulators leave registers for few warps
inline constexpr double kIm2col = 1590;  // a round of all warps: kSm90Im2colAhead places of 32 pixels
inline constexpr double kFirstPlanes = 6500;  // from a launch until warps have planes as operands
inline constexpr double kFirstShort = 13600;  // the same by producer warps, 16 bits

// Results on their way out, for each element of both warpgroups.
inline constexpr BySize kStoreChannels{0.0792, 0.113};  // channels adjacent
inline constexpr double kStoreChannelsPhases = 0.038;  // the same with two phases side by side: more
inline constexpr BySize kStoreColumns{0.092, 0.0291};  // columns adjacent, groups of columns
inline constexpr BySize kStoreLines{0.04, 0.17};  // the same in several lines: more
inline constexpr double kStoreStaged = 0.059;  // columns adjacent, other groups: for each byte of an element
inline constexpr double kStoreSectors = 0.0978;  // columns adjacent in whole sectors; groups of images: more
inline constexpr double kStoreRow = 1.9;  // a row that begins or ends within a sector: more
inline constexpr double kStorePixels = 0.042;  // columns adjacent, where pixels are operand A
inline constexpr double kStoreApart = 0.21;  // columns apart
inline constexpr double kStoreSingle = 0.104;  // neighbours that may not be stored at once: more
inline constexpr double kTurnChannels = 1.8;  // times as much from one warpgroup at a time, channels adjacent
inline constexpr double kTurnColumns = 2.99;  // the same, columns adjacent
inline constexpr BySize kStoreCopied{0.04, 0.213};  // by tensor copies
inline constexpr double kStoreCopiedLine = 99.7;  // the same, a line of a warpgroup
inline constexpr double kStoreWide = 1.09;  // times as much, of 128 channels
inline constexpr double kStoreWideCopied = 0.76;  // the same by tensor copies

// A warpgroup's product: 64 rows of A by n columns of B, over some bytes of K. Narrow ones wait for operand A.
constexpr double sm80_cycles(double n, double bytes) { return kSm80Column * std::max(n, (n + 64) / 2) * bytes / 32; }

// Products and results of warpgroups that each have items of their own: what they do not hide of each other.
// 1: nothing, as in TF32, whose operand A goes through registers.
inline constexpr BySize kOverlap{1.36, 1};
inline double overlapped(double products, double results, int64_t element) {
  const double power = kOverlap.of(element);
  return std::pow(std::pow(products, power) + std::pow(results, power), 1 / power);
}

// What a block does: in each launch `rounds` items one after the other.
struct Work {
  double launches = 1, rounds = 1;
  double item = 0;   // cycles of an item: what its products and results do not hide of each other
  double load = 0;   // cycles of its copies, beside another item
  double last = 0;   // cycles of the last item, beside which there is no other
  double start = 0;  // until the first item
};
inline double kernel_ms(const Device& device, const Work& w, double bytes) {
  const double cycles = w.launches * ((w.rounds - 1) * std::max(w.item, w.load) + std::max(w.last, w.load) + w.start);
  const double memory_ms = 1e3 * bytes / device.bandwidth;
  return std::max(1e3 * cycles / kClock + kMemoryShare * memory_ms, memory_ms) + kLaunchMs;
}

}  // namespace deconv::sm90
