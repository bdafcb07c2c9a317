// Tiles, taps and splits of the Hopper family's grad_weight of float32 by tensor copies
// (kernels/hopper/weight_turned.cuh).
#include <sstream>

#include "families/wgrad_sm90/planner_tma_nhwc.h"

namespace deconv {
namespace {

constexpr const char* kName = "wgrad_sm90 family, tensor copies turned";
constexpr int kChannels = kHopperTurnedChannels, kPixels = kHopperTurnedPixels;
constexpr int kProducts = kPixels / 8;         // of a stage, for each tap
constexpr int kRows = kHopperWeightTileM;      // of operand A
// Tensor cores cut their running sum off instead of rounding it; a split's sum stays short enough for that not to show
// beside the rounding of the operands. Three products carry their sums out of the tensor cores at every stage.
constexpr int64_t kMostPixels = 1 << 15, kMostPixelsSplit = int64_t{1} << 40;

// Cycles of a multiprocessor, fitted to 1,160 timings of 22 layers on an H200.
constexpr double kColumn = 1.08;         // of an instruction, for each 2 of wgmma's N
constexpr double kProductCost = 22;      // of an instruction besides: its operand A lies in registers
constexpr double kAloneCost = 36;        // more, where it is short and no other one follows before the next gather
constexpr double kSplitShare = 4.7;      // three TF32 products, added up outside of the tensor cores
constexpr double kGatheredBytes = 2048;  // of operand A, for an instruction
constexpr double kSharedBytes = 135;     // of shared memory, in a cycle
constexpr double kLatency = 4700;        // of a stage: copied, turned, read
constexpr double kShortRow = 10;         // of a copy's row where the tensor has fewer channels than a row
constexpr double kPlaneLatency = 0.048;  // more for each byte of a stage that brings several planes, a row apart

// Which taps the groups of a plan take: neighbours of the same plane of grad_output, or of the kernel.
enum class TapOrder { kPlanes, kKernel };

struct Arrangement {
  struct Tap {
    int kh, kw;
  };
  std::vector<Tap> taps;  // in order
  std::vector<std::vector<WeightPlaneBox>> groups;
  WeightReach reach;
};

class Candidates : public WeightCopiesCandidates {
 public:
  // in_slices: results of other images add to the same sums.
  Candidates(const Problem& problem, const Device& device, bool in_slices)
      : WeightCopiesCandidates(problem, device, in_slices, problem.allow_tf32 ? kMostPixels : kMostPixelsSplit),
        parts_(problem.allow_tf32 ? 1 : 2),
        tap_fold_(n_ <= kRows / 4   ? 4
                  : n_ <= kRows / 2 ? 2
                                    : 1) {}

  int block_taps(HopperWeightTile tile, bool spread) const {
    return tile.taps * tap_fold_ * (spread ? 1 : tile.warpgroups);
  }

  Arrangement arrange(int block_taps, TapOrder order) const {
    Arrangement all;
    if (order == TapOrder::kPlanes) {
      for (const WeightPlane& h : planes_[0]) {
        for (const WeightPlane& w : planes_[1]) {
          for (const int kh : h.taps) {
            for (const int kw : w.taps) all.taps.push_back({kh, kw});
          }
        }
      }
    } else {
      for (int kh = 0; kh < axis_[0].kernel; ++kh) {
        for (int kw = 0; kw < axis_[1].kernel; ++kw) all.taps.push_back({kh, kw});
      }
    }
    for (size_t i = 0; i < all.taps.size(); ++i) {
      if (i % block_taps == 0) all.groups.emplace_back();
      reach(all.groups.back(), all.taps[i].kh, all.taps[i].kw, 0);
    }
    for (const std::vector<WeightPlaneBox>& boxes : all.groups) all.reach.extend(boxes);
    return all;
  }

