// What the planners of the Hopper family's grad_weight by tensor copies share: planes of grad_output and the boxes that
// bring them, splits, slices of the images.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/correlation.h"
#include "families/igemm_sm90/planner.h"
#include "families/wgrad_sm90/plan_tma_nhwc.h"
#include "lowerings/repack.h"
#include "lowerings/wgrad_im2col.h"
#include "planner/cost_model.h"
#include "planner/plan.h"

namespace deconv {

// 128 bytes of channels of one plane of grad_output, and the shifts of the taps that read them.
struct WeightPlaneBox {
  int plane_h, plane_w, chunk;
  int first_h, first_w, last_h, last_w;  // shifts
};
size_t find_box(const std::vector<WeightPlaneBox>& boxes, int plane_h, int plane_w, int chunk);

// What all groups of boxes need.
struct WeightReach {
  int range_h = 0, range_w = 0;  // most that the shifts of a box differ
  int most_boxes = 0;  // of a group
  void extend(const std::vector<WeightPlaneBox>& group);
};

// Taps of one axis that share a plane, in order of their shifts.
struct WeightPlane {
  int start;
  std::vector<int> taps;
};

// The images that a slice has, and what their operands take in the workspace if kernels before rewrite them.
struct WeightSlices {
  bool repack_x, repack_y, im2col;
  int64_t slice, count;  // images of a slice, slices; slice 0: not even one image can be rewritten
  int64_t x_bytes, y_bytes;
  double before_ms;  // of rewriting a slice
};
WeightSlices weight_slices(const Problem& problem, bool im2col);
Problem first_images(Problem problem, int64_t count);

// No plan: says why to `considered`.
inline std::nullopt_t refuse_tile(std::vector<Candidate>* considered, const char* tile, const std::string& why) {
  if (considered) considered->push_back({tile, 0, why});
  return std::nullopt;
}

// Why no tensor copies can bring the problem's operands; empty if they can.
std::string weight_copies_refusal(const Problem& problem, const Device& device);

// Where the rewritten operands lie behind `sums` bytes in the workspace; returns the bytes of all.
int64_t place_slices(HopperWeightCopies& plan, const WeightSlices& slices, int64_t sums);
// ", input repacked" and so on.
std::string describe_slices(const HopperWeightCopies& plan);
// Of the pixels, from the innermost axis on.
std::string describe_pixels(const HopperWeightCopies& plan);

// The better of what plan_seen(problem as the copies see it, im2col) gives.
template <class PlanSeen>
std::optional<Plan> with_or_without_im2col(const Problem& problem, PlanSeen plan_seen) {
  std::optional<Plan> plan = plan_seen(problem, false);
  if (!fits_weight_im2col(problem)) return plan;
  std::optional<Plan> by_im2col = plan_seen(weight_im2col_problem(problem), true);
  return by_im2col && (!plan || by_im2col->estimate_ms < plan->estimate_ms) ? by_im2col : plan;
}

// Whether the plan of one tile is the best until now. ms: of a slice, but for what rewrites it. sums: bytes.
template <class TilePlan>
void consider_tile(std::optional<Plan>& best, TilePlan tile, double ms, int64_t sums, const WeightSlices& slices,
                   DType dtype, std::vector<Candidate>* considered) {
  // Every slice reads and writes the sums, which costs about what adding them costs.
  const double all_ms = (ms + slices.before_ms) * static_cast<double>(slices.count);
  const int64_t bytes = place_slices(tile, slices, sums);
  if (!considered && best && all_ms >= best->estimate_ms) return;
  consider_plan(best, "wgrad_sm90 family", tile, bytes, all_ms, dtype, considered);
}

class WeightCopiesCandidates {
 public:
  int64_t workspace_bytes(const HopperWeightCopies& p) const { return p.sums ? p.splits * partial_bytes(p) : 0; }

 protected:
  // in_slices: results of other images add to the same sums. most_pixels: in one split's sum.
  WeightCopiesCandidates(const Problem& problem, const Device& device, bool in_slices, int64_t most_pixels);

  template <class Value, class From>
  static std::array<Value, 3> in_order(HopperInner inner, From h, From w, From n) {
    const auto value = [](From from) { return static_cast<Value>(from); };
    if (inner == HopperInner::kHeight) return {value(h), value(w), value(n)};
    if (inner == HopperInner::kBatch) return {value(n), value(w), value(h)};
    return {value(w), value(h), value(n)};
  }
  std::array<int64_t, 3> sizes(HopperInner inner) const {
    return in_order<int64_t>(inner, problem_.axis[0].input, problem_.axis[1].input, problem_.batch);
  }
  // Rows of a box from one pixel to the next along each axis, from the innermost on.
  static std::array<int, 3> box_rows(const HopperWeightCopies& p) { return {1, p.halo[0], p.halo[0] * p.halo[1]}; }
  // In the boxes of a group, each of plan.box_chunks chunks, the row where a tap finds the tile's first pixel.
  int row_of_tap(const HopperWeightCopies& p, const std::vector<WeightPlaneBox>& group, int kh, int kw,
                 int chunk) const;

  // A tap's box among those of its block, made wider or added.
  void reach(std::vector<WeightPlaneBox>& boxes, int kh, int kw, int chunk) const;
  // Tiles and halos for pixels from the innermost axis on. False: too many.
  bool choose_pixels(HopperWeightCopies& p, HopperInner inner, const std::array<int, 3>& pixels,
                     const WeightReach& reach) const;
  // The ring of stages with so many boxes of the input, each of `parts` parts, and of grad_output. False: too large.
  bool choose_memory(HopperWeightCopies& p, int parts, int y_boxes) const;
  // Blocks of tiles of channels, and the padded sums.
  void choose_blocks(HopperWeightCopies& p, int chunk) const;
  // Enough blocks for whole waves over the GPU, in splits that are short enough and fit into the workspace, when a
  // stage takes so many cycles. scattered: results without splits would leave as single elements.
  bool choose_splits(HopperWeightCopies& p, double stage, bool scattered) const;
  // Planes and boxes of each group of taps into the plan's tables. False: they do not hold so many, or so far ones.
  bool fill_boxes(HopperWeightCopies& p, const std::vector<const std::vector<WeightPlaneBox>*>& groups) const;

  double cycles(const HopperWeightCopies& p, double stage) const;
  double add_ms(const HopperWeightCopies& p) const;
  // The estimate, when a stage takes so many cycles and brings so many bytes.
  double estimate_ms(const HopperWeightCopies& p, double stage, double stage_bytes) const;
  // With all multiprocessors busy to the end.
  double least_ms(const HopperWeightCopies& p, double stage) const;
  int64_t partial_bytes(const HopperWeightCopies& p) const {
    return 4 * problem_.groups * axis_[0].kernel * axis_[1].kernel * p.padded_m * p.padded_n;
  }

  const Problem& problem_;
  const Device& device_;
  bool in_slices_;
  int64_t most_pixels_;
  AxisGeometry axis_[2];
  std::vector<WeightPlane> planes_[2];
  int64_t m_, n_;

 private:
  double memory_bytes(const HopperWeightCopies& p, double stage_bytes) const;
  // Of channels and taps.
  static int64_t block_tiles(const HopperWeightCopies& p) {
    return static_cast<int64_t>(p.tap_groups) * p.blocks_m * p.blocks_n * p.blocks_group;
  }
};

}  // namespace deconv
