// Tiles, steps and splits of wgrad.cuh.
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "core/correlation.h"
#include "families/igemm_sm80/planner.h"
#include "lowerings/repack.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/split_k.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kMostTaps = 12;  // of a group along one axis
constexpr int kMostChunks = 12;
constexpr int kStepPixels[] = {32, 64, 128};  // at most
constexpr int kLeastWidth = 4;  // columns of a tile that could be wider
constexpr int64_t kMostCoordinate = 1 << 30;

// Cycles of a multiprocessor of an H200.
constexpr double kShareOfPeak = 0.4, kShareOfWarp = 0.03, kMostShare = 0.76;  // of mma.sync's rate, by resident warps
constexpr int kPieceCost[3] = {1, 2, 7};  // staging 16 bytes: at once; float32; through registers
constexpr int kStepCost = 150, kBlockCost = 4000;
constexpr int kSplitProducts = 3;  // tf32x3
constexpr double kLaunchMs = 6e-3;

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  if (const std::string why = in_channels_refusal(problem); !why.empty()) return why;
  for (const Axis& axis : problem.axis) {
    if (2 * axis.input * axis.stride > kMostCoordinate) return "takes coordinates below 2^30";
  }
  return tensor_core_refusal(problem, 1, kSm80MaxKernel, kSm80MaxStride);
}

