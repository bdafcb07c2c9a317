// Tiles, steps and splits of the Hopper family's grad_weight (kernels/hopper/weight.cuh).
#include <algorithm>
#include <sstream>

#include "correlation.h"
#include "plan.h"
#include "plan_arithmetic.h"
#include "plan_hopper.h"
#include "tensor_core_problem.h"

namespace deconv {
namespace {

constexpr int kRowBytes = 128;  // of the input's tile
constexpr int kMostSlots = 6, kLeastSlots = 3;
constexpr int kMostTap = 128;
// Tensor cores cut their running sum off instead of rounding it; a split's sum stays short enough for that not to show
// beside the rounding of the operands.
constexpr int64_t kMostPixels16Bit = 1 << 16, kMostPixelsTf32 = 1 << 15;

// Cycles of a multiprocessor at kClockHopper, fitted to 226 timings of 9 layers, all tiles, on an H200.
// Additive, because the parts of a step overlap little.
constexpr double kClockHopper = 1.7e9;
struct Costs {
  double product, columns;   // of an instruction of a warpgroup: fixed, and for each 2 of wgmma's N
  double x_load, y_load;     // of a load of up to 16 bytes, shared among the warps that bring
  double x_turn;             // of turning what it brought around
  double y_element;          // of a load of a single 16-bit element
  double row;                // of a row of grad_output
};
constexpr Costs kCostsPixelRows{45, 0, 2.0, 0.63, 0, 1.3, 2270};    // 16-bit, pixels as rows
constexpr Costs kCostsChannelRows{58, 0, 2.0, 0.63, 0, 1.3, 2270};  // 16-bit, channels as rows
constexpr Costs kCostsFloat{43, 0.34, 1.8, 0.34, 1.0, 1.3, 2770};
constexpr double kSplitShare = 3.5;  // three TF32 products, their operands split on the way
constexpr double kTwoWarps = 1.05;  // how much quicker two warps bring a step
constexpr double kBlockCost = 6000;
constexpr double kLaunchMs = 8e-3, kAddMsPerByte = 0.35e-9;

struct Facts {
  int element, parts;
  bool x_channels, y_channels;  // packs of 16 bytes along the channels
  int x_piece, y_piece;         // along the columns
};

// Bytes that one load may take along the columns.
int piece_along_columns(const Tensor4& tensor, int element) {
  if (tensor.stride[3] != 1) return element;
  for (const int bytes : {16, 4}) {
    const int64_t count = bytes / element;
    if (tensor.stride[0] % count == 0 && tensor.stride[1] % count == 0 && tensor.stride[2] % count == 0) return bytes;
  }
  return element;
}

Facts facts_of(const Problem& problem) {
  const int element = static_cast<int>(element_size(problem.dtype));
  return {element,
          problem.dtype == DType::kFloat32 && !problem.allow_tf32 ? 2 : 1,
          packs_along_channels(problem.x, problem.in_channels_per_group(), 16 / element),
          packs_along_channels(problem.y, problem.out_channels_per_group(), 16 / element),
          piece_along_columns(problem.x, element),
          piece_along_columns(problem.y, element)};
}

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (problem.dtype == DType::kFloat64 || problem.dtype == DType::kOther) return "takes float16, bfloat16 and float32";
  if (const std::string why = in_channels_refusal(problem); !why.empty()) return why;
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  if (problem.axis[0].kernel > kMostTap || problem.axis[1].kernel > kMostTap) return "takes kernels up to 128";
  return "";
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device)
      : problem_(problem), device_(device), h_(problem.axis[0]), w_(problem.axis[1]), facts_(facts_of(problem)) {}

  std::optional<HopperWeightPlan> plan(HopperWeightTile tile, int octets, bool spread) const {
    HopperWeightPlan p;
    p.tile = tile;
    p.parts = facts_.parts;
    p.step_warps = hopper_weight_step_warps(facts_.element, p.parts, tile);
    p.spread = spread;
    const int64_t channels_n = problem_.out_channels_per_group();
    p.fold = channels_n <= 16 ? 4 : channels_n <= 32 ? 2 : 1;
    p.block_taps = tile.taps * p.fold * (spread ? 1 : tile.warpgroups);
    // Of 16-bit elements wgmma takes pixels as rows, of float32 only grad_output may lie so.
    p.channels = facts_.y_channels && (facts_.element == 4 || facts_.x_channels);
    if (!choose_pixels(p, octets)) return std::nullopt;
    choose_rows(p);
    const int64_t taps = h_.kernel * w_.kernel;
    p.blocks_m = static_cast<int>(ceil_div(problem_.in_channels_per_group(), tile.n));
    p.blocks_n = static_cast<int>(ceil_div(problem_.out_channels_per_group(), p.y_channels));
    p.blocks_tap = static_cast<int>(ceil_div(taps, p.block_taps));
    if (!choose_memory(p) || !choose_splits(p)) return std::nullopt;
    return p;
  }

