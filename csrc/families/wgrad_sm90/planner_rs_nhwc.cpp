// Tiles, taps and splits of wgrad_rs_nhwc.cuh.
#include <sstream>

#include "families/wgrad_sm90/planner_tma_nhwc.h"

namespace deconv {
namespace {

constexpr const char* kName = "wgrad_sm90 family, tensor copies turned";
constexpr int kChannels = kRsNhwcChannels, kPixels = kRsNhwcPixels;
constexpr int kRows = kWgradTileM;  // of operand A
constexpr int kProducts = kPixels / 8;  // instructions of a stage and tap

// Cycles of a multiprocessor of an H200.
constexpr int kSimtCycles = 22;  // gathering operand A for an instruction
constexpr int kSimtBytes = 2048;  // of shared memory, to gather operand A for an instruction
constexpr int kSharedBytes = 128;  // of shared memory a cycle
constexpr int kLatency = 4700;  // of a stage: loaded, transposed, read
constexpr int kPlaneRowLatency = 6;  // more for each row of boxes, with several source phases

class Candidates : public WeightCopiesCandidates {
 public:
  static constexpr int kLeastPixels = kPixels, kMostPixels = kPixels;

  Candidates(const Problem& problem, const Device& device, bool in_slices)
      : WeightCopiesCandidates(problem, device, in_slices),
        parts_(problem.allow_tf32 ? 1 : 2),
        tap_fold_(n_ <= kRows / 4   ? 4
                  : n_ <= kRows / 2 ? 2
                                    : 1) {}

  // Taps in the order of their source phases, so that neighbours share boxes.
  template <class Visit>
  void for_arrangements(WgradTile tile, WgradRsNhwcPlan& p, Visit visit) const {
    std::vector<TapRun> taps;
    for (const std::vector<int>& h : planes_[0]) {
      for (const std::vector<int>& w : planes_[1]) {
        for (const int kh : h) {
          for (const int kw : w) taps.push_back({{kh, kw, 0}});
        }
      }
    }
    p.tile = tile;
    p.parts = parts_;
    p.tap_fold = tap_fold_;
    for (const bool spread : {false, true}) {
      if (spread && (tile.warpgroups - 1) * kRows >= n_) continue;
      p.spread = spread;
      p.block_taps = tile.taps * tap_fold_ * (spread ? 1 : tile.warpgroups);
      Arrangement all;
      for (size_t begin = 0; begin < taps.size(); begin += p.block_taps) {
        const size_t end = std::min(taps.size(), begin + p.block_taps);
        add_group(all, {taps.begin() + begin, taps.begin() + end});
      }
      if (all.groups.size() * p.block_taps <= kRsNhwcTaps) visit(all);
    }
  }

  // Estimates the plan for a tile of pixels, without the tables that `fill` writes. Nothing if it does not fit.
  std::optional<double> plan(WgradRsNhwcPlan& p, const Arrangement& all, Sm90Inner inner,
                             const std::array<int, 3>& pixels, double /*limit_ms*/) const {
    if (!choose_pixels(p, inner, pixels, all)) return std::nullopt;
    p.x_boxes = p.tile.n / kChannels;
    p.y_chunks = p.box_chunks = tap_fold_ > 1 ? 1 : kRows / kChannels * (p.spread ? p.tile.warpgroups : 1);
    if (!choose_memory(p, parts_, all.most_boxes * p.y_chunks)) return std::nullopt;
    choose_blocks(p, kChannels);
    const double stage = stage_cycles(p, all);
    if (!choose_splits(p, stage, problem_.w.stride[1] != 1)) return std::nullopt;
    return estimate_ms(p, stage);
  }

  // Writes the kernel's tables. False: too small.
  bool fill(WgradRsNhwcPlan& p, const Arrangement& all) const {
    if (!fill_boxes(p, all)) return false;
    for (int i = 0; i < kPixels / 8; ++i) p.octet_row[i] = row_of_pixel(p, 8 * i);
    p.taps.fill({0, -1});
    size_t i = 0;
    for (const TapGroup& group : all.groups) {
      for (const TapRun& run : group.runs) {
        const int tap = run[0].kh * axis_[1].kernel + run[0].kw;
        p.taps[i++] = {static_cast<int16_t>(row_of_tap(p, group, run[0])), static_cast<int16_t>(tap)};
      }
    }
    return true;
  }

 private:
  double stage_cycles(const WgradRsNhwcPlan& p, const Arrangement& all) const {
    // Warpgroups that have a tap, in the fullest group.
    const int64_t with_taps = ceil_div(all.groups[0].runs.size(), p.tile.taps * p.tap_fold);
    const int64_t busy = p.spread ? p.tile.warpgroups : with_taps;
    const double products = kProducts * busy * p.tile.taps;
    const double tensor = products * (parts_ == 2 ? kSplitProducts : 1) * (wgmma_cycles(p.tile.n) + kSimtCycles);
    const double read = products * ((parts_ == 2 ? 3 : 1) * p.tile.n * 32 + kSimtBytes);
    const double x_bytes = p.x_boxes * p.x_box_bytes;
    const double rows = y_rows(p, all.most_boxes);
    const double shared = (read + x_bytes * (2 + parts_) + rows * p.y_chunks * kSm90RowBytes) / kSharedBytes;
    const double flight = kLatency + (all.most_boxes > 1 ? kPlaneRowLatency * rows : 0);
    return overlapped({tensor, shared, copy_cycles(p, all.most_boxes * p.y_chunks), flight / (p.slots - 1)});
  }

  int parts_, tap_fold_;
};

}  // namespace

std::string describe(const WgradRsNhwcPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of " << plan.tile.taps * plan.tap_fold << " taps x "
       << kRows / plan.tap_fold << " output x " << plan.tile.n << " input channels, "
       << (plan.spread ? "output channels" : "taps") << " side by side, " << describe_pixels(plan)
       << (plan.parts == 2 ? ", three TF32 products" : "") << describe_slices(plan);
  return text.str();
}

std::optional<Plan> plan_wgrad_rs_nhwc(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered) {
  if (problem.dtype != DType::kFloat32) return refuse(considered, kName, "takes float32");
  const auto plan = [&](const auto& tiles) {
    return plan_weight_copies<Candidates, WgradRsNhwcPlan>(kName, problem, device, std::begin(tiles), std::size(tiles),
                                                           considered);
  };
  return problem.allow_tf32 ? plan(kRsNhwcTiles) : plan(kRsNhwcTilesSplit);
}

}  // namespace deconv