// Sizes of tap groups along one axis: all, a half, a third, those that share lines, one; the largest first.
std::vector<int> tap_groups(const Axis& axis) {
  const int64_t kernel = axis.kernel, sharing = ceil_div(kernel, axis.stride / gcd(axis.stride, axis.dilation));
  std::vector<int> sizes;
  for (const int64_t size : {kernel, ceil_div(kernel, 2), ceil_div(kernel, 3), sharing, int64_t{1}}) {
    if (size <= kMostTaps) sizes.push_back(size);
  }
  std::sort(sizes.rbegin(), sizes.rend());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

class Candidates {
 public:
  // repack: kernels before rewrite operands that are not in packs of 16 bytes of channels.
  Candidates(const Problem& problem, const Device& device, bool repack)
      : problem_(problem),
        device_(device),
        h_(problem.axis[0]),
        w_(problem.axis[1]),
        channels_m_(problem.in_channels_per_group()),
        channels_n_(problem.out_channels_per_group()),
        element_(element_size(problem.dtype)),
        split_(problem.dtype == DType::kFloat32 && !problem.allow_tf32) {
    const bool x = packs_along_channels(problem.x, channels_m_, 16 / element_);
    const bool y = packs_along_channels(problem.y, channels_n_, 16 / element_);
    repack_x_ = repack && !x;
    repack_y_ = repack && !y;
    x_vector_ = repack || x;
    y_vector_ = repack || y;
  }

  // True if an operand is rewritten and fits.
  bool can_repack() const { return (repack_x_ || repack_y_) && x_bytes() + y_bytes() <= kRepackLimit; }

  // Visits the plans for all tiles and tap groups that suit the problem, without splits.
  template <class Visit>
  void for_all(Visit visit) const {
    const int chunks = ceil_div(channels_n_, 16);
    const auto consider = [&](WgradSm80Tile tile) {
      // The narrow tile only where the wide one would leave half of its rows empty.
      const bool is_narrow = tile.rows == 2, half_empty = round_up(channels_m_, 32) < round_up(channels_m_, 64);
      if (is_narrow != half_empty && (is_narrow || channels_m_ <= 32)) return;
      for (const int warps_m : {1, 2, 4}) {
        if (warps_m > 1 && tile.channels() * warps_m / 2 >= channels_m_) break;
        int last_chunks = 0;
        for (const int most : {kMostChunks, 8, 4, 2, 1}) {
          const int chunks_n = even_part(chunks, most);
          if (chunks_n == last_chunks) continue;
          last_chunks = chunks_n;
          for (const int taps_h : tap_groups(h_)) {
            for (const int taps_w : tap_groups(w_)) {
              WgradSm80Plan p;
              p.tile = tile;
              p.split = split_;
              p.warps_m = warps_m;
              p.warps_n = ceil_div(taps_h * taps_w * chunks_n, tile.units);
              p.chunks_n = chunks_n;
              p.taps_h = taps_h;
              p.taps_w = taps_w;
              if (p.warps() > wgrad_sm80_warps(tile, split_)) continue;
              for (const int pixels : kStepPixels) with_pixels(p, pixels, visit);
            }
          }
        }
      }
    };
    if (split_) {
      for (const WgradSm80Tile tile : kWgradSm80TilesSplit) consider(tile);
    } else {
      for (const WgradSm80Tile tile : kWgradSm80Tiles) consider(tile);
    }
  }

  // Chooses the splits with the lowest estimate. False: their sums exceed the workspace.
  bool choose_splits(WgradSm80Plan& p) const {
    const int64_t most_steps = std::max<int64_t>(1, most_split_pixels(problem_) / p.step_pixels);
    const SplitLimits limits{p.blocks, p.steps, most_splits(partial_bytes(p)), most_steps};
    const auto set = [&](const SplitK& split) {
      p.steps_per_split = split.steps_per_split;
      p.splits = split.splits;
      p.blocks = limits.tiles * p.splits;
      return estimate_ms(p);
    };
    const std::optional<SplitK> split = deconv::choose_splits(limits, device_.multiprocessors * resident(p), 4, set);
    if (split) set(*split);
    p.repack_x = repack_x_;
    p.repack_y = repack_y_;
    p.repacked_x_at = round_up(sums_bytes(p), kWorkspaceRoom);
    p.repacked_y_at = round_up(p.repacked_x_at + x_bytes(), kWorkspaceRoom);
    return split.has_value();
  }

  int64_t workspace_bytes(const WgradSm80Plan& p) const {
    return p.repack_x || p.repack_y ? p.repacked_y_at + y_bytes() : sums_bytes(p);
  }

  double estimate_ms(const WgradSm80Plan& p) const {
    const double blocks = ceil_div(p.blocks, device_.multiprocessors);
    const double warps = std::min<double>(blocks, resident(p)) * p.warps();
    const double share = std::min(kMostShare, kShareOfPeak + kShareOfWarp * warps);
    const double uneven = std::ceil(warps / 4) * 4 / warps;  // warps of the busiest scheduler, of four
    const double step = uneven * products(p) / share + staging(p) + kStepCost;
    const double cycles = blocks * (p.steps_per_split * step + kBlockCost);
    return 1e3 * std::max(cycles / kClock, problem_.bytes() / device_.bandwidth) + kLaunchMs +
           add_splits_ms(sums_bytes(p)) + repack_operands_ms(problem_, repack_x_, repack_y_, x_bytes(), y_bytes());
  }

 private:
  int64_t x_bytes() const { return repack_x_ ? repacked_bytes(problem_.x, problem_.groups, problem_.dtype) : 0; }
  int64_t y_bytes() const { return repack_y_ ? repacked_bytes(problem_.y, problem_.groups, problem_.dtype) : 0; }

  // Visits the shape of at most `most` pixels with the lowest cost a pixel.
  template <class Visit>
  void with_pixels(const WgradSm80Plan& plan, int most, Visit visit) const {
    std::optional<WgradSm80Plan> best;
    double best_cost = 0;
    int last = 0;
    for (int width = most; width >= kLeastWidth; width /= 2) {
      WgradSm80Plan p = plan;
      p.pixels.w = even_part(w_.input, width);
      if (p.pixels.w == last) continue;
      last = p.pixels.w;
      p.pixels.h = even_part(h_.input, most / p.pixels.w);
      p.pixels.n = p.pixels.h < h_.input ? 1 : even_part(problem_.batch, most / (p.pixels.w * p.pixels.h));
      if (!choose_memory(p)) continue;
      const double cost = (staging(p) + products(p)) / (p.pixels.n * p.pixels.h * p.pixels.w);
      if (best && cost >= best_cost) continue;
      best = p;
      best_cost = cost;
    }
    if (!best) return;
    WgradSm80Plan& p = *best;
    p.tiles.n = ceil_div(problem_.batch, p.pixels.n);
    p.tiles.h = ceil_div(h_.input, p.pixels.h);
    p.tiles.w = ceil_div(w_.input, p.pixels.w);
    p.groups_h = ceil_div(h_.kernel, p.taps_h);
    p.groups_w = ceil_div(w_.kernel, p.taps_w);
    p.blocks_m = ceil_div(channels_m_, p.channels_m());
    p.blocks_n = ceil_div(channels_n_, p.channels_n());
    p.steps = int64_t{p.tiles.n} * p.tiles.h * p.tiles.w;
    p.blocks = problem_.groups * p.blocks_m * p.blocks_n * p.groups_h * p.groups_w;
    if (p.steps <= 1 << 30 && p.blocks <= INT32_MAX / 16) visit(p);
  }

  bool choose_memory(WgradSm80Plan& p) const {
    std::array<WgradSm80Tap, kSm80MaxKernel> taps;
    const auto lines = [&](const Axis& axis, int most, int pixels) -> int64_t {
      return wgrad_sm80_taps(axis.kernel, axis.stride, axis.padding, axis.dilation, most, pixels, taps.data());
    };
    const int64_t rows = p.pixels.n * lines(h_, p.taps_h, p.pixels.h) * lines(w_, p.taps_w, p.pixels.w);
    // Eight elements of padding: rows are an odd number of 16 (float32: 32) bytes, so that adjacent pixels begin in
    // different banks.
    p.x_pitch = (p.channels_m() + 8) * element_;
    p.y_pitch = (p.channels_n() + 8) * element_;
    if (rows * p.y_pitch > device_.shared_bytes_per_block) return false;
    p.y_rows = rows;
    p.step_pixels = round_up(p.pixels.n * p.pixels.h * p.pixels.w, 32 / element_);
    p.y_at = p.step_pixels * p.x_pitch;
    p.slot_bytes = p.y_at + p.y_rows * p.y_pitch;
    p.x_places_at = kWgradSm80Slots * p.slot_bytes;
    p.y_places_at = p.x_places_at + p.step_pixels * kSm80PlaceBytes;
    p.rows_at = p.y_places_at + p.y_rows * kSm80PlaceBytes;
    p.shared_bytes = p.rows_at + 4 * p.step_pixels;
    return p.shared_bytes <= device_.shared_bytes_per_block;
  }

  // Blocks a multiprocessor.
  int resident(const WgradSm80Plan& p) const {
    return std::max(1, std::min(wgrad_sm80_warps(p.tile, p.split) / p.warps(),
                                device_.shared_bytes_per_block / (p.shared_bytes + kReservedShared)));
  }

  int64_t partial_bytes(const WgradSm80Plan& p) const {
    return 4 * problem_.groups * h_.kernel * w_.kernel * p.blocks_m * p.channels_m() * p.blocks_n * p.channels_n();
  }
  int64_t sums_bytes(const WgradSm80Plan& p) const { return p.splits > 1 ? p.splits * partial_bytes(p) : 0; }

  // Cycles of a step: staging the operands; multiplying.
  double staging(const WgradSm80Plan& p) const {
    const auto cost = [&](bool vector) { return kPieceCost[vector ? 0 : element_ == 4 ? 1 : 2]; };
    return (p.step_pixels * p.channels_m() * cost(x_vector_) + p.y_rows * p.channels_n() * cost(y_vector_)) * element_ /
           16;
  }
  double products(const WgradSm80Plan& p) const {
    const int64_t sums = p.warps() * p.tile.channels() * 16 * p.tile.units;
    return sums * p.step_pixels * element_ * (p.split ? kSplitProducts : 1) / sm80_tensor_rate(device_.capability);
  }

  const Problem& problem_;
  const Device& device_;
  const Axis &h_, &w_;
  int64_t channels_m_, channels_n_, element_;
  bool split_, repack_x_, repack_y_, x_vector_, y_vector_;
};

}  // namespace

