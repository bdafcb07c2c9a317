#include "planner/device.h"

#include <algorithm>

namespace deconv {

double partial_run_bytes(double peak_bandwidth) {
  constexpr double kLess = 3.35e12, kMore = 4.92e12, kAtLess = 231, kAtMore = 62;
  const double share = std::clamp((peak_bandwidth - kLess) / (kMore - kLess), 0.0, 1.0);
  return kAtLess + share * (kAtMore - kAtLess);
}

bool wants_tf32_answer(const Problem& problem, const Device& device) {
  return problem.dtype == DType::kFloat32 && (device.has_wgmma || device.has_mma) &&
         std::max(problem.in_channels_per_group(), problem.out_channels_per_group()) >= kTensorCoreMinChannels &&
         problem.flops() >= kTf32MinFlops;
}

}  // namespace deconv
