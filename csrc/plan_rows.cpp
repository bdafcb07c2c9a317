// Tiles of the rows family's forward and grad_input (kernels/rows/conv.cuh).
#include "plan_rows.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "correlation.h"
#include "plan_arithmetic.h"
#include "tensor_core_problem.h"

namespace deconv {
namespace {

constexpr int kSchedulers = 4;  // of a multiprocessor
constexpr int kBlockShared = 1 << 10;  // bytes that a block takes besides; a multiprocessor has those of the largest
constexpr int kFewestRowLanes = 8;     // that store a row together
constexpr double kLanesTaken = 1.25;   // a row's bytes by its lanes': few beyond are no reason for more

// Fitted to 7,633 timings on an H100 (121 layers in bfloat16 and TF32, forward) and an H200 (45), so that the quickest
// tiles come first and have their time, those of kb1_75 and kb1_81 before all.
// Cycles of a scheduler for a warp: of a step; of four columns of a unit by 32 lanes; of a band's row with taps, and of
// a phase of the width of it; of an entry of a list; of a lane's sum; of the rows that are stored at once, and of one
// of them whose ends are parts of 16 bytes.
constexpr double kStep = 4.0, kLoad = 1500, kRow = 6.1, kPhase = 3.9;
constexpr double kEntry = 0.34, kChannelTile = 0.15, kPixelTile = 0.15, kProduct = 0.118, kSum = 0.66;
constexpr double kStoredRows = 18.8, kStore = 0.39, kFill = 0.3, kEnds = 1.14;
// Cycles that a warp waits for what it asked for, where no other warp has something to do.
constexpr double kStepLatency = 1260, kLoadLatency = 206, kRowLatency = 213, kPhaseLatency = 238;
constexpr double kMeeting = 258;  // of a row, for each warp of a band
constexpr double kEntryLatency = 61.8, kStoredRowsLatency = 98.2, kStoreLatency = 72.3, kEndsLatency = 207;
constexpr double kTogether = 4;  // the norm in which a step's work and its waits add
// Cycles before the first step: of a block, of a warp alone, for each block beside it; of 8 channels of an entry by one
// warp.
constexpr double kBlock = 3770, kBlockWarp = 2060, kBlockBeside = 3050, kPackTile = 545;
constexpr double kRaggedRow = 12.6;  // bytes that a row costs memory besides, whose ends are parts of sectors
constexpr double kPlanes = 0.067;  // of memory's time, for each doubling of the planes that a multiprocessor writes to
constexpr int kFewPlanes = 16;
// Of the shorter of memory's time and the multiprocessors': added, by several blocks and by one that is in step.
constexpr double kApart = 0.367, kApartAlone = 0.559;
constexpr double kLaunchMs = 0.003;
constexpr double kOnePhase = 1.5;  // by hand: no layer without phases of the width was timed

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  if (problem.direction == Direction::kGradWeight) return "serves forward and grad_input";
  if (problem.dtype == DType::kFloat64) return "has no float64";
  if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) return "has no strict float32";
  if (std::max(problem.in_channels_per_group(), problem.out_channels_per_group()) == 1) return "depthwise";
  if (fills_large_tiles(problem)) return "has channels enough on both sides for other families";
  const Correlation c = correlation(problem);
  if (c.source.numel() == 0 || c.result.numel() == 0) return "nothing to compute";
  if (c.result.stride[3] != 1 && c.result.size[3] > 1) return "takes results whose columns are adjacent";
  return "";
}

