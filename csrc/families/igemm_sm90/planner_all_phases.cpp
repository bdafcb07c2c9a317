// Tiles of the Hopper family for few result channels (kernels/hopper/pictures.cuh).
#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "core/correlation.h"
#include "families/igemm_sm90/planner.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

// Cycles of a multiprocessor at kClock, fitted to 2,251 timings of 34 layers, but for `single` and `staged` and TF32's
// `line`, which are by hand.
constexpr double kBytes = 67;  // that copies bring in a cycle
struct Costs {
  double product;   // of 64 pixels, 32 bytes of channels and a shift along the height, for each row of operand B
  double least;     // the same, at least
  double gathered;  // of a stage of planes besides
  double row;       // of a copy's row of columns besides
  double line;      // of a copy of lines besides
  double apart;     // of the lesser of products and copies: added
  double pair, single;  // of 64 pixels' results of a row of operand B, on their way out by twos or one by one
  double copied, staged;  // the same by copies, staged by twos or one by one
  double memory;    // part of the time for moving all tensors that nothing hides
  double block;     // until its weights are there
  double weight;    // a byte of operand B
};
constexpr Costs kCostsShort{0.735, 35.3, 174, 2.21, 47, 0.246, 8.9, 47, 7, 37, 0.5, 5110, 0.085};
constexpr Costs kCostsTf32{0.433, 23.1, 0, 1.94, 75, 0.177, 6.4, 36, 4.1, 15, 0.83, 3870, 0.07};
constexpr double kLaunchMs = 0.004;
constexpr double kSmallChannelTiles =
    1.05;  // times all that, of planes of float32 in tiles of few columns: seen, by hand
constexpr int64_t kLeastChannelBytes = 32;  // of a group: with less, products and copies are mostly empty

// Shifts from the smallest to the largest that any phase reads.
struct Shifts {
  int origin = 0, count = 1;
};
Shifts find_shifts(const AxisGeometry& axis) {
  int first = INT32_MAX, last = INT32_MIN;
  for (int phase = 0; phase < axis.phases(); ++phase) {
    const AxisTaps taps = axis_taps(axis, phase, 0);
    if (taps.count == 0) continue;
    first = std::min(first, taps.first_shift);
    last = std::max(last, taps.first_shift + (taps.count - 1) * taps.shift_step);
  }
  if (first > last) return {};  // no phase has a tap
  return {first, last - first + 1};
}

// Result channels of a group and phases.
int64_t rows_of_operand(const Problem& problem) {
  return correlation(problem).result_channels * geometry(problem, 0).phases() * geometry(problem, 1).phases();
}

struct Layer {
  Shifts h, w;
  int operand_rows = 0, shifts = 0;
  AllPhasesSource source = AllPhasesSource::kPixels;
  std::string refusal;
};

// How tensor copies take a source, if they do.
std::optional<AllPhasesSource> find_source(const Problem& problem, const Tensor4& source) {
  const bool planes = source.stride[3] == 1;
  if (takes_halo_copies(problem, source, planes)) return planes ? AllPhasesSource::kPlanes : AllPhasesSource::kPixels;
  // Places of rows beyond the image are 32-bit integers, too.
  const bool is_short = (source.size[2] + 2 * kMostCopied) * source.size[3] <= INT32_MAX;
  if (is_line(source) && is_short && takes_halo_copies(problem, as_line(source), true)) return AllPhasesSource::kLines;
  return std::nullopt;
}