  // The plan of one tile of pixels, given from the innermost axis on, but for the tables that `fill` writes. False: it
  // does not fit.
  bool plan(HopperWeightTurnedPlan& p, HopperWeightTile tile, bool spread, const Arrangement& all, HopperInner inner,
            const std::array<int, 3>& pixels) const {
    if (spread && (tile.warpgroups - 1) * kRows >= n_) return false;
    p.tile = tile;
    p.parts = parts_;
    p.spread = spread;
    p.tap_fold = tap_fold_;
    p.block_taps = block_taps(tile, spread);
    if (!choose_pixels(p, inner, pixels, all.reach)) return false;
    p.x_boxes = tile.n / kChannels;
    p.y_chunks = p.box_chunks = tap_fold_ > 1 ? 1 : kRows / kChannels * (spread ? tile.warpgroups : 1);
    p.tap_groups = static_cast<int>(all.groups.size());
    if (p.tap_groups * p.block_taps > kHopperTurnedTaps) return false;
    if (!choose_memory(p, parts_, all.reach.most_boxes * p.y_chunks)) return false;
    choose_blocks(p, kChannels);
    return choose_splits(p, stage_cycles(p, all), problem_.w.stride[1] != 1);
  }

  double estimate_ms(const HopperWeightTurnedPlan& p, const Arrangement& all) const {
    return WeightCopiesCandidates::estimate_ms(p, stage_cycles(p, all), stage_bytes(p, all));
  }

  // The tables of the kernel. False: they do not hold so many.
  bool fill(HopperWeightTurnedPlan& p, const Arrangement& all) const {
    std::vector<const std::vector<WeightPlaneBox>*> groups;
    for (const std::vector<WeightPlaneBox>& boxes : all.groups) groups.push_back(&boxes);
    if (!fill_boxes(p, groups)) return false;
    const std::array<int, 3> row = box_rows(p);
    for (int i = 0; i < kPixels / 8; ++i) {
      const int line = 8 * i / p.pixels[0], image = line / p.pixels[1];
      p.octet_row[i] = static_cast<int16_t>(8 * i % p.pixels[0] * row[0] + line % p.pixels[1] * row[1] +
                                            image * row[2]);
    }
    p.taps.fill({0, -1});
    for (size_t i = 0; i < all.taps.size(); ++i) {
      const auto [kh, kw] = all.taps[i];
      const int row_of = row_of_tap(p, all.groups[i / p.block_taps], kh, kw, 0);
      p.taps[i] = {static_cast<int16_t>(row_of), static_cast<int16_t>(kh * axis_[1].kernel + kw)};
    }
    return true;
  }

  // Tiles of pixels to consider, from the innermost axis on.
  std::vector<std::array<int, 3>> pixel_tiles(HopperInner inner) const {
    const std::array<int64_t, 3> of_all = sizes(inner);
    std::vector<std::array<int, 3>> tiles;
    for (int x = 8; x <= kPixels; x *= 2) {
      if (x > 8 && x >= 2 * round_up(of_all[0], 8)) break;
      for (int y = 1; x * y <= kPixels; y *= 2) {
        const int z = kPixels / (x * y);
        if (y >= 2 * of_all[1] || (z >= 2 * of_all[2] && z > 1)) continue;
        tiles.push_back({x, y, z});
      }
    }
    if (tiles.empty()) tiles.push_back({kPixels, 1, 1});
    return tiles;
  }

 private:
  double x_bytes(const HopperWeightTurnedPlan& p) const { return static_cast<double>(p.x_boxes) * p.x_box_bytes; }
  double y_bytes(const HopperWeightTurnedPlan& p, const Arrangement& all) const {
    return static_cast<double>(all.reach.most_boxes) * p.y_chunks * p.halo[0] * p.halo[1] * p.halo[2] * kHopperRowBytes;
  }
  double stage_bytes(const HopperWeightTurnedPlan& p, const Arrangement& all) const {
    const double of_x = std::min(1.0, static_cast<double>(m_) / p.tile.n);
    const double of_y = std::min(1.0, static_cast<double>(n_) / (p.y_chunks * kChannels));
    return x_bytes(p) * of_x + y_bytes(p, all) * of_y;
  }

  // That have a tap, in the fullest group.
  static int busy_warpgroups(const HopperWeightTurnedPlan& p, const Arrangement& all) {
    if (p.spread) return p.tile.warpgroups;
    const int64_t busy = ceil_div(static_cast<int64_t>(all.taps.size()), p.tile.taps * p.tap_fold);
    return static_cast<int>(std::min<int64_t>(busy, p.tile.warpgroups));
  }

