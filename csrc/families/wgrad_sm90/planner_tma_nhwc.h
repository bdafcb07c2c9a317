// Shared by the planners of ss and rs_nhwc: source phases of grad_output and the boxes that load them, tiles of pixels,
// splits, slices of the images, the estimate.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/correlation.h"
#include "families/igemm_sm90/planner.h"
#include "families/wgrad_sm90/plan_tma_nhwc.h"
#include "families/wgrad_sm90/planner.h"
#include "lowerings/wgrad_im2col.h"

namespace deconv {

// A tap and a chunk of output channels: what one block of accumulators holds.
struct TapColumn {
  int kh, kw, chunk;
};
using TapRun = std::vector<TapColumn>;  // of one instruction

// 128 bytes of channels of one source phase of grad_output, and the shifts of the taps that read them.
struct PlaneBox {
  int plane_h, plane_w, chunk;
  int first_h, first_w, last_h, last_w;
};

// What a block computes, and the boxes of grad_output that it reads.
struct TapGroup {
  std::vector<TapRun> runs;
  std::vector<PlaneBox> boxes;
};

struct Arrangement {
  std::vector<TapGroup> groups;
  int range_h = 0, range_w = 0;  // largest difference of the shifts in a box
  int most_boxes = 0;  // of a group
};

// The images of a slice, and the workspace of the operands that kernels before rewrite.
struct WeightSlices {
  bool repack_x, repack_y, im2col;
  int64_t slice, count;  // images of a slice, slices; slice 0: one image is too large
  int64_t x_bytes, y_bytes;
  double before_ms;  // to rewrite a slice
};
WeightSlices weight_slices(const Problem& problem, bool im2col);
Problem first_images(Problem problem, int64_t count);

// Why TMA cannot load the problem's operands; empty if it can.
std::string weight_copies_refusal(const Problem& problem, const Device& device);

// Places the rewritten operands behind `sums` bytes of the workspace; returns the bytes of all.
int64_t place_slices(WgradTma& plan, const WeightSlices& slices, int64_t sums);
std::string describe_slices(const WgradTma& plan);
std::string describe_pixels(const WgradTma& plan);

class WeightCopiesCandidates {
 public:
  int64_t workspace_bytes(const WgradTma& p) const { return p.sums ? p.splits * partial_bytes(p) : 0; }

  // Visits tiles of `least` to `most` pixels for each innermost axis, which is the first of their extents.
  template <class Visit>
  void for_pixel_tiles(int least, int most, Visit visit) const {
    for (const Sm90Inner inner : {Sm90Inner::kWidth, Sm90Inner::kHeight, Sm90Inner::kBatch}) {
      const std::array<int64_t, 3> size = in_order<int64_t>(inner, problem_.axis[0].input, problem_.axis[1].input,
                                                            problem_.batch);
      bool any = false;
      for (int x = 8; x <= 128 && (x == 8 || x < 2 * round_up(size[0], 8)); x *= 2) {
        for (int y = 1; y <= 32 && (y == 1 || y < 2 * size[1]); y *= 2) {
          for (int z = 1; z <= 32 && (z == 1 || z < 2 * size[2]); z *= 2) {
            if (x * y * z < least || x * y * z > most) continue;
            visit(inner, std::array<int, 3>{x, y, z});
            any = true;
          }
        }
      }
      if (!any) visit(inner, std::array<int, 3>{least, 1, 1});
    }
  }

 protected:
  // in_slices: later slices add to the same sums.
  WeightCopiesCandidates(const Problem& problem, const Device& device, bool in_slices);

  template <class T>
  static std::array<T, 3> in_order(Sm90Inner inner, T h, T w, T n) {
    if (inner == Sm90Inner::kHeight) return {h, w, n};
    if (inner == Sm90Inner::kBatch) return {n, w, h};
    return {w, h, n};
  }
  // Row of a box, `at` pixels along each axis from its first, the innermost axis first.
  static int box_row(const WgradTma& p, const std::array<int, 3>& at) {
    return at[0] + p.halo[0] * (at[1] + p.halo[1] * at[2]);
  }
  // Row of a box that holds the tile's i-th pixel.
  static int row_of_pixel(const WgradTma& p, int i) {
    const int line = i / p.pixels[0];
    return box_row(p, {i % p.pixels[0], line % p.pixels[1], line / p.pixels[1]});
  }
  // Row at which a tap finds the tile's first pixel, in its group's boxes of plan.box_chunks chunks each.
  int row_of_tap(const WgradTma& p, const TapGroup& group, const TapColumn& column) const;