Layer describe_layer(const Problem& problem, const Device& device) {
  Layer layer;
  const auto refuse = [&](const std::string& why) {
    layer.refusal = why;
    return layer;
  };
  if (!device.has_wgmma) return refuse("needs a Hopper GPU and a build for sm_90a");
  if (problem.direction == Direction::kGradWeight || problem.blocks) return refuse("computes forward and grad_input");
  if (problem.dtype == DType::kFloat64 || problem.dtype == DType::kOther) {
    return refuse("takes float16, bfloat16 and float32");
  }
  if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) return refuse("takes no strict float32");
  const Correlation c = correlation(problem);
  if (c.source.numel() == 0 || c.result.numel() == 0 || problem.w.numel() == 0) return refuse("takes no empty tensors");
  if (c.source_channels * static_cast<int64_t>(element_size(problem.dtype)) < kLeastChannelBytes) {
    return refuse("takes at least " + std::to_string(kLeastChannelBytes) + " bytes of source channels a group");
  }
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  if (h.source_step() > 1 || w.source_step() > 1) return refuse("serves forward, and grad_input of stride 1");
  const int64_t most = *std::rbegin(kAllPhasesOperandRows);
  const bool is_small = c.result_channels <= most && h.phases() <= most && w.phases() <= most;
  const int64_t rows = is_small ? rows_of_operand(problem) : most + 1;
  if (rows > most) return refuse("takes up to " + std::to_string(most) + " result channels and phases together");
  for (const AxisGeometry& axis : {h, w}) {
    // Places beyond the result, of a tile's last rows and columns, are 32-bit integers too.
    if ((axis.phase_size(0) + int64_t{kMostCopied}) * axis.result_step() > INT32_MAX) {
      return refuse("a stride this long");
    }
  }
  layer.operand_rows = *std::lower_bound(std::begin(kAllPhasesOperandRows), std::end(kAllPhasesOperandRows), rows);
  layer.h = find_shifts(h);
  layer.w = find_shifts(w);
  layer.shifts = std::max({layer.h.count, layer.w.count, kAllPhasesShifts[0]});
  if (layer.shifts > *std::rbegin(kAllPhasesShifts)) {
    return refuse("takes kernels that read up to " + std::to_string(*std::rbegin(kAllPhasesShifts)) +
                  " rows and columns");
  }
  const std::optional<AllPhasesSource> source = find_source(problem, c.source);
  if (!source) return refuse("takes sources whose channels, or pixels, begin at multiples of 16 bytes");
  layer.source = *source;
  const Tensor4& y = c.result;
  if ((c.result_channels - 1) * y.stride[1] + (h.phases() - 1) * y.stride[2] + (w.phases() - 1) * y.stride[3] >
      INT32_MAX) {
    return refuse("results this far apart need 64-bit offsets");
  }
  return layer;
}

// Elements from a result column to the next, if columns of a line of strips, or of all channels, leave by tensor copies
// that begin at such a column. The launcher asks where the result begins.
std::optional<int> copied_column(const Problem& problem) {
  const Correlation c = correlation(problem);
  const auto& [size, stride] = c.result;
  const bool whole_pixels = stride[3] != 1;
  if (whole_pixels && (stride[3] != c.result_channels || (size[1] > 1 && stride[1] != 1) || problem.groups > 1)) {
    return std::nullopt;
  }
  for (const int d : {0, 1, 2}) {
    if (whole_pixels && d == 1) continue;
    if (size[d] > 1 && !is_copied_step(problem, stride[d])) return std::nullopt;
  }
  for (const int axis : {0, 1}) {
    if (geometry(problem, axis).phases() != geometry(problem, axis).result_step()) return std::nullopt;
  }
  const int64_t column = whole_pixels ? c.result_channels : 1;
  // Places of copies are 32-bit integers, those of a tile's columns beyond the image, too.
  const int64_t most = size[3] + int64_t{kMostCopied} * geometry(problem, 1).result_step();
  if (most > INT32_MAX / column) return std::nullopt;
  return static_cast<int>(column);
}

// Where a line of strips is staged until a copy takes it out; narrows the tile to whole copies. False: none takes it.
bool stage_results(const Problem& problem, AllPhasesPlan& p) {
  const std::optional<int> column = copied_column(problem);
  if (!column) return false;
  const int element = static_cast<int>(element_size(problem.dtype)), unit = 16 / element;
  p.copied = true;
  p.staged_phase = *column;
  p.staged_column = geometry(problem, 1).result_step() * p.staged_phase;
  p.tile_columns -= p.tile_columns % (unit / gcd(unit, p.staged_column));
  const int columns = p.tile_columns * p.staged_column;
  const int64_t rows = all_phases_strip_rows(p.operand_rows) * geometry(problem, 0).result_step();
  const bool whole_pixels = p.staged_phase > 1;
  p.staged_channel = whole_pixels ? 1 : columns;
  p.staged_row = columns * (whole_pixels ? 1 : static_cast<int>(correlation(problem).result_channels));
  p.staged_bytes = static_cast<int>(round_up(rows * p.staged_row * element, 128));
  return columns <= kMostCopied;  // of rows there are never as many
}

