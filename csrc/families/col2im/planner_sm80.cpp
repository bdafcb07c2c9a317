// Tiles of the col2im family (kernels/col2im/conv.cuh).
#include "families/col2im/planner.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr int kMostRows = 16 * kCol2imMostRowTiles * kCol2imMultiplyWarps;  // products of a pixel in one block
constexpr int kMostStrips = 16, kMostDepthSteps = 4;

// Cycles of a multiprocessor, estimated from the kernel with parts left out, on an H200.
constexpr double kDepth = 90, kRowTile = 88, kRowTile16 = 56, kSplitRowTile = 240;  // of one step of the depth
constexpr double kItem = 300, kTap = 20;         // of an adding warp: 32 or 64 columns of neighbours, a tap of those
constexpr double kCopy = 12, kGather = 130;      // of a copy of 32 lanes, of as many loads
constexpr double kStep = 250, kStage = 150;      // whatever is done in it
constexpr double kApart = 0.5;                   // of the shorter ones of a step's kinds of work: added
constexpr double kBlock = 4500, kPackWord = 0.35;
constexpr double kCache = 1.08;                  // bandwidth of what blocks bring, of memory's
constexpr double kLaunchMs = 0.0036;

class Candidates {
 public:
  explicit Candidates(const Col2imLayer& layer)
      : layer_(layer), c_(layer.c), element_(layer.element), unit_(kCol2imUnitBytes / layer.element) {}

  // Bytes of adjacent columns that one copy may bring; 0: there are no such copies, or channels are adjacent.
  int column_bytes() const {
    if (copies_channels()) return 0;
    const auto& [size, stride] = c_.source;
    for (const int bytes : {16, 4}) {
      const auto fits = [pack = bytes / element_](int64_t number) { return number % pack == 0; };
      if (stride[3] == 1 && fits(size[3]) && fits(stride[0]) && fits(stride[1]) && fits(stride[2])) return bytes;
    }
    return 0;
  }

  // With as many rows a step as fit.
  std::optional<Col2imConvPlan> plan(int row_tiles, int channels, int columns, int depth_steps) const {
    Col2imConvPlan p;
    static_cast<Col2imWalk&>(p) = layer_.walk(channels, columns);
    p.row_tiles = row_tiles;
    while (16 * p.all_row_tiles() < channels * layer_.taps) p.warps_m *= 2;
    if (p.warps_m > kCol2imMultiplyWarps) return std::nullopt;
    p.parts = layer_.problem.dtype == DType::kFloat32 && !layer_.problem.allow_tf32 ? 2 : 1;
    p.column_bytes = column_bytes();
    const int piece = std::max(p.column_bytes / element_, 1);
    p.lead = (p.origin_w % piece + piece) % piece;
    p.pitch = static_cast<int>(round_up(p.lead + columns + p.shifts_w - 1, std::max(piece, 2)));
    p.all_depth_steps = static_cast<int>(ceil_div(c_.source_channels, 2 * unit_));
    p.depth_steps = depth_steps;
    p.chunks = static_cast<int>(ceil_div(p.all_depth_steps, depth_steps));
    p.rows = std::min(p.pixels() / p.pitch, layer_.h.geometry.phase_size(0) + p.shifts_h - 1);
    while (p.rows > 0 && !choose_memory(p)) --p.rows;
    if (p.rows == 0 || !layer_.choose_segments(p, col2im_add_warps(p.parts), kCol2imMostUnits)) return std::nullopt;
    return p;
  }

  double estimate_ms(const Col2imConvPlan& p) const {
    const double row_tile = p.parts == 2 ? kSplitRowTile : element_ == 2 ? kRowTile16 : kRowTile;
    const double multiply = p.all_depth_steps * (kDepth + p.row_tiles * row_tile);

    const int vector = col2im_vector_result(layer_.problem, p), columns = p.columns > 32 ? 64 : 32;
    const int phases_h = layer_.h.geometry.phases(), phases_w = layer_.w.geometry.phases();
    const double kinds = static_cast<double>(phases_h) * phases_w * p.channels / vector;
    const double items = std::ceil(kinds * p.rows * ceil_div(p.columns, columns) / col2im_add_warps(p.parts));
    const double taps = vector * (columns / 32) * (1 + (layer_.taps - 1.0) / (phases_h * phases_w));
    const double add = items * (kItem + kTap * taps);

    const bool copies = p.column_bytes > 0 || copies_channels();
    const double staged = p.column_bytes > 0 ? p.pixels() : p.rows * p.pitch;
    const double bytes = staged * 2 * unit_ * p.all_depth_steps * element_;
    const double bring = copies ? kCopy * bytes / (32.0 * (p.column_bytes == 4 ? 4 : 16))
                                : kGather * bytes / (32.0 * element_);
    const double bandwidth = layer_.device.bandwidth / layer_.device.multiprocessors / kClock;  // bytes a cycle
    const double line = static_cast<double>(p.pitch) * element_ + (p.column_bytes > 0 ? 32 : 0);  // whole sectors
    const double brought = p.rows * static_cast<double>(c_.source_channels) * line;
    const double memory = std::max(brought / kCache, layer_.bytes_of_segment(p) / p.steps) / bandwidth;

    const double most = std::max({multiply, add, bring, memory}), sum = multiply + add + std::max(bring, memory);
    const double step = kStep + p.chunks * kStage + most + kApart * (sum - most);
    const double segments = static_cast<double>(ceil_div(layer_.segments(p), p.segment_blocks));
    const double waves = static_cast<double>(ceil_div(p.blocks, layer_.device.multiprocessors));
    const double pack = kBlock + p.source_at / 4.0 * kPackWord;
    return 1e3 * waves * (pack + segments * p.steps * step) / kClock + kLaunchMs;
  }

