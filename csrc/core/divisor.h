// Division by a number known at launch: one multiplication instead of some 20 instructions.
#pragma once

#include <cstdint>

#include "core/taps.h"

namespace deconv {

// Exact for n below 2^31 and divisors from 1 to 2^31 - 1: with l = ceil(log2(divisor)) and
// multiplier = floor(2^32 (2^l - divisor) / divisor) + 1,  n / divisor = (high word of n * multiplier + n) >> l.
struct Divisor {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  DECONV_HOST_DEVICE int quotient(int n) const {
    const uint32_t high = static_cast<uint32_t>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * multiplier >> 32);
    return static_cast<int>((high + static_cast<uint32_t>(n)) >> shift);
  }
  DECONV_HOST_DEVICE int remainder(int n) const { return n - quotient(n) * static_cast<int>(divisor); }
};

inline Divisor divide_by(int64_t divisor) {
  Divisor by;
  by.divisor = static_cast<uint32_t>(divisor);
  while ((int64_t{1} << by.shift) < divisor) ++by.shift;
  by.multiplier = static_cast<uint32_t>((((uint64_t{1} << by.shift) - by.divisor) << 32) / by.divisor + 1);
  return by;
}

}  // namespace deconv