std::optional<AllPhasesPlan> plan_tile(const Problem& problem, const Device& device, const Layer& layer, int strips_w,
                                       bool copied) {
  const Correlation c = correlation(problem);
  const int element = static_cast<int>(element_size(problem.dtype)), unit = 16 / element;
  AllPhasesPlan p;
  p.operand_rows = layer.operand_rows;
  p.source = layer.source;
  p.shifts = layer.shifts;
  p.origin_h = layer.h.origin;
  p.origin_w = layer.w.origin;
  p.strips_w = strips_w;
  p.tile_rows = kAllPhasesStrips / strips_w * all_phases_strip_rows(p.operand_rows);
  p.tile_columns = strips_w * all_phases_strip_columns(p.shifts);
  p.halo_rows = p.tile_rows + p.shifts - 1;
  p.pitch = p.tile_columns + p.shifts - 1;
  if (p.source == AllPhasesSource::kPlanes) p.tile_columns -= p.tile_columns % unit;  // tiles begin where copies may
  if (copied && !stage_results(problem, p)) return std::nullopt;
  if (has_planes(p.source)) {
    const int64_t row = p.source == AllPhasesSource::kLines ? c.source.size[3] : 0;
    const auto modulo = [&](int64_t columns) { return static_cast<int>((columns % unit + unit) % unit); };
    p.lead = modulo(p.origin_w + p.origin_h * row);
    p.lead_step = modulo(row);
    // A warp reads two octets; an odd number of them, so that channels meet all banks.
    const int most = p.lead_step == 0 && p.tile_columns % unit == 0 ? p.lead : unit - 1;
    const int last = most + (strips_w - 1) * all_phases_strip_columns(p.shifts);
    p.pitch = 8 * ((last / 8 + 2) | 1);
  }
  if (p.halo_rows > kMostCopied || p.pitch > kMostCopied || p.tile_columns == 0) return std::nullopt;
  const int height = geometry(problem, 0).phase_size(0), width = geometry(problem, 1).phase_size(0);
  p.tiles_h = static_cast<int>(ceil_div(height, p.tile_rows));
  p.tiles_w = static_cast<int>(ceil_div(width, p.tile_columns));
  const int64_t tiles = problem.batch * p.tiles_h * p.tiles_w;
  if (tiles > 1 << 30 || problem.groups > 1 << 20) return std::nullopt;
  p.tiles = static_cast<int>(tiles);
  const int64_t at_once = std::max<int64_t>(device.multiprocessors / problem.groups, 1);
  p.tile_blocks = static_cast<int>(ceil_div(tiles, ceil_div(tiles, at_once)));
  p.blocks = static_cast<int>(p.tile_blocks * problem.groups);
  const int64_t channel_bytes = c.source_channels * element;
  p.chunks = static_cast<int>(ceil_div(channel_bytes, kSm90RowBytes));
  p.stages = static_cast<int>(ceil_div(channel_bytes, all_phases_stage_channels(p.source)));
  p.stage_bytes = p.halo_rows * p.pitch * all_phases_stage_channels(p.source);
  p.slot_bytes = static_cast<int>(round_up(p.stage_bytes, has_planes(p.source) ? 128 : 512));
  const int64_t weights = int64_t{p.chunks} * p.shifts * p.shifts * p.operand_rows * kSm90RowBytes;
  const int64_t taps = c.result_channels * problem.axis[0].kernel * problem.axis[1].kernel;
  const int64_t tables = round_up(16 * p.operand_rows + 4 * taps, 128);
  const int64_t staged = 2 * int64_t{kAllPhasesStrips / strips_w} * p.staged_bytes;
  const int64_t room = device.shared_bytes_per_block - 1024 - weights - tables - staged;
  p.slots = static_cast<int>(std::min<int64_t>(room / (p.slot_bytes + 16), kAllPhasesMostSlots));
  if (room < 0 || p.slots < 2 || taps * c.source_channels > 1 << 30) return std::nullopt;
  p.weights_at = static_cast<int>(round_up(int64_t{p.slots} * p.slot_bytes, 1024));
  p.rows_at = static_cast<int>(p.weights_at + weights);
  p.staged_at = static_cast<int>(p.rows_at + tables);
  p.barriers_at = static_cast<int>(p.staged_at + staged);
  p.shared_bytes = p.barriers_at + 16 * p.slots;
  return p;
}