  double stage_cycles(const HopperWeightTurnedPlan& p, const Arrangement& all) const {
    const double products = static_cast<double>(kProducts) * busy_warpgroups(p, all) * p.tile.taps;
    const double alone = parts_ == 1 && p.tile.taps == 1 && p.tile.n <= 128 ? kAloneCost : 0;
    const double product = kColumn * p.tile.n / 2 + kProductCost + alone;
    const double tensor = products * (parts_ == 2 ? kSplitShare : 1) * product;
    const double read = products * ((parts_ == 2 ? 3 : 1) * p.tile.n * 32 + kGatheredBytes);
    const double turned = x_bytes(p) * (1 + parts_);
    const double shared = (read + turned + x_bytes(p) + y_bytes(p, all)) / kSharedBytes;
    const double apart = all.reach.most_boxes > 1 ? kPlaneLatency * y_bytes(p, all) / p.y_chunks : 0;
    const double rows = static_cast<double>(all.reach.most_boxes) * p.halo[0] * p.halo[1] * p.halo[2];
    const double copies = n_ * problem_.groups < kChannels ? rows * kShortRow : 0;
    return std::max({tensor, shared, copies, (kLatency + apart) / (p.slots - 1)});
  }

  int parts_, tap_fold_;
};

// seen: the problem as the copies see it, with or without im2col.
std::optional<Plan> plan_seen(const Problem& seen, bool im2col, const Device& device,
                              std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) { return refuse_tile(considered, kName, why); };
  if (const std::string why = weight_copies_refusal(seen, device); !why.empty()) return refuse(why);
  if (seen.axis[0].kernel * seen.axis[1].kernel > kHopperTurnedTaps) return refuse("takes up to 128 taps");
  const WeightSlices slices = weight_slices(seen, im2col);
  if (slices.slice == 0) return refuse("takes channels_last, or images of at most 128 MiB to rewrite so");
  const Problem part = first_images(seen, slices.slice);
  const Candidates candidates(part, device, slices.count > 1);
  std::optional<Plan> best;
  HopperWeightTurnedPlan plan;
  const auto consider = [&](HopperWeightTile tile) {
    std::optional<HopperWeightTurnedPlan> of_tile;
    double of_tile_ms = 0;
    for (const bool spread : {false, true}) {
      for (const TapOrder order : {TapOrder::kPlanes, TapOrder::kKernel}) {
        const Arrangement all = candidates.arrange(candidates.block_taps(tile, spread), order);
        for (const HopperInner inner : {HopperInner::kWidth, HopperInner::kHeight, HopperInner::kBatch}) {
          for (const std::array<int, 3>& pixels : candidates.pixel_tiles(inner)) {
            if (!candidates.plan(plan, tile, spread, all, inner, pixels)) continue;
            const double ms = candidates.estimate_ms(plan, all);
            if ((of_tile && ms >= of_tile_ms) || !candidates.fill(plan, all)) continue;
            of_tile = plan;
            of_tile_ms = ms;
          }
        }
      }
    }
    if (!of_tile) return;
    const int64_t sums = candidates.workspace_bytes(*of_tile);
    consider_tile(best, *of_tile, of_tile_ms, sums, slices, seen.dtype, considered);
  };
  if (seen.allow_tf32) {
    for (const HopperWeightTile tile : kHopperTurnedTiles) consider(tile);
  } else {
    for (const HopperWeightTile tile : kHopperTurnedTilesSplit) consider(tile);
  }
  if (!best) return refuse("no tile fits: boxes of grad_output in shared memory, taps in the kernel's tables");
  return best;
}

}  // namespace

std::string describe(const HopperWeightTurnedPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of " << plan.tile.taps * plan.tap_fold << " taps x "
       << kRows / plan.tap_fold << " output x " << plan.tile.n << " input channels, "
       << (plan.spread ? "output channels" : "taps") << " side by side, " << describe_pixels(plan)
       << (plan.parts == 2 ? ", three TF32 products" : "") << describe_slices(plan);
  return text.str();
}

std::optional<Plan> plan_hopper_weight_turned(const Problem& problem, const Device& device,
                                              std::vector<Candidate>* considered) {
  if (problem.dtype != DType::kFloat32) return refuse_tile(considered, kName, "takes float32");
  return with_or_without_im2col(
      problem, [&](const Problem& seen, bool im2col) { return plan_seen(seen, im2col, device, considered); });
}

}  // namespace deconv
