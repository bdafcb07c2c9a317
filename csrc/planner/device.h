// What planners know about a GPU.
#pragma once

#include <string>

#include "core/problem.h"

namespace deconv {

struct Device {
  std::string name = "H200-like GPU (assumed)";
  int capability = 90;  // 10 * major + minor
  bool has_wgmma = true;  // sm_90, and a build with code for sm_90a
  bool has_mma = true;  // capability 8.0 or later, and a build whose code for this GPU is for 8.0 or later
  int multiprocessors = 132;
  int shared_bytes_per_block = 232448;  // opt-in maximum
  double bandwidth = 4.27e12;  // bytes/s, reads and writes together: copy on an H200
  // Bytes of memory traffic for a run that begins or ends within a sector (see below).
  double partial_run_bytes = 62;
};

// A sector that is written in part is read from memory first, unless the rest arrives soon. With less bandwidth, more
// sectors wait too long. Returns bytes for a peak bandwidth in bytes/s: interpolated between fits on an H100 (3.35e12)
// and an H200 (4.92e12), constant beyond them.
double partial_run_bytes(double peak_bandwidth);

// Smaller float32 problems do not ask for TF32. An H200's float32 units compute this many FLOP in about 2 µs, and
// asking calls into Python, which may wait for its lock.
inline constexpr double kTf32MinFlops = 1e8;
// Nor do problems with fewer channels a group on both sides: a tensor core then has nothing to add up, except after
// group_merge, which uses tf32x3.
inline constexpr int64_t kTensorCoreMinChannels = 2;

// True if the caller should find out whether TF32 is allowed: tensor cores may serve the problem, and it is large
// enough.
bool wants_tf32_answer(const Problem& problem, const Device& device);

}  // namespace deconv