  // Adds a group with the boxes that its runs read.
  void add_group(Arrangement& all, std::vector<TapRun> runs) const;
  // Chooses halos and counts tiles. False: too large, or too many.
  bool choose_pixels(WgradTma& p, Sm90Inner inner, const std::array<int, 3>& pixels, const Arrangement& all) const;
  // Chooses the Pipeline's stages: p.x_boxes boxes of the input, each of `parts` parts, and y_boxes of grad_output.
  // False: too large.
  bool choose_memory(WgradTma& p, int parts, int y_boxes) const;
  // Blocks of tiles of channels, and the padded sums.
  void choose_blocks(WgradTma& p, int chunk) const;
  // scattered: without partial sums, results would be stored one by one.
  bool choose_splits(WgradTma& p, double stage, bool scattered) const;
  // Writes the plan's tables of source phases and boxes. False: too small, or shifts too large.
  bool fill_boxes(WgradTma& p, const Arrangement& all) const;

  // Rows of 128 bytes of grad_output that TMA writes for a stage; cycles of all rows.
  static double y_rows(const WgradTma& p, int boxes) { return 1.0 * boxes * p.halo[0] * p.halo[1] * p.halo[2]; }
  double copy_cycles(const WgradTma& p, int y_boxes) const;
  double estimate_ms(const WgradTma& p, double stage) const;
  // A lower bound: all multiprocessors busy to the end.
  double least_ms(const WgradTma& p, double stage) const;
  int64_t partial_bytes(const WgradTma& p) const {
    return 4 * problem_.groups * axis_[0].kernel * axis_[1].kernel * p.padded_m * p.padded_n;
  }

  const Problem& problem_;
  const Device& device_;
  bool in_slices_;
  AxisGeometry axis_[2];
  std::vector<std::vector<int>> planes_[2];  // taps of an axis that share a source phase, in order of their shifts
  int64_t m_, n_;

 private:
  // Tiles of channels x tap groups.
  static int64_t block_tiles(const WgradTma& p) {
    return int64_t{p.tap_groups} * p.blocks_m * p.blocks_n * p.blocks_group;
  }
};

// The best plan for `seen`, the problem as TMA sees it, over all tiles of the kernel, arrangements of taps and tiles of
// pixels.
template <class Candidates, class TilePlan, class Tile>
std::optional<Plan> plan_seen(const char* name, const Problem& seen, bool im2col, const Device& device,
                              const Tile* tiles, size_t count, std::vector<Candidate>* considered) {
  if (const std::string why = weight_copies_refusal(seen, device); !why.empty()) return refuse(considered, name, why);
  const WeightSlices slices = weight_slices(seen, im2col);
  if (slices.slice == 0) {
    return refuse(considered, name, "takes channels_last, or images of at most 128 MiB to rewrite so");
  }
  const Problem part = first_images(seen, slices.slice);
  const Candidates candidates(part, device, slices.count > 1);
  std::optional<Plan> best;
  TilePlan plan;
  for (const Tile* tile = tiles; tile != tiles + count; ++tile) {
    std::optional<TilePlan> of_tile;
    double of_tile_ms = 0;
    candidates.for_arrangements(*tile, plan, [&](const Arrangement& all) {
      candidates.for_pixel_tiles(
          Candidates::kLeastPixels, Candidates::kMostPixels, [&](Sm90Inner inner, const std::array<int, 3>& pixels) {
            const std::optional<double> ms = candidates.plan(plan, all, inner, pixels, of_tile ? of_tile_ms : 0);
            if (!ms || (of_tile && *ms >= of_tile_ms) || !candidates.fill(plan, all)) return;
            of_tile = plan;
            of_tile_ms = *ms;
          });
    });
    if (!of_tile) continue;
    // Every slice reads and writes the sums, which costs about as much as adding them.
    const double all_ms = (of_tile_ms + slices.before_ms) * slices.count;
    const int64_t bytes = place_slices(*of_tile, slices, candidates.workspace_bytes(*of_tile));
    consider_plan(best, "wgrad_sm90 family", *of_tile, bytes, all_ms, seen.dtype, considered);
  }
  if (!best) {
    return refuse(considered, name, "no tile fits: boxes of grad_output in shared memory, taps in the kernel's tables");
  }
  return best;
}

// The better of the plans for the problem itself and after im2col.
template <class Candidates, class TilePlan, class Tile>
std::optional<Plan> plan_weight_copies(const char* name, const Problem& problem, const Device& device,
                                       const Tile* tiles, size_t count, std::vector<Candidate>* considered) {
  std::optional<Plan> plan = plan_seen<Candidates, TilePlan>(name, problem, false, device, tiles, count, considered);
  if (!fits_weight_im2col(problem)) return plan;
  std::optional<Plan> by_im2col = plan_seen<Candidates, TilePlan>(name, weight_im2col_problem(problem), true, device,
                                                                  tiles, count, considered);
  return by_im2col && (!plan || by_im2col->estimate_ms < plan->estimate_ms) ? by_im2col : plan;
}

}  // namespace deconv