std::string describe(const WgradSm80Plan& plan, DType) {
  std::ostringstream text;
  text << plan.taps_h << 'x' << plan.taps_w << " taps x " << plan.channels_m() << " input x " << plan.channels_n()
       << " output channels, " << plan.warps_m << 'x' << plan.warps_n << " warps of " << plan.tile.channels()
       << " channels x " << plan.tile.units << " units, " << plan.pixels.n << 'x' << plan.pixels.h << 'x'
       << plan.pixels.w << " pixels a step" << (plan.repack_x ? ", input repacked" : "")
       << (plan.repack_y ? ", grad_output repacked" : "") << (plan.split ? ", three TF32 products" : "");
  return text.str();
}

std::optional<Plan> plan_mma_weight(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty())
    return refuse(considered, "igemm_sm80 family", why);
  std::optional<Plan> best;
  for (const bool repack : {false, true}) {
    const Candidates candidates(problem, device, repack);
    if (repack && !candidates.can_repack()) break;
    candidates.for_all([&](WgradSm80Plan p) {
      if (!candidates.choose_splits(p)) return;
      consider_plan(best, "igemm_sm80 family", p, candidates.workspace_bytes(p), candidates.estimate_ms(p),
                    problem.dtype, considered);
    });
  }
  if (!best) {
    return refuse(considered, "igemm_sm80 family", "no tile fits: pixels in shared memory, sums in their bound");
  }
  return best;
}

}  // namespace deconv