  int64_t workspace_bytes(const HopperWeightPlan& p) const { return p.splits > 1 ? p.splits * partial_bytes(p) : 0; }

  double estimate_ms(const HopperWeightPlan& p) const {
    const bool is_float = facts_.element == 4;
    const Costs& costs = is_float ? kCostsFloat : p.channels ? kCostsPixelRows : kCostsChannelRows;
    const double products = (is_float ? p.octets : p.octets / 2) * p.tile.taps * p.tile.warpgroups;
    const double multiply = products * (costs.product + costs.columns * p.tile.n / 2) *
                            (p.parts == 2 ? kSplitShare : 1);
    const bool x_by_elements = is_float && problem_.x.stride[3] != 1 && !p.x_turned;
    const double x_bytes = static_cast<double>(p.tile.n) * 8 * p.octets * facts_.element;
    const double x_loads = x_bytes / (x_by_elements ? 4 : p.x_turned ? 16 : p.x_piece);
    const double rows = static_cast<double>(std::min<int64_t>(h_.stride, span(p)));
    const double y_bytes = rows * p.images * p.y_columns * p.y_channels * facts_.element;
    const double y_cost = p.y_piece == 2 ? costs.y_element : costs.y_load;
    const double bring = (x_loads * (costs.x_load + (p.x_turned ? costs.x_turn : 0)) + y_bytes / p.y_piece * y_cost +
                          rows * costs.row) /
                         (p.step_warps == 2 ? kTwoWarps : 1);
    const double step = multiply + bring / std::min(kHopperWeightTurns, p.x_slots);
    const double waves = static_cast<double>(ceil_div(p.blocks, device_.multiprocessors));
    const double cycles = waves * (static_cast<double>(p.steps_per_split) * step + kBlockCost);
    const double memory = static_cast<double>(problem_.bytes()) / device_.bandwidth;
    return 1e3 * std::max(cycles / kClockHopper, memory) + kLaunchMs +
           kAddMsPerByte * static_cast<double>(workspace_bytes(p));
  }

 private:
  // Pixels of a step: whole images' rows where they are short.
  bool choose_pixels(HopperWeightPlan& p, int octets) const {
    const int64_t of_row = ceil_div(w_.input, 8);
    const int pair = facts_.element == 4 ? 1 : 2;
    p.tiles_w = static_cast<int>(ceil_div(of_row, octets));
    p.image_octets = static_cast<int>(ceil_div(of_row, p.tiles_w));
    if (p.tiles_w == 1) {
      p.images = static_cast<int>(std::clamp<int64_t>(octets / p.image_octets, 1, problem_.batch));
    } else {
      p.image_octets = static_cast<int>(round_up(p.image_octets, pair));
      p.tiles_w = static_cast<int>(ceil_div(of_row, p.image_octets));
    }
    p.octets = static_cast<int>(round_up(p.images * p.image_octets, pair));
    if (p.octets > kHopperWeightOctets) return false;
    p.steps = p.tiles_w * ceil_div(problem_.batch, p.images) * h_.input;
    return p.steps < (int64_t{1} << 30);
  }

  // How both operands lie in shared memory.
  void choose_rows(HopperWeightPlan& p) const {
    const int element = facts_.element, pack = 16 / element;
    p.y_channels = kHopperWeightTileM / p.fold * (p.spread ? p.tile.warpgroups : 1);
    p.y_piece = p.channels ? 16 : facts_.y_piece;
    p.x_piece = p.channels && element == 2 ? 16 : facts_.x_piece;
    p.x_turned = element == 4 && facts_.x_channels;
    p.y_lead = p.channels ? 0 : static_cast<int>((pack - w_.padding % pack) % pack);
    const int64_t columns = p.y_lead + (8 * p.image_octets - 1) * w_.stride + (w_.kernel - 1) * w_.dilation + 1;
    p.y_columns = static_cast<int>(round_up(columns, pack));
    if (p.channels) {
      p.y_phase_columns = static_cast<int>(ceil_div(columns, w_.stride));
      p.y_columns = static_cast<int>(p.y_phase_columns * w_.stride);
      // 16 (float32: 32) bytes more than the channels: neighbouring columns begin in different banks.
      p.y_channel_pitch = element;
      p.y_column_pitch = p.y_channels * element + (element == 4 ? 32 : 16);
      p.y_row_bytes = p.images * p.y_columns * p.y_column_pitch;
    } else {
      // An odd number of 16 bytes, for the same reason.
      p.y_column_pitch = element;
      p.y_channel_pitch = (p.images * p.y_columns / pack | 1) * 16;
      p.y_row_bytes = p.y_channels * p.y_channel_pitch;
    }
    const bool pixel_rows = p.channels && element == 2;
    p.x_rows_bytes = (pixel_rows ? 8 * p.octets : p.tile.n) * kRowBytes;
    const int blocks = pixel_rows ? p.tile.n / 64 : static_cast<int>(ceil_div(8 * p.octets * element, kRowBytes));
    p.x_slot_bytes = blocks * p.x_rows_bytes * p.parts;
  }

