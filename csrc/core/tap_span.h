// How far the taps of one axis reach, which decides how much of the source a tile needs.
#pragma once

#include <algorithm>
#include <vector>

#include "core/taps.h"

namespace deconv {

struct TapSpan {
  int origin = 0;  // smallest shift of any tap
  int length = 0;  // largest shift minus smallest
  int most = 0, least = 0;  // taps of the fullest (phase, source phase), and of the emptiest that has any
  int most_of_phase = 0;  // taps of the fullest phase, over all source phases
};

// The source phases that any tap reads, by first pixel; at least one. A dilation or a small kernel may skip some.
inline std::vector<int> used_planes(const AxisGeometry& axis) {
  std::vector<int> used;
  for (int plane = 0; plane < axis.planes(); ++plane) {
    bool any = false;
    for (int phase = 0; phase < axis.phases(); ++phase) any |= axis_taps(axis, phase, plane).count > 0;
    if (any) used.push_back(plane);
  }
  if (used.empty()) used.push_back(0);
  return used;
}

inline TapSpan tap_span(const AxisGeometry& axis) {
  TapSpan span;
  int last = 0;
  for (int phase = 0; phase < axis.phases(); ++phase) {
    int of_phase = 0;
    for (int plane = 0; plane < axis.planes(); ++plane) {
      const AxisTaps taps = axis_taps(axis, phase, plane);
      if (taps.count == 0) continue;
      const int end = taps.first_shift + (taps.count - 1) * taps.shift_step;
      span.origin = span.most == 0 ? taps.first_shift : std::min(span.origin, taps.first_shift);
      last = span.most == 0 ? end : std::max(last, end);
      span.least = span.most == 0 ? taps.count : std::min(span.least, taps.count);
      span.most = std::max(span.most, taps.count);
      of_phase += taps.count;
    }
    span.most_of_phase = std::max(span.most_of_phase, of_phase);
  }
  span.length = last - span.origin;
  return span;
}

}  // namespace deconv