// One axis: how far its taps reach, and what its phases have.
struct RowsAxis {
  AxisGeometry geometry;
  int origin = 0, shifts = 1;
  int counts[kRowsMostPhases]{};  // taps of a phase
  int actives = 0;  // phases with taps
};
std::optional<RowsAxis> rows_axis(const Problem& problem, int axis) {
  RowsAxis a;
  a.geometry = without_idle_taps(geometry(problem, axis));
  const int phases = a.geometry.phases();
  if (phases > kRowsMostPhases || a.geometry.planes() > 1) return std::nullopt;
  int least = INT32_MAX, most = INT32_MIN;
  for (int phase = 0; phase < phases; ++phase) {
    const AxisTaps taps = axis_taps(a.geometry, phase, 0);
    a.counts[phase] = taps.count;
    if (taps.count == 0) continue;
    ++a.actives;
    least = std::min(least, taps.first_shift);
    most = std::max(most, taps.first_shift + (taps.count - 1) * taps.shift_step);
  }
  if (a.actives > 0) a.origin = least, a.shifts = most - least + 1;
  return a;
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device, const RowsAxis& h, const RowsAxis& w)
      : problem_(problem),
        device_(device),
        c_(correlation(problem)),
        h_(h),
        w_(w),
        element_(static_cast<int>(element_size(problem.dtype))),
        unit_(kRowsUnitBytes / element_) {
    units_ = static_cast<int>(ceil_div(c_.source_channels, unit_));
    for (int i = 0; i < h.geometry.phases(); ++i) {
      for (int j = 0; j < w.geometry.phases(); ++j) {
        entries_ += ceil_div(int64_t{h.counts[i]} * w.counts[j] * units_, 2);
      }
    }
  }

  // bands: of a block, together.
  std::optional<RowsConvPlan> plan(int pixel_tiles, int channel_tiles, int warps_w, int bands) const {
    RowsConvPlan p;
    p.pixel_tiles = pixel_tiles;
    p.channel_tiles = channel_tiles;
    p.warps_w = warps_w;
    const int64_t group_bands = ceil_div(c_.result_channels, 8 * channel_tiles);
    if (bands <= group_bands) {
      p.bands = bands;
      p.group_blocks = static_cast<int>(ceil_div(group_bands, bands));
      p.channel_blocks = static_cast<int>(problem_.groups) * p.group_blocks;
    } else {
      p.bands = static_cast<int>(group_bands);
      p.groups = static_cast<int>(std::min<int64_t>(bands / group_bands, problem_.groups));
      p.channel_blocks = static_cast<int>(ceil_div(problem_.groups, p.groups));
      if (p.groups * p.bands != bands) return std::nullopt;
    }
    if (p.warps() > kRowsMostWarps) return std::nullopt;
    p.units = units_;
    p.origin_h = h_.origin, p.origin_w = w_.origin;
    p.shifts_h = h_.shifts, p.shifts_w = w_.shifts;
    p.slots = p.shifts_h + 1;
    p.lead = (p.origin_w % 4 + 4) % 4;
    p.pitch = static_cast<int>(round_up(p.lead + p.columns() + p.shifts_w - 1, 4));
    p.heights = h_.geometry.phase_size(0);
    p.tiles_w = static_cast<int>(ceil_div(w_.geometry.phase_size(0), p.columns()));
    p.steps = int64_t{p.channel_blocks} * problem_.batch * p.tiles_w * p.heights;
    while (p.row_lanes > kFewestRowLanes && row_bytes(p) <= kLanesTaken * kRowsPieceBytes * p.row_lanes / 2) {
      p.row_lanes /= 2, p.rows_at_once *= 2;
    }
    if (!choose_memory(p)) return std::nullopt;
    p.blocks = std::min<int64_t>(int64_t{device_.multiprocessors} * p.blocks_per_multiprocessor, p.steps);
    return p;
  }

  double estimate_ms(const RowsConvPlan& p) const {
    const double warps = p.warps(), bands = p.groups * p.bands, band = 8.0 * p.channel_tiles;
    const int heights = h_.geometry.phases(), widths = w_.geometry.phases();
    const bool even = stores_even_rows(p);
    const double stores = std::ceil((row_bytes(p) + (even ? 0 : kRowsPieceBytes - 1.0)) /
                                    (kRowsPieceBytes * p.row_lanes));
    const double loads = ceil_div(int64_t{p.groups} * p.units * (p.pitch / 4), 32);
    // Of a step, all warps together.
    const double entry = kEntry + kChannelTile * p.channel_tiles +
                         p.pixel_tiles * (kPixelTile + kProduct * p.channel_tiles);
    const double sums = 4.0 * p.pixel_tiles * p.channel_tiles * kSum;
    const double computed = warps * (h_.actives * (kRow + w_.actives * (kPhase + sums)) + p.entries * entry);
    const double filled = w_.actives < widths ? h_.actives * kFill * (1 + stores) : 0;
    const double stored = bands * band / p.rows_at_once * (heights * (kStoredRows + stores * kStore) + filled) +
                          (even ? 0 : bands * band * heights * kEnds);
    const double work = warps * kStep + loads * kLoad + computed + stored;

    const double steps = std::ceil(static_cast<double>(p.steps) / p.blocks);
    const double resident = std::min<double>(p.blocks_per_multiprocessor,
                                             std::ceil(static_cast<double>(p.blocks) / device_.multiprocessors));
    const double own_rows = std::ceil(band / p.warps_w), own_loads = std::ceil(loads / warps);
    const double issue = work * resident / kSchedulers;
    const double wait = kStepLatency + own_loads * kLoadLatency +
                        h_.actives * (kRowLatency + p.warps_w * kMeeting + w_.actives * kPhaseLatency) +
                        p.entries * kEntryLatency * std::max(1.0, p.pixel_tiles * p.channel_tiles / 4.0) +
                        own_rows * heights *
                            ((kStoredRowsLatency + stores * kStoreLatency) / p.rows_at_once +
                             (even ? 0 : kEndsLatency));
    const double step = std::pow(std::pow(issue, kTogether) + std::pow(wait, kTogether), 1 / kTogether);
    const double setup = kBlock + kBlockWarp / warps + kBlockBeside * resident +
                         p.entries * bands * p.channel_tiles / warps * kPackTile +
                         p.shifts_h * own_loads * kLoadLatency;
    const double compute = (steps * step + setup) / kClock;

    const double rows = 1.0 * problem_.batch * problem_.groups * c_.result_channels * c_.result.size[2] * p.tiles_w;
    const bool ragged = c_.result.size[3] * element_ % kSectorBytes != 0;
    const double brought = 1.0 * p.steps * p.groups * p.units * kRowsUnitBytes * p.pitch / 4;
    const double planes = std::max(1.0, bands * band * resident / kFewPlanes);
    const double memory = ((1 + kPlanes * std::log2(planes)) * static_cast<double>(problem_.bytes()) + brought +
                           (ragged ? rows * (kRaggedRow + device_.partial_run_bytes) : 0)) /
                          device_.bandwidth;
    const double apart = resident > 1 ? kApart : kApartAlone;
    const double both = std::max(compute, memory) + apart * std::min(compute, memory);
    return 1e3 * (widths == 1 ? kOnePhase : 1) * both + kLaunchMs;
  }

 private:
  // Of a row of the result, those of a tile.
  int64_t row_bytes(const RowsConvPlan& p) const {
    return std::min<int64_t>(p.columns() * w_.geometry.phases(), c_.result.size[3]) * element_;
  }
  // Whether they begin and end with pieces, if the result does and its rows follow each other.
  bool stores_even_rows(const RowsConvPlan& p) const {
    return c_.result.size[3] * element_ % kRowsPieceBytes == 0 &&
           (p.tiles_w == 1 || int64_t{p.columns()} * w_.geometry.phases() * element_ % kRowsPieceBytes == 0);
  }
  bool choose_memory(RowsConvPlan& p) const {
    const int64_t bands = int64_t{p.groups} * p.bands;
    const int64_t weights = entries_ * bands * p.channel_tiles * 256;
    const int64_t source = int64_t{p.slots} * p.groups * p.units * p.pitch * kRowsUnitBytes;
    // Channels of a lane's neighbours then lie in different banks.
    int64_t stage_pitch = round_up(int64_t{p.columns()} * w_.geometry.result_step() * element_, 16) + 16;
    if (stage_pitch / 16 % 2 == 0) stage_pitch += 16;
    const int64_t stage = bands * 8 * p.channel_tiles * stage_pitch;
    const int64_t tables = rows_table_bytes(entries_, h_.geometry.phases() * w_.geometry.phases());
    const int64_t all = weights + source + stage + tables;
    if (entries_ == 0 || all > device_.shared_bytes_per_block) return false;
    p.entries = static_cast<int>(entries_);
    p.stage_pitch = static_cast<int>(stage_pitch);
    p.source_at = static_cast<int>(weights);
    p.stage_at = static_cast<int>(weights + source);
    p.tables_at = static_cast<int>(weights + source + stage);
    p.shared_bytes = static_cast<int>(all);
    p.blocks_per_multiprocessor = static_cast<int>(std::min<int64_t>(
        (device_.shared_bytes_per_block + kBlockShared) / (all + kBlockShared), kRowsMostWarps / p.warps()));
    return p.blocks_per_multiprocessor >= 1;
  }

  const Problem& problem_;
  const Device& device_;
  Correlation c_;
  const RowsAxis& h_;
  const RowsAxis& w_;
  int element_, unit_, units_ = 1;
  int64_t entries_ = 0;
};

}  // namespace

