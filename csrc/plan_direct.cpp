// Plans of the direct family (kernels/direct/conv.cuh).
#include "plan_direct.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "correlation.h"
#include "plan_arithmetic.h"

namespace deconv {
namespace {

constexpr int kMostSplits = 8;
constexpr int64_t kFewChannels = 16;
constexpr int64_t kMostShared = 64 << 10;
// Fitted to 836 timings of 32 layers on an H200: estimates are off by 16%, and taking the
// lowest costs 2% over the best. Warp instructions of a thread, of a weight that it stages, of a chunk in a row of
// taps, of a group of taps side by side and of a load and a result; instructions that a scheduler issues in a cycle.
constexpr double kBeginCost = 242, kWeightCost = 35, kItemCost = 73, kGroupCost = 49, kStoreCost = 6;
constexpr double kLoadCost = 1.9, kNarrowLoadCost = 2.9, kPackedLoads = 0.45, kIssued = 0.52;
// Cycles that a thread waits, with so many warps on a multiprocessor at once, and takes for an instruction of its own.
constexpr double kItemLatency = 346, kGroupLatency = 194, kWarps = 24, kInstructionLatency = 5.9;
constexpr double kGroupTaps = 4;
constexpr double kLineBytes = 128;  // that the first-level cache hands out a cycle
constexpr double kPower = 3;        // by which the three add up
// Over the time to move all bytes, where that is more: of few channels, of so many that the first-level cache does not
// keep what the next row of taps reads again, and of a few among more that are innermost.
constexpr int64_t kKeptChannels = 16;
constexpr double kMovedOverCopied = 2.8, kMovedAgainOverCopied = 4, kMovedApartOverCopied = 7.8;
// Fitted were 2.8e-3; other families' estimates of small layers lack as much as is left out here.
constexpr double kLaunchMs = 0.6e-3;

std::string refusal(const Problem& problem) {
  if (problem.direction == Direction::kGradWeight) return "serves forward and grad_input";
  const Correlation c = correlation(problem);
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  if (c.source.numel() == 0 || c.result.numel() == 0 || problem.w.numel() == 0) return "nothing to compute";
  if (std::min(c.source_channels, c.result_channels) > kFewChannels)
    return "takes at most 16 channels a group on one side";
  if (std::max(h.phases(), w.phases()) > kDirectPhases) return "more phases than its tables hold";
  int64_t reach = 0;
  for (const int axis : {1, 2, 3}) {
    const int64_t size = axis == 1 ? c.source_channels + kDirectChannels : c.source.size[axis];
    reach += (size - 1) * c.source.stride[axis];
  }
  if (reach > INT32_MAX) return "an image this large needs 64-bit offsets";
  return "";
}

class Estimate {
 public:
  Estimate(const Problem& problem, const Device& device)
      : problem_(problem),
        device_(device),
        c_(correlation(problem)),
        h_(geometry(problem, 0)),
        w_(geometry(problem, 1)),
        element_(static_cast<double>(element_size(problem.dtype))),
        wide_(static_cast<double>(accumulator_size(problem.dtype)) / 4),
        packs_(element_size(problem.dtype) <= 4 &&
               packs_along_channels(c_.source, c_.source_channels, kDirectChannels)) {}

  double ms(const DirectConvPlan& plan) const {
    const double splits = plan.splits, rows = kDirectRows;
    const double taps_h = static_cast<double>(h_.kernel) / h_.result_step();
    const double taps_w = static_cast<double>(w_.kernel) / w_.result_step();
    const double source_channels = static_cast<double>(c_.source_channels);
    const double items = taps_h * plan.chunks / splits, groups = items * std::max(1.0, taps_w / kGroupTaps);
    const double products = taps_h * taps_w * source_channels / splits;  // of one row and one channel
    const double weights = static_cast<double>(h_.kernel) * w_.kernel * source_channels * plan.channels /
                           kDirectThreads;
    const double load = (element_ < 4 ? kNarrowLoadCost : kLoadCost) * (packs_ ? kPackedLoads : 1);
    const double weight_loads = plan.channels * wide_ / 4;
    const double instructions = kBeginCost + kWeightCost * weights + kItemCost * items + kGroupCost * groups +
                                products * (rows * load + weight_loads + rows * plan.channels * wide_) +
                                rows * plan.channels * kStoreCost;
    const double lines = products * (rows * lines_of_load() + weight_loads) + rows * lines_of_store(plan);
    const double warps = static_cast<double>(plan.blocks) * kDirectThreads / 32 / device_.multiprocessors;
    const double waits = std::max(1.0, warps / kWarps) *
                         (kItemLatency * items + kGroupLatency * groups + kInstructionLatency * instructions);
    const double cycles = std::pow(std::pow(warps * instructions / (4 * kIssued), kPower) +
                                       std::pow(warps * lines, kPower) + std::pow(waits, kPower),
                                   1 / kPower);
    const bool kept = c_.source_channels <= kKeptChannels;
    const bool apart = c_.source.stride[1] == 1 && (!kept || problem_.groups > 1);
    const double moved = apart ? kMovedApartOverCopied : kept ? kMovedOverCopied : kMovedAgainOverCopied;
    const double memory = moved * static_cast<double>(problem_.bytes()) / device_.bandwidth;
    return 1e3 * std::max(cycles / kClock, memory) + kLaunchMs;
  }

