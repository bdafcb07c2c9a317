// Tiles of the col2im family on Hopper (kernels/col2im/hopper.cuh).
#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>

#include "families/col2im/planner.h"
#include "planner/cost_model.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kMostStrips = 16;

// Cycles of a multiprocessor at kClock, fitted to 4,853 timings of 34 layers on an H200.
struct Costs {
  double product;    // of 64 pixels and 32 bytes of channels, for each row of operand B
  double kept;       // of 64 pixels, for each row of operand B
  double bytes;      // that copies bring in a cycle, at most
  double short_row;  // of a copy's row of columns, as if it were so many bytes longer
  double step;       // whatever is done in it
  double apart;      // of the shorter ones of a step's kinds of work: added
  double block;      // until its weights are there
  double weight;     // a byte of them
  double memory;     // part of the time for moving all tensors that nothing hides
  double launch_ms;
};
constexpr Costs kCostsShort{0.467, 1.48, 58, 99, 742, 0.23, 8600, 0.5, 0.128, 0.004};
constexpr Costs kCostsTf32{0.57, 0.44, 43, 93, 942, 0.21, 10000, 0.256, 0.013, 0.004};

class Candidates {
 public:
  explicit Candidates(const Col2imLayer& layer) : layer_(layer) {}

  // Strips of planes begin at multiples of so many columns.
  int column_unit() const { return layer_.c.source.stride[3] == 1 ? 16 / layer_.element : 1; }

  // rows: at most.
  std::optional<Col2imHopperPlan> plan(int operand_rows, int channels, int columns, int rows) const {
    Col2imHopperPlan p;
    static_cast<Col2imWalk&>(p) = layer_.walk(channels, columns);
    p.operand_rows = operand_rows;
    p.planes = layer_.c.source.stride[3] == 1;
    p.pitch = p.staged_pitch = columns + p.shifts_w - 1;
    if (p.planes) {  // an odd number of octets, so that channels meet all banks
      p.staged_lead = p.origin_w - floor_div(p.origin_w, column_unit()) * column_unit();
      p.staged_pitch = 8 * static_cast<int>(ceil_div(p.staged_lead + p.pitch, 8) | 1);
    }
    p.chunks = static_cast<int>(ceil_div(layer_.c.source_channels * layer_.element, kCol2imChunkBytes));
    const int fit = std::min(most_pixels(p) / p.staged_pitch, layer_.h.geometry.phase_size(0) + p.shifts_h - 1);
    p.rows = std::min(rows, fit);
    if (p.staged_pitch > kMostCopied) return std::nullopt;
    while (p.rows > 0 && !choose_memory(p)) --p.rows;
    if (p.rows == 0 || !layer_.choose_segments(p, kCol2imHopperAddWarps, kCol2imHopperMostUnits)) return std::nullopt;
    return p;
  }

  double estimate_ms(const Col2imHopperPlan& p) const {
    const Costs& costs = layer_.element == 2 ? kCostsShort : kCostsTf32;
    const double tiles = 2.0 * col2im_hopper_tiles(p.operand_rows), products = p.chunks * (kCol2imChunkBytes / 32);
    const double multiply = tiles * p.operand_rows * (products * costs.product + costs.kept);
    const double add = layer_.adding_cycles(p, kCol2imHopperAddWarps);
    const double staged = static_cast<double>(p.chunks) * p.stage_bytes();
    const double bring = staged * (1 + (p.planes ? costs.short_row / (p.staged_pitch * layer_.element) : 0)) /
                         costs.bytes;
    const double bandwidth = layer_.device.bandwidth / layer_.device.multiprocessors / kClock;  // bytes a cycle
    const double memory = layer_.bytes_of_segment(p) / p.steps / bandwidth;

    const double most = std::max({multiply, add, bring, memory}), sum = multiply + add + std::max(bring, memory);
    const double step = costs.step + most + costs.apart * (sum - most);
    const double segments = static_cast<double>(ceil_div(layer_.segments(p), p.segment_blocks));
    const double waves = static_cast<double>(ceil_div(p.blocks, layer_.device.multiprocessors));
    const double block = costs.block + costs.weight * p.chunks * kCol2imChunkBytes * p.operand_rows;
    const double memory_ms = 1e3 * static_cast<double>(layer_.problem.bytes()) / layer_.device.bandwidth;
    const double ms = 1e3 * waves * (block + segments * p.steps * step) / kClock + costs.memory * memory_ms;
    return beside_others(std::max(ms, memory_ms) + costs.launch_ms);
  }

 private:
  static int most_pixels(const Col2imHopperPlan& p) { return 128 * col2im_hopper_tiles(p.operand_rows); }