double estimate_ms(const Problem& problem, const Device& device, const AllPhasesPlan& p) {
  const int element = static_cast<int>(element_size(problem.dtype));
  const Costs& costs = element == 2 ? kCostsShort : kCostsTf32;
  const double tiles = kAllPhasesWarpgroups * all_phases_strip_tiles(p.operand_rows);
  const bool planes = has_planes(p.source);
  const double steps = static_cast<double>(p.stages) * (all_phases_stage_channels(p.source) / 32);
  const bool pairs = all_phases_pairs(problem);
  const double stored = p.copied ? (pairs ? costs.copied : costs.staged) : pairs ? costs.pair : costs.single;
  const double results = p.tile_rows / 64.0 * p.tile_columns * static_cast<double>(rows_of_operand(problem));
  const double products = steps * tiles * p.shifts * std::max(costs.product * p.shifts * p.operand_rows, costs.least) +
                          (planes ? p.stages * costs.gathered : 0) + results * stored;
  const double row = static_cast<double>(p.pitch) * element;
  const double load = static_cast<double>(p.stages) *
                      (p.stage_bytes * (1 / kBytes + (planes ? costs.row / row : 0)) +
                       (p.source == AllPhasesSource::kLines ? p.halo_rows * costs.line : 0));
  const double tile = std::max(products, load) + costs.apart * std::min(products, load);
  const auto rounds = static_cast<double>(ceil_div(p.tiles, p.tile_blocks));
  const auto waves = static_cast<double>(ceil_div(p.blocks, device.multiprocessors));
  const double block = costs.block + costs.weight * (p.rows_at - p.weights_at);
  const double memory_ms = 1e3 * static_cast<double>(problem.bytes()) / device.bandwidth;
  const double cycles = waves * (block + rounds * tile);
  const double ms = std::max(1e3 * cycles / kClock + costs.memory * memory_ms, memory_ms) + kLaunchMs;
  return beside_others(ms * (planes && element == 4 && p.tile_columns < 32 ? kSmallChannelTiles : 1));
}

}  // namespace

bool all_phases_pairs(const Problem& problem) {
  const Correlation c = correlation(problem);
  const auto& [size, stride] = c.result;
  const int phases_w = geometry(problem, 1).phases();
  const auto even = [&, &size = size, &stride = stride](int d) { return size[d] == 1 || stride[d] % 2 == 0; };
  if (!even(0) || !even(2) || (size[3] % 2 != 0 && c.result_channels % 2 != 0)) return false;
  if (stride[3] == 1) return phases_w % 2 == 0 && size[3] % 2 == 0 && even(1);
  if (stride[1] != 1) return false;
  if (c.result_channels % 2 == 0) return even(3);
  return stride[3] == c.result_channels && phases_w % 2 == 0;
}

std::string describe(const AllPhasesPlan& plan, DType) {
  std::ostringstream text;
  const char* source = plan.source == AllPhasesSource::kPixels   ? "pixels"
                       : plan.source == AllPhasesSource::kPlanes ? "planes"
                                                                 : "lines";
  text << "all phases in " << plan.operand_rows << " rows x (" << plan.tile_rows << " rows, " << plan.tile_columns
       << " columns) of " << source << ", " << plan.shifts << 'x' << plan.shifts << " shifts"
       << (plan.copied ? ", results copied" : "");
  return text.str();
}

std::optional<Plan> plan_all_phases(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const Layer layer = describe_layer(problem, device);
  if (!layer.refusal.empty()) {
    if (considered) considered->push_back({"igemm_sm90 family", 0, layer.refusal});
    return std::nullopt;
  }
  std::optional<Plan> best;
  for (int strips_w = 1; strips_w <= kAllPhasesStrips; ++strips_w) {
    if (kAllPhasesStrips % strips_w != 0) continue;
    for (const bool copied : {false, true}) {
      if (const auto plan = plan_tile(problem, device, layer, strips_w, copied)) {
        consider_plan(best, "igemm_sm90 family", *plan, 0, estimate_ms(problem, device, *plan), problem.dtype,
                      considered);
      }
    }
  }
  return best;
}

}  // namespace deconv
