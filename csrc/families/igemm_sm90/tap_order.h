// Taps of one axis in conv.cuh's order of use, and the halo row at which each reads.
#pragma once

#include <vector>

#include "core/tap_span.h"
#include "families/igemm_sm90/plan.h"

namespace deconv {

struct Sm90Tap {
  int k;             // index in the weight
  int phase, plane;  // source phases that share a halo count as one
  int slot, slots;   // index among the taps of this (phase, source_phase), and their number
  int row;           // of the halo: where the tile's first pixel reads
};

// Step in the weight from one tap of a (phase, source_phase) to the next. Forward walks backwards (core/taps.h).
inline int sm90_tap_step(const AxisGeometry& axis) {
  const int step = axis.stride / gcd(axis.stride, axis.dilation);
  return axis.is_forward ? -step : step;
}

// Sorted by phase, source_phase and slot.
inline std::vector<Sm90Tap> sm90_taps(const AxisGeometry& axis, const IgemmSm90Plan& plan, bool along_w) {
  const int pixel_rows = along_w ? plan.row.w : plan.row.h, origin = along_w ? plan.origin_w : plan.origin_h;
  const bool together = along_w && plan.halo_planes > 1;
  const std::vector<int> planes = used_planes(axis);
  std::vector<Sm90Tap> all;
  for (int phase = 0; phase < axis.phases(); ++phase) {
    size_t first = all.size();  // of this (phase, source_phase)
    for (int i = 0; i < static_cast<int>(planes.size()); ++i) {
      const AxisTaps taps = axis_taps(axis, phase, planes[i]);
      if (!together) first = all.size();
      for (int t = 0; t < taps.count; ++t) {
        const int row = (taps.first_shift + t * taps.shift_step - origin) * pixel_rows;
        all.push_back({taps.first_tap + t * taps.tap_step, phase, together ? 0 : i,
                       static_cast<int>(all.size() - first), 0, row + (together ? i * plan.plane_rows : 0)});
      }
      for (size_t tap = first; tap < all.size(); ++tap) all[tap].slots = static_cast<int>(all.size() - first);
    }
  }
  return all;
}

}  // namespace deconv