  bool choose_memory(Col2imHopperPlan& p) const {
    p.ring_rows = 2 * p.rows + p.shifts_h - 1;
    p.product_pitch = static_cast<int>(round_up(int64_t{p.ring_rows} * p.pitch - 4, 16) + 4);  // rows in all banks
    p.slot_bytes = static_cast<int>(round_up(p.stage_bytes(), p.planes ? 128 : 1024));
    const int64_t weights = int64_t{p.chunks} * p.operand_rows * kCol2imChunkBytes;
    const int64_t products = (int64_t{p.channels} * layer_.taps + 1) * p.product_pitch * 4;
    const int64_t tables = 32 + 16 * (layer_.h.geometry.phases() + layer_.w.geometry.phases());
    // A tile of pixels as tensor cores read it may go beyond the last stage.
    const int64_t read = most_pixels(p) * kCol2imChunkBytes;
    const int64_t beyond = p.planes ? 0 : std::max<int64_t>(read - p.slot_bytes - weights - products, 0);
    const int64_t room = layer_.device.shared_bytes_per_block - 1024 - weights - products - tables - beyond;
    p.slots = static_cast<int>(std::min<int64_t>(room / (p.slot_bytes + 16), kCol2imHopperMostSlots));
    if (room < 0 || p.slots < 2) return false;
    p.weights_at = static_cast<int>(round_up(int64_t{p.slots} * p.slot_bytes, 1024));
    p.products_at = static_cast<int>(p.weights_at + weights);
    p.tables_at = static_cast<int>(p.products_at + products);
    p.shared_bytes = static_cast<int>(p.tables_at + tables + 16 * p.slots + beyond);
    return true;
  }

  const Col2imLayer& layer_;
};

}  // namespace

std::string describe(const Col2imHopperPlan& plan, DType) {
  std::ostringstream text;
  text << plan.channels << " channels with all taps in " << plan.operand_rows << " rows x (" << plan.rows << " rows, "
       << plan.columns << " columns), " << plan.slots << " stages of " << (plan.planes ? "planes" : "pixels")
       << " by tensor copies, " << plan.units << " units at once";
  return text.str();
}

std::optional<Plan> plan_col2im_hopper(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) -> std::optional<Plan> {
    if (considered) considered->push_back({"col2im family, on Hopper", 0, why});
    return std::nullopt;
  };
  if (!device.has_wgmma) return refuse("needs a Hopper GPU and a build for sm_90a");
  std::string why;
  const std::optional<Col2imLayer> layer = Col2imLayer::describe(problem, device, why);
  if (!layer) return refuse(why);
  if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) return refuse("takes no strict float32");
  if (!takes_halo_copies(problem, layer->c.source, layer->c.source.stride[3] == 1)) {
    return refuse("takes sources whose rows, or pixels, begin at multiples of 16 bytes");
  }
  const Candidates candidates(*layer);
  const int64_t all_channels = layer->c.result_channels;
  const int width = layer->w.geometry.phase_size(0);
  std::optional<Plan> best;
  const auto consider = [&](int operand_rows, int channels, int columns) {
    int before = 0;
    for (int rows = kMostCopied; rows > 0; rows = std::min(rows - 1, before / 2)) {
      const std::optional<Col2imHopperPlan> plan = candidates.plan(operand_rows, channels, columns, rows);
      if (!plan) return;
      before = plan->rows;
      consider_plan(best, "col2im family", *plan, 0, candidates.estimate_ms(*plan), problem.dtype, considered);
    }
  };
  for (int passes = 1; passes <= Col2imLayer::kMostPasses && passes <= all_channels; ++passes) {
    if (all_channels % passes != 0) continue;
    const int64_t rows = all_channels / passes * layer->taps;
    const auto* const operand_rows = std::lower_bound(std::begin(kCol2imOperandRows), std::end(kCol2imOperandRows),
                                                      rows);
    if (operand_rows == std::end(kCol2imOperandRows)) continue;
    std::set<int> columns;
    for (int strips = 1; strips <= kMostStrips; ++strips) {
      const int wanted = static_cast<int>(round_up(ceil_div(width, strips), candidates.column_unit()));
      columns.insert(wanted);
      if (round_up(wanted, 32) < width) columns.insert(static_cast<int>(round_up(wanted, 32)));
    }
    for (const int one : columns) consider(*operand_rows, static_cast<int>(all_channels / passes), one);
  }
  if (!best) return refuse("no tile fits: its weights, products and stages of the source in shared memory");
  return best;
}

}  // namespace deconv