 private:
  // Cycles of the first-level cache for what 32 neighbours load, and store.
  double lines_of_load() const {
    const double apart = static_cast<double>(c_.source.stride[3]) * w_.source_step() / w_.result_step() * element_;
    return std::clamp(32 * apart / kLineBytes, 1.0, 32.0) / (packs_ ? kDirectChannels : 1);
  }
  double lines_of_store(const DirectConvPlan& plan) const {
    const double apart = static_cast<double>(c_.result.stride[3]) * element_;
    const int64_t pack = std::min<int64_t>(plan.channels, 16 / element_size(problem_.dtype));
    const bool packs = packs_along_channels(c_.result, c_.result_channels, pack);
    return plan.channels * std::clamp(32 * apart / kLineBytes, 1.0, 32.0) / static_cast<double>(packs ? pack : 1);
  }

  const Problem& problem_;
  const Device& device_;
  const Correlation c_;
  const AxisGeometry h_, w_;
  const double element_, wide_;
  const bool packs_;  // channels, loaded four at once
};

// Nothing where the weights do not fit, or there are too many blocks.
std::optional<DirectConvPlan> candidate(const Problem& problem, int channels, int splits) {
  const Correlation c = correlation(problem);
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  DirectConvPlan plan;
  plan.channels = channels;
  plan.splits = splits;
  plan.pixels = kDirectThreads / splits;
  const int64_t blocks_m = ceil_div(c.result_channels, channels);
  const int64_t units = h.phases() * ceil_div(h.phase_size(0), kDirectRows);
  const int64_t pixels = problem.batch * units * w.result_size;
  const int64_t pixel_blocks = ceil_div(pixels, plan.pixels);
  const int64_t accumulator = static_cast<int64_t>(accumulator_size(problem.dtype));
  const int64_t weights = c.source_channels * h.kernel * w.kernel * channels;
  const int64_t sums = (splits - 1) * kDirectRows * channels * plan.pixels;
  const int64_t shared = std::max(weights, sums) * accumulator;
  plan.blocks = pixel_blocks * blocks_m * problem.groups;
  if (shared > kMostShared || pixel_blocks * plan.pixels > INT32_MAX || plan.blocks > INT32_MAX) return std::nullopt;
  plan.shared_bytes = static_cast<int>(shared);
  plan.blocks_m = static_cast<int>(blocks_m);
  plan.pixel_blocks = static_cast<int>(pixel_blocks);
  plan.by_width = divide_by(w.result_size);
  plan.by_row_units = divide_by(units);
  plan.by_row_phases = divide_by(h.phases());
  plan.by_column_phases = divide_by(w.result_step());
  plan.by_blocks_m = divide_by(blocks_m);
  plan.by_groups = divide_by(problem.groups);
  plan.chunks = static_cast<int>(ceil_div(c.source_channels, kDirectChannels));
  plan.by_chunks = divide_by(plan.chunks);
  return plan;
}

}  // namespace

std::optional<Plan> plan_direct_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const std::string why = refusal(problem);
  std::optional<Plan> best;
  if (why.empty()) {
    const Correlation c = correlation(problem);
    const Estimate estimate(problem, device);
    const AxisGeometry h = geometry(problem, 0);
    const int64_t items = ceil_div(c.source_channels, kDirectChannels) * ceil_div(h.kernel, h.result_step());
    for (int channels = 2; channels <= direct_channels(accumulator_size(problem.dtype)); channels *= 2) {
      if (channels > 2 && channels / 2 >= c.result_channels) break;
      for (int splits = 1; splits <= kMostSplits; splits *= 2) {
        if (splits > 1 && splits / 2 >= items) break;
        if (const auto plan = candidate(problem, channels, splits)) {
          consider_plan(best, "direct family", *plan, 0, estimate.ms(*plan), problem.dtype, considered);
        }
      }
    }
  }
  if (!best && considered) {
    considered->push_back({"direct family", 0, why.empty() ? "weights of its channels do not fit" : why});
  }
  return best;
}

std::string describe(const DirectConvPlan& plan, DType) {
  std::ostringstream text;
  text << plan.channels << " channels x " << kDirectRows << " rows a thread";
  if (plan.splits > 1) text << ", taps in " << plan.splits << " parts";
  return text.str();
}

}  // namespace deconv
