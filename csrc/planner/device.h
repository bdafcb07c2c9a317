// What planners know about a GPU.
#pragma once

#include <string>

#include "core/problem.h"

namespace deconv {

struct Device {
  std::string name = "H200-like GPU (assumed)";
  int capability = 90;  // 10 * major + minor
  bool has_wgmma = true;  // Hopper, and a build that holds code for sm_90a
  bool has_mma = true;  // capability 8.0 or later, and a build whose code for this GPU is for 8.0 or later
  int multiprocessors = 132;
  int shared_bytes_per_block = 232448;  // opt-in maximum
  double bandwidth = 4.27e12;  // bytes/s, reads and writes together: device copy measured on an H200
  // Of memory traffic for a run of bytes that begins or ends within a sector (partial_run_bytes).
  double partial_run_bytes = 62;
};

// A sector that is written in part is read from memory first, unless the rest comes soon; the less bandwidth, the more
// of them wait so long. Bytes by the memory's peak bandwidth (bytes/s), between an H100's (3.35e12) and an H200's
// (4.92e12), at which they are fitted; beyond those the same as there.
double partial_run_bytes(double peak_bandwidth);

// Smaller float32 problems do not ask for TF32: the float32 units of an H200 do this much in some 2 µs, so there is
// nothing to gain, and the question is a call into Python that may wait for its lock.
inline constexpr double kTf32MinFlops = 1e8;
// Nor do those with fewer channels a group on both sides: there a tensor core has nothing to add up, unless groups are
// merged, and then in three TF32 products.
inline constexpr int64_t kTensorCoreMinChannels = 2;

// Whether the caller should find out if TF32 is allowed: a family on tensor cores could serve, and it is worth asking.
bool wants_tf32_answer(const Problem& problem, const Device& device);

}  // namespace deconv