  // Rows of grad_output from a step's first to its last.
  int span(const HopperWeightPlan& p) const {
    const int64_t rows = std::min(h_.kernel, (p.block_taps - 1 + w_.kernel - 1) / w_.kernel + 1);
    return static_cast<int>((rows - 1) * h_.dilation + 1);
  }

  bool choose_memory(HopperWeightPlan& p) const {
    const int64_t rows = span(p), advance = std::min<int64_t>(h_.stride, rows);
    for (p.x_slots = kMostSlots; p.x_slots >= kLeastSlots; --p.x_slots) {
      // The ring holds what all slots' steps need, of as many strips as they may belong to.
      const int64_t strips = std::min<int64_t>(p.x_slots, ceil_div(p.x_slots - 1, h_.input) + 1);
      const int64_t ring = strips * rows + (p.x_slots - strips) * advance;
      const int64_t bytes = p.x_slots * static_cast<int64_t>(p.x_slot_bytes) + ring * p.y_row_bytes + 16 * p.x_slots;
      if (bytes > device_.shared_bytes_per_block) continue;
      p.y_rows = static_cast<int>(ring);
      p.y_at = p.x_slots * p.x_slot_bytes;
      p.barriers_at = p.y_at + p.y_rows * p.y_row_bytes;
      p.shared_bytes = p.barriers_at + 16 * p.x_slots;
      return true;
    }
    return false;
  }

  // Enough blocks for whole waves over the GPU, in splits that are short enough and fit into the workspace.
  bool choose_splits(HopperWeightPlan& p) const {
    const int64_t tiles = static_cast<int64_t>(p.blocks_m) * p.blocks_n * p.blocks_tap * problem_.groups;
    const int64_t most_pixels = facts_.element == 2 ? kMostPixels16Bit : kMostPixelsTf32;
    const int64_t most_steps = p.parts == 2 ? p.steps : std::max<int64_t>(1, most_pixels / (8 * p.octets));
    const int64_t least = ceil_div(p.steps, most_steps);
    const int64_t most = std::min(p.steps, std::max<int64_t>(1, kWorkspaceLimit / partial_bytes(p)));
    if (least > most || tiles * most > INT32_MAX / 16) return false;
    int64_t best = least;
    double best_waves = 0;
    for (int64_t waves = 1; waves <= 8; ++waves) {  // the splits that just fill a number of waves
      const int64_t splits = std::clamp(waves * device_.multiprocessors / tiles, least, most);
      const double rounds = static_cast<double>(ceil_div(splits * tiles, device_.multiprocessors)) *
                            (static_cast<double>(ceil_div(p.steps, splits)) + 8);
      if (waves == 1 || rounds < 0.98 * best_waves) {
        best = splits;
        best_waves = rounds;
      }
    }
    p.steps_per_split = ceil_div(p.steps, best);
    p.splits = static_cast<int>(ceil_div(p.steps, p.steps_per_split));
    p.blocks = tiles * p.splits;
    return true;
  }

  int64_t partial_bytes(const HopperWeightPlan& p) const {
    return 4 * problem_.groups * h_.kernel * w_.kernel * p.blocks_m * p.tile.n * p.blocks_n * p.y_channels;
  }

  const Problem& problem_;
  const Device& device_;
  const Axis &h_, &w_;
  Facts facts_;
};

}  // namespace

std::string describe(const HopperWeightPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of " << plan.tile.taps * plan.fold << " taps x "
       << kHopperWeightTileM / plan.fold << " output x " << plan.tile.n << " input channels, "
       << (plan.spread ? "output channels" : "taps") << " side by side, " << plan.images << 'x' << 8 * plan.image_octets
       << " pixels a step" << (plan.parts == 2 ? ", three TF32 products" : "");
  return text.str();
}

std::optional<Plan> plan_hopper_weight(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty()) {
    if (considered) considered->push_back({"hopper family", 0, why});
    return std::nullopt;
  }
  const Candidates candidates(problem, device);
  std::optional<Plan> best;
  const auto consider = [&](HopperWeightTile tile) {
    for (const bool spread : {false, true}) {
      if (spread && problem.out_channels_per_group() <= kHopperWeightTileM) continue;
      for (const int octets : {4, 8, 16}) {
        const std::optional<HopperWeightPlan> plan = candidates.plan(tile, octets, spread);
        if (!plan) continue;
        const double ms = candidates.estimate_ms(*plan);
        consider_plan(best, "hopper family", *plan, candidates.workspace_bytes(*plan), ms, problem.dtype, considered);
      }
    }
  };
  if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) {
    for (const HopperWeightTile tile : kHopperWeightTilesSplit) consider(tile);
  } else {
    for (const HopperWeightTile tile : kHopperWeightTiles) consider(tile);
  }
  if (!best && considered) {
    considered->push_back(
        {"hopper family", 0, "no tile fits: rows of grad_output in shared memory, sums in their bound"});
  }
  return best;
}

}  // namespace deconv