 private:
  bool copies_channels() const { return packs_along_channels(c_.source, c_.source_channels, unit_); }

  bool choose_memory(Col2imConvPlan& p) const {
    p.ring_rows = 2 * p.rows + p.shifts_h - 1;
    p.product_pitch = static_cast<int>(round_up(int64_t{p.ring_rows} * p.pitch - 8, 32) + 8);
    const int64_t weights = int64_t{p.all_depth_steps} * p.parts * p.all_row_tiles() * 512;
    const int64_t products = (int64_t{p.channels} * layer_.taps + 1) * p.product_pitch * 4;
    const int64_t tables = kCol2imBarrierBytes + 16 * (layer_.h.geometry.phases() + layer_.w.geometry.phases()) +
                           4 * p.pixels();
    const int64_t slot = int64_t{p.depth_steps} * 2 * unit_ * element_ * (p.pixels() + (p.column_bytes > 0 ? 8 : 0));
    const int64_t room = layer_.device.shared_bytes_per_block - weights - products - tables;
    p.slots = static_cast<int>(std::min<int64_t>(room / slot, kCol2imMostSlots));
    if (room < 0 || p.slots < 2) return false;
    p.slot_bytes = static_cast<int>(slot);
    p.source_at = static_cast<int>(weights);
    p.products_at = static_cast<int>(weights + p.slots * slot);
    p.tables_at = static_cast<int>(p.products_at + products);
    p.shared_bytes = static_cast<int>(p.tables_at + tables);
    return true;
  }

  const Col2imLayer& layer_;
  const Correlation& c_;
  int element_, unit_;
};

}  // namespace

std::string describe(const Col2imConvPlan& plan, DType) {
  std::ostringstream text;
  text << plan.channels << " channels with all taps x (" << plan.rows << " rows, " << plan.columns << " columns), "
       << plan.warps_n() << 'x' << plan.warps_m << " warps of " << 16 * plan.row_tiles << " rows, " << plan.slots
       << " stages of " << plan.depth_steps << (plan.column_bytes > 0 ? " depths of planes" : " depths")
       << (plan.parts == 2 ? ", three TF32 products" : "");
  return text.str();
}

std::optional<Plan> plan_col2im_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) -> std::optional<Plan> {
    if (considered) considered->push_back({"col2im family", 0, why});
    return std::nullopt;
  };
  std::string why;
  const std::optional<Col2imLayer> layer = Col2imLayer::describe(problem, device, why);
  if (!layer) return refuse(why);
  if (layer->taps > kMostRows) return refuse("takes up to " + std::to_string(kMostRows) + " taps");
  const Candidates candidates(*layer);
  const int64_t all_channels = layer->c.result_channels;
  const int width = layer->w.geometry.phase_size(0);
  std::optional<Plan> best;
  const auto consider = [&](int row_tiles, int channels, int columns, int depth_steps) {
    const std::optional<Col2imConvPlan> plan = candidates.plan(row_tiles, channels, columns, depth_steps);
    if (!plan) return;
    const double ms = candidates.estimate_ms(*plan);
    consider_plan(best, "col2im family", *plan, 0, ms, problem.dtype, considered);
  };
  for (int passes = 1; passes <= Col2imLayer::kMostPasses && passes <= all_channels; ++passes) {
    const int channels = static_cast<int>(all_channels / passes);
    if (all_channels % passes != 0 || channels * layer->taps > kMostRows) continue;
    for (int row_tiles = 1; row_tiles <= kCol2imMostRowTiles; ++row_tiles) {
      if (row_tiles > 1 && channels * layer->taps <= 16 * (row_tiles - 1)) continue;
      int before = 0;
      for (int strips = 1; strips <= kMostStrips; ++strips) {
        const int columns = static_cast<int>(round_up(ceil_div(width, strips), 8));
        if (columns == before) continue;
        before = columns;
        for (int depth_steps = 1; depth_steps <= kMostDepthSteps; depth_steps *= 2) {
          consider(row_tiles, channels, columns, depth_steps);
        }
      }
    }
  }
  if (!best) return refuse("no tile fits: its weights, products and stages of the source in shared memory");
  return best;
}

}  // namespace deconv
