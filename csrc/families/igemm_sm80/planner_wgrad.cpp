// Tiles, steps and splits of the mma family's grad_weight (kernels/mma/weight.cuh).
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "core/correlation.h"
#include "families/igemm_sm80/planner.h"
#include "lowerings/repack.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kMostTaps = 12;  // of a group along one axis
constexpr int kMostChunks = 12;
constexpr int kStepPixels[] = {32, 64, 128};  // at most
constexpr int kLeastWidth = 4;  // of a tile that could be wider
constexpr int64_t kMostCoordinate = 1 << 30;
constexpr int kReservedShared = 1024;  // of a block, for the system
constexpr int64_t kAlignment = 256;  // of the parts of the workspace
// As in the Hopper family: tensor cores cut their running sum off, so a split's sum stays short.
constexpr int64_t kMostPixels16Bit = 1 << 16, kMostPixelsTf32 = 1 << 15;

// Cycles of a multiprocessor: the conv kernels' constants (plan_mma.cpp) where the work is alike, else estimated.
constexpr double kShareOfPeak = 0.4, kShareOfWarp = 0.03;  // of the tensor cores' rate: 0.64 with 8 warps
constexpr double kMostShare = 0.76;
constexpr double kPieceCost[3] = {0.75, 1.5, 7.0};  // of 16 bytes: at once; float32; registers
constexpr double kStepCost = 150, kBlockCost = 4000, kSumCost = 0.15;  // kSumCost: of a result in its block
constexpr double kStepLatency = 1000;  // of a step at least, for what is on its way
constexpr double kSplitShare = 3.3;  // three TF32 products, their operands split on the way
constexpr double kLaunchMs = 6e-3, kAddMs = 3e-3, kAddMsPerByte = 0.35e-9;

struct Facts {
  int element;
  bool split;
  bool x_vector, y_vector;  // packs of 16 bytes along the channels
};

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  if (const std::string why = in_channels_refusal(problem); !why.empty()) return why;
  for (const Axis& axis : problem.axis) {
    if (2 * axis.input * axis.stride > kMostCoordinate) return "takes coordinates below 2^30";
  }
  return tensor_core_refusal(problem, 1, kMmaMaxKernel, kMmaMaxStride);
}

