// A problem as the key of a map: every number that a plan may depend on, and the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/problem.h"

namespace deconv {

using ProblemKey = std::array<int64_t, 50>;

ProblemKey key_of(const Problem& problem, int device_index);

struct ProblemKeyHash {
  size_t operator()(const ProblemKey& key) const;
};

}  // namespace deconv
