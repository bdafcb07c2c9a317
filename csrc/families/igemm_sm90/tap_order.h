// The taps of one axis as the Hopper convolution uses them: in which order, and where each reads in a halo.
#pragma once

#include <vector>

#include "core/tap_span.h"
#include "families/igemm_sm90/plan.h"

namespace deconv {

struct HopperTap {
  int k;             // in the weight
  int phase, plane;  // planes that share a halo count as one
  int slot, slots;   // among the taps of this (phase, plane), and how many these are
  int row;           // of the halo, at which the tile's first pixel reads
};

// In the weight, from one slot of a (phase, plane) to the next (taps.h: forward walks backwards).
inline int hopper_tap_step(const AxisGeometry& axis) {
  const int step = axis.stride / gcd(axis.stride, axis.dilation);
  return axis.is_forward ? -step : step;
}

// Sorted by phase, plane and slot.
inline std::vector<HopperTap> hopper_taps(const AxisGeometry& axis, const HopperConvPlan& plan, bool along_w) {
  const int pixel_rows = along_w ? plan.row.w : plan.row.h, origin = along_w ? plan.origin_w : plan.origin_h;
  const bool together = along_w && plan.halo_planes > 1;
  const std::vector<int> planes = used_planes(axis);
  std::vector<HopperTap> all;
  for (int phase = 0; phase < axis.phases(); ++phase) {
    size_t first = all.size();  // of the pair
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