// Sizes of groups of taps along one axis: all, a half, a third, those that share lines, one; the largest first.
std::vector<int> tap_groups(const Axis& axis) {
  const int64_t kernel = axis.kernel;
  const int common = gcd(static_cast<int>(axis.stride), static_cast<int>(axis.dilation));
  std::vector<int> sizes;
  for (const int64_t size :
       {kernel, ceil_div(kernel, 2), ceil_div(kernel, 3), ceil_div(kernel, axis.stride / common), int64_t{1}}) {
    if (size <= kMostTaps) sizes.push_back(static_cast<int>(size));
  }
  std::sort(sizes.rbegin(), sizes.rend());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device, bool repack)
      : problem_(problem), device_(device), h_(problem.axis[0]), w_(problem.axis[1]) {
    const int64_t element = element_size(problem.dtype);
    const auto vector = [&](const Tensor4& tensor, int64_t channels) {
      return packs_along_channels(tensor, channels, 16 / element);
    };
    facts_ = {static_cast<int>(element), problem.dtype == DType::kFloat32 && !problem.allow_tf32,
              vector(problem.x, problem.in_channels_per_group()), vector(problem.y, problem.out_channels_per_group())};
    if (repack) {
      repack_x_ = !facts_.x_vector;
      repack_y_ = !facts_.y_vector;
      facts_.x_vector = facts_.y_vector = true;
    }
  }

  // Whether an operand is rewritten at all, and what is has room.
  bool has_repack() const { return repack_x_ || repack_y_; }
  bool fits_repack() const { return x_bytes() + y_bytes() <= kRepackLimit; }

  // Everything but the splits, for tiles and taps that suit the problem.
  template <class Visit>
  void for_all(Visit visit) const {
    const int64_t channels_m = problem_.in_channels_per_group();
    const int chunks = static_cast<int>(ceil_div(problem_.out_channels_per_group(), 16));
    const auto consider = [&](MmaWeightTile tile) {
      // The narrow tile where the wide one would leave half of its rows empty.
      const int64_t wide = 64;
      if ((tile.rows == 2) != (round_up(channels_m, wide / 2) < round_up(channels_m, wide))) {
        if (tile.rows == 2 || channels_m <= wide / 2) return;
      }
      for (const int warps_m : {1, 2, 4}) {
        if (warps_m > 1 && tile.channels() * warps_m / 2 >= channels_m) break;
        int last_chunks = 0;
        for (const int most : {kMostChunks, 8, 4, 2, 1}) {
          const int chunks_n = static_cast<int>(ceil_div(chunks, ceil_div(chunks, most)));
          if (chunks_n == last_chunks) continue;
          last_chunks = chunks_n;
          for (const int taps_h : tap_groups(h_)) {
            for (const int taps_w : tap_groups(w_)) {
              const int units = taps_h * taps_w * chunks_n;
              const int warps_n = static_cast<int>(ceil_div(units, tile.units));
              if (warps_m * warps_n > mma_weight_warps(tile, facts_.split)) continue;
              MmaWeightPlan p;
              p.tile = tile;
              p.split = facts_.split;
              p.warps_m = warps_m;
              p.warps_n = warps_n;
              p.chunks_n = chunks_n;
              p.taps_h = taps_h;
              p.taps_w = taps_w;
              for (const int pixels : kStepPixels) with_pixels(p, pixels, visit);
            }
          }
        }
      }
    };
    if (facts_.split) {
      for (const MmaWeightTile tile : kMmaWeightTilesSplit) consider(tile);
    } else {
      for (const MmaWeightTile tile : kMmaWeightTiles) consider(tile);
    }
  }

  // As many splits as are estimated best; nothing if their sums need more than the workspace.
  std::optional<Plan> with_splits(const MmaWeightPlan& p) const {
    const int64_t tiles = p.blocks;
    const int64_t most_pixels = facts_.element == 2 ? kMostPixels16Bit : kMostPixelsTf32;
    const int64_t most_steps = p.split ? p.steps : std::max<int64_t>(1, most_pixels / p.step_pixels);
    const int64_t least = ceil_div(p.steps, most_steps);
    const int64_t most = std::min(p.steps, std::max<int64_t>(1, kWorkspaceLimit / partial_bytes(p)));
    if (least > most || tiles * most > INT32_MAX / 16) return std::nullopt;
    MmaWeightPlan best;
    double best_ms = std::numeric_limits<double>::infinity();
    const int64_t at_once = static_cast<int64_t>(device_.multiprocessors) * resident(p);
    int64_t last = 0;
    for (const int64_t blocks : {int64_t{device_.multiprocessors}, at_once, 2 * at_once, 3 * at_once, 4 * at_once}) {
      MmaWeightPlan q = p;
      q.steps_per_split = ceil_div(p.steps, std::clamp(blocks / tiles, least, most));
      q.splits = static_cast<int>(ceil_div(p.steps, q.steps_per_split));
      if (q.splits == last) continue;
      last = q.splits;
      q.blocks = tiles * q.splits;
      const double ms = estimate_ms(q);
      if (ms >= best_ms) continue;
      best = q;
      best_ms = ms;
    }
    const int64_t sums = best.splits > 1 ? best.splits * partial_bytes(best) : 0;
    best.repack_x = repack_x_;
    best.repack_y = repack_y_;
    best.repacked_x_at = round_up(sums, kAlignment);
    best.repacked_y_at = round_up(best.repacked_x_at + x_bytes(), kAlignment);
    return Plan{tile_plan(best), has_repack() ? best.repacked_y_at + y_bytes() : sums, best_ms};
  }

 private:
  int64_t x_bytes() const { return repack_x_ ? repacked_bytes(problem_.x, problem_.groups, problem_.dtype) : 0; }
  int64_t y_bytes() const { return repack_y_ ? repacked_bytes(problem_.y, problem_.groups, problem_.dtype) : 0; }

  // The shape of at most so many pixels that stages least.
  template <class Visit>
  void with_pixels(const MmaWeightPlan& plan, int most, Visit visit) const {
    const auto even = [](int64_t extent, int64_t most) {
      return static_cast<int>(ceil_div(extent, ceil_div(extent, std::min(extent, most))));
    };
    std::optional<MmaWeightPlan> best;
    double best_staged = 0;
    int last = 0;
    for (int width = most; width >= kLeastWidth; width /= 2) {
      MmaWeightPlan p = plan;
      p.pixels.w = even(w_.input, width);
      if (p.pixels.w == last) continue;
      last = p.pixels.w;
      p.pixels.h = even(h_.input, most / p.pixels.w);
      p.pixels.n = p.pixels.h < h_.input ? 1 : even(problem_.batch, most / (p.pixels.w * p.pixels.h));
      if (!choose_memory(p)) continue;
      const double pixels = static_cast<double>(p.pixels.n) * p.pixels.h * p.pixels.w;
      const double staged = (x_cost(p) + y_cost(p) + products(p)) / pixels;
      if (best && staged >= best_staged) continue;
      best = p;
      best_staged = staged;
    }
    if (!best) return;
    MmaWeightPlan& p = *best;
    p.tiles = {static_cast<int>(ceil_div(problem_.batch, p.pixels.n)), static_cast<int>(ceil_div(h_.input, p.pixels.h)),
               static_cast<int>(ceil_div(w_.input, p.pixels.w))};
    p.groups_h = static_cast<int>(ceil_div(h_.kernel, p.taps_h));
    p.groups_w = static_cast<int>(ceil_div(w_.kernel, p.taps_w));
    p.blocks_m = static_cast<int>(ceil_div(problem_.in_channels_per_group(), p.channels_m()));
    p.blocks_n = static_cast<int>(ceil_div(problem_.out_channels_per_group(), p.channels_n()));
    const double steps = static_cast<double>(p.tiles.n) * p.tiles.h * p.tiles.w;
    const double blocks = static_cast<double>(p.blocks_m) * p.blocks_n * p.groups_h * p.groups_w *
                          static_cast<double>(problem_.groups);
    if (steps > (1 << 30) || blocks > INT32_MAX / 16) return;
    p.steps = static_cast<int64_t>(steps);
    p.blocks = static_cast<int64_t>(blocks);
    visit(p);
  }

  bool choose_memory(MmaWeightPlan& p) const {
    std::array<MmaWeightTap, kMmaMaxKernel> taps;
    const auto lines = [&](const Axis& axis, int most, int pixels) -> int64_t {
      return mma_weight_taps(static_cast<int>(axis.kernel), static_cast<int>(axis.stride),
                             static_cast<int>(axis.padding), static_cast<int>(axis.dilation), most, pixels,
                             taps.data());
    };
    const int64_t pixels = static_cast<int64_t>(p.pixels.n) * p.pixels.h * p.pixels.w;
    const int64_t rows = p.pixels.n * lines(h_, p.taps_h, p.pixels.h) * lines(w_, p.taps_w, p.pixels.w);
    // Eight elements more than the channels: an odd number of 16 (float32: 32) bytes, so neighbouring pixels begin in
    // different banks.
    p.x_pitch = (p.channels_m() + 8) * facts_.element;
    p.y_pitch = (p.channels_n() + 8) * facts_.element;
    if (rows * p.y_pitch > device_.shared_bytes_per_block) return false;
    p.y_rows = static_cast<int>(rows);
    p.step_pixels = static_cast<int>(round_up(pixels, 32 / facts_.element));
    p.y_at = p.step_pixels * p.x_pitch;
    p.slot_bytes = p.y_at + p.y_rows * p.y_pitch;
    p.x_places_at = kMmaWeightSlots * p.slot_bytes;
    p.y_places_at = p.x_places_at + p.step_pixels * kMmaPlaceBytes;
    p.rows_at = p.y_places_at + p.y_rows * kMmaPlaceBytes;
    p.shared_bytes = p.rows_at + 4 * p.step_pixels;
    return p.shared_bytes <= device_.shared_bytes_per_block;
  }

  // Blocks of a multiprocessor.
  int64_t resident(const MmaWeightPlan& p) const {
    return std::max(1, std::min(mma_weight_warps(p.tile, p.split) / p.warps(),
                                device_.shared_bytes_per_block / (p.shared_bytes + kReservedShared)));
  }

  int64_t partial_bytes(const MmaWeightPlan& p) const {
    return 4 * problem_.groups * h_.kernel * w_.kernel * p.blocks_m * p.channels_m() * p.blocks_n * p.channels_n();
  }

  // Cycles of a step: to stage the operands, to multiply.
  double piece_cost(bool vector) const { return kPieceCost[vector ? 0 : facts_.element == 4 ? 1 : 2]; }
  double x_cost(const MmaWeightPlan& p) const {
    return p.step_pixels * p.channels_m() * facts_.element / 16.0 * piece_cost(facts_.x_vector);
  }
  double y_cost(const MmaWeightPlan& p) const {
    return p.y_rows * p.channels_n() * facts_.element / 16.0 * piece_cost(facts_.y_vector);
  }
  double products(const MmaWeightPlan& p) const {
    const double sums = static_cast<double>(p.warps()) * p.tile.channels() * 16 * p.tile.units;
    return 2 * sums * p.step_pixels * facts_.element / 2 / mma_tensor_rate(device_.capability) *
           (p.split ? kSplitShare : 1);
  }

  double estimate_ms(const MmaWeightPlan& p) const {
    const double blocks = static_cast<double>(ceil_div(p.blocks, device_.multiprocessors));
    const double together = std::min(blocks, static_cast<double>(resident(p)));
    const double warps = together * p.warps();
    const double share = std::min(kMostShare, kShareOfPeak + kShareOfWarp * warps);
    const double uneven = std::ceil(warps / 4) * 4 / warps;  // warps of the four schedulers
    const double work = uneven * products(p) / share + x_cost(p) + y_cost(p) + kStepCost;
    const double step = std::max(work, kStepLatency / together);
    const double sums = static_cast<double>(p.warps()) * p.tile.channels() * 16 * p.tile.units;
    const double cycles = blocks * (static_cast<double>(p.steps_per_split) * step + kBlockCost + kSumCost * sums);
    const double memory = static_cast<double>(problem_.bytes()) / device_.bandwidth;
    const double added = p.splits > 1 ? kAddMs + kAddMsPerByte * static_cast<double>(p.splits * partial_bytes(p)) : 0;
    const double before = repack_operands_ms(problem_, repack_x_, repack_y_, x_bytes(), y_bytes());
    return 1e3 * std::max(cycles / kClock, memory) + kLaunchMs + added + before;
  }

  const Problem& problem_;
  const Device& device_;
  const Axis &h_, &w_;
  Facts facts_;
  bool repack_x_ = false, repack_y_ = false;
};

}  // namespace