uint32_t rows_idle_phases(const AxisGeometry& axis) {
  uint32_t idle = 0;
  for (int phase = 0; phase < axis.phases(); ++phase) {
    if (axis_taps(axis, phase, 0).count == 0) idle |= 1u << phase;
  }
  return idle;
}

std::string describe(const RowsConvPlan& plan, DType) {
  std::ostringstream text;
  text << plan.groups * plan.bands << " bands of " << 8 * plan.channel_tiles << " channels x " << plan.columns()
       << " columns in all phases, " << plan.warps_w << (plan.warps_w == 1 ? " warp" : " warps") << " a band";
  return text.str();
}

std::optional<Plan> plan_rows_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) -> std::optional<Plan> {
    if (considered) considered->push_back({"rows family", 0, why});
    return std::nullopt;
  };
  if (const std::string why = refusal(problem, device); !why.empty()) return refuse(why);
  const std::optional<RowsAxis> h = rows_axis(problem, 0), w = rows_axis(problem, 1);
  if (!h || !w) return refuse("takes one plane of the source and up to 32 phases along an axis");
  const Candidates candidates(problem, device, *h, *w);
  std::optional<Plan> best;
  for (const int channel_tiles : {1, 2}) {
    if (channel_tiles == 2 && correlation(problem).result_channels <= 8) continue;
    for (const int pixel_tiles : {1, 2, 4}) {
      for (const int warps_w : {1, 2, 4, 8}) {
        for (const int bands : {1, 2, 4, 8}) {
          const std::optional<RowsConvPlan> plan = candidates.plan(pixel_tiles, channel_tiles, warps_w, bands);
          if (!plan || plan->steps / plan->heights > INT32_MAX) continue;
          if (plan->columns() >= 32 && plan->columns() / 2 >= w->geometry.phase_size(0)) continue;  // half of it idle
          consider_plan(best, "rows family", *plan, 0, candidates.estimate_ms(*plan), problem.dtype, considered);
        }
      }
    }
  }
  if (!best) return refuse("no tile fits: weights, source rows and result rows in shared memory");
  return best;
}

}  // namespace deconv