std::string describe(const MmaWeightPlan& plan, DType) {
  std::ostringstream text;
  text << plan.taps_h << 'x' << plan.taps_w << " taps x " << plan.channels_m() << " input x " << plan.channels_n()
       << " output channels, " << plan.warps_m << 'x' << plan.warps_n << " warps of " << plan.tile.channels()
       << " channels x " << plan.tile.units << " units, " << plan.pixels.n << 'x' << plan.pixels.h << 'x'
       << plan.pixels.w << " pixels a step" << (plan.repack_x ? ", input repacked" : "")
       << (plan.repack_y ? ", grad_output repacked" : "") << (plan.split ? ", three TF32 products" : "");
  return text.str();
}

std::optional<Plan> plan_mma_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty()) {
    if (considered) considered->push_back({"igemm_sm80 family", 0, why});
    return std::nullopt;
  }
  std::optional<Plan> best;
  for (const bool repack : {false, true}) {
    const Candidates candidates(problem, device, repack);
    if (repack && (!candidates.has_repack() || !candidates.fits_repack())) break;
    candidates.for_all([&](const MmaWeightPlan& p) {
      const std::optional<Plan> plan = candidates.with_splits(p);
      if (!plan) return;
      consider_plan(best, "igemm_sm80 family", *plan->get_if<MmaWeightPlan>(), plan->workspace_bytes, plan->estimate_ms,
                    problem.dtype, considered);
    });
  }
  if (!best && considered) {
    considered->push_back({"igemm_sm80 family", 0, "no tile fits: pixels in shared memory, sums in their bound"});
  }
  return best;
}

}  // namespace deconv
