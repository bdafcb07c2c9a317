// Tiles of gemm_sm80.cuh and gemm_sm90.cuh.
#include "families/col2im/planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>

#include "core/correlation.h"
#include "families/small_channel/planner.h"
#include "planner/cost_model.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kMostChannels = 16;  // a group; more fill the tiles of other families
constexpr int kMostRows = 16 * kCol2imMostRowTiles * kCol2imMultiplyWarps;  // products of a pixel in a block
constexpr int kMostPasses = 3, kMostStrips = 16, kMostDepthSteps = 4, kMostRounds = 4;

// Cycles of a multiprocessor of an H200 (tests/data/h200_pictures.json).
constexpr double kItem = 470, kLine = 60, kTap = 16;  // an adding warp: units of a kind; a unit's line of taps; a tap
constexpr double kBlock = 9000;  // until warps have weights, without packing
constexpr double kOverlap = 0.25;  // part of the shorter roles of a step that shows
constexpr double kLaunchMs = 0.004;

// Costs of a kernel's step, without adding.
struct Work {
  double multiply, produce, other;  // cycles
  double source_bytes;  // from memory or L2
  double pack;  // cycles a block to pack its weights
};

struct Layer {
  const Problem& problem;
  const Device& device;
  Correlation c;
  SmallChannelAxis h, w;
  int element, taps, height, width, phases_h, phases_w;  // element: bytes; height, width: of a phase

  Layer(const Problem& of_problem, const Device& of_device, const SmallChannelAxis& of_h, const SmallChannelAxis& of_w)
      : problem(of_problem), device(of_device), c(correlation(of_problem)), h(of_h), w(of_w) {
    element = static_cast<int>(element_size(problem.dtype));
    taps = h.geometry.kernel * w.geometry.kernel;
    height = h.geometry.phase_size(0), width = w.geometry.phase_size(0);
    phases_h = h.geometry.phases(), phases_w = w.geometry.phases();
  }

  int shifted_height() const { return height + h.shifts - 1; }
  bool columns_adjacent() const { return c.source.stride[3] == 1; }
  int64_t segments(const Col2imWalk& walk) const { return problem.batch * walk.strips * walk.segments; }
  int table_bytes() const { return 16 * (phases_h + phases_w); }

  // Without pitch, rows and ring.
  Col2imWalk walk(int channels, int columns) const {
    Col2imWalk walk;
    walk.channels = channels;
    walk.passes = static_cast<int>(c.result_channels / channels);
    walk.columns_adjacent = c.result.stride[3] == 1;
    walk.origin_h = h.origin, walk.origin_w = w.origin;
    walk.shifts_h = h.shifts, walk.shifts_w = w.shifts;
    walk.columns = columns;
    return walk;
  }

  // Sizes the ring of products; returns its bytes. Pads a product's words so that adjacent products begin `bank` banks
  // apart.
  int64_t choose_ring(Col2imWalk& walk, int bank) const {
    walk.ring_rows = 2 * walk.rows + walk.shifts_h - 1;
    walk.product_pitch = static_cast<int>(round_up(int64_t{walk.ring_rows} * walk.pitch - bank, 4 * bank) + bank);
    return (int64_t{walk.channels} * taps + 1) * walk.product_pitch * 4;
  }

  // Divides an image into segments that keep all multiprocessors busy equally long. Adjacent segments both compute the
  // rows they share. False: exceeds 32-bit indices.
  bool choose_segments(Col2imWalk& walk, int add_warps, int most_units) const {
    walk.strips = static_cast<int>(ceil_div(width, walk.columns));
    const int64_t passes = problem.groups * walk.passes, columns = problem.batch * walk.strips;
    const int64_t at_once = std::max<int64_t>(device.multiprocessors / passes, 1);
    const int64_t most = std::min<int64_t>(height, ceil_div(kMostRounds * at_once, columns));
    int64_t best = INT64_MAX;
    for (int64_t wanted = 1; wanted <= most; ++wanted) {
      const int64_t steps = ceil_div(ceil_div(height, wanted) + walk.shifts_h - 1, walk.rows);
      const int64_t count = ceil_div(height, steps * walk.rows - (walk.shifts_h - 1));
      const int64_t cost = ceil_div(columns * count, at_once) * (3 * steps + 1);  // a segment's start: 1/3 step
      if (cost >= best) continue;
      best = cost;
      walk.steps = static_cast<int>(steps);
      walk.segments = static_cast<int>(count);
      walk.segment_rows = static_cast<int>(ceil_div(height, count));
    }
    const int64_t all = segments(walk);
    walk.segment_blocks = static_cast<int>(ceil_div(all, ceil_div(all, std::min(all, at_once))));
    walk.blocks = passes * walk.segment_blocks;
    Col2imWalk less = walk;
    less.units = most_units / 2, walk.units = most_units;
    if (adding_cycles(less, add_warps) < adding_cycles(walk, add_warps)) walk.units = less.units;
    return walk.blocks <= INT32_MAX && all + walk.segment_blocks <= INT32_MAX;
  }

  // Cycles in which `add_warps` warps add up a step's results.
  double adding_cycles(const Col2imWalk& walk, int add_warps) const {
    const int vector = col2im_vector_result(problem, walk);
    const int64_t kinds = int64_t{phases_h} * phases_w * walk.channels / vector;
    const int64_t turns = ceil_div(walk.rows * ceil_div(walk.columns, 32), walk.units);
    const double lines = std::max<double>(h.geometry.kernel, phases_h) / phases_h;
    const int64_t most_taps = ceil_div(w.geometry.kernel, phases_w);  // of a line
    const auto loaded = static_cast<double>(most_taps == 3 ? 3 : round_up(most_taps, 2));
    const double item = kItem + lines * walk.units * (kLine + vector * loaded * kTap);
    return static_cast<double>(ceil_div(kinds * turns, add_warps)) * item;
  }

  double estimate_ms(const Col2imWalk& walk, const Work& work, int add_warps) const {
    const auto all_bytes = static_cast<double>(problem.bytes());
    const auto all_steps = static_cast<double>(segments(walk) * problem.groups * walk.passes * walk.steps);
    const double bandwidth = device.bandwidth / device.multiprocessors / kClock;  // bytes a cycle of a multiprocessor
    const double bring = std::max(work.produce, std::max(all_bytes / all_steps, work.source_bytes) / bandwidth);
    const double add = adding_cycles(walk, add_warps), most = std::max({work.multiply, add, bring});
    const double step = work.other + most + kOverlap * (work.multiply + add + bring - most);
    const int64_t steps = ceil_div(segments(walk), walk.segment_blocks) * walk.steps;
    const int64_t waves = ceil_div(walk.blocks, device.multiprocessors);
    const double block = kBlock + work.pack + static_cast<double>(steps) * step;
    return 1e3 * std::max(static_cast<double>(waves) * block / kClock, all_bytes / device.bandwidth) + kLaunchMs;
  }
};

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  if (problem.direction == Direction::kGradWeight) return "serves forward, and grad_input of stride 1";
  if (problem.dtype == DType::kFloat64 || problem.dtype == DType::kOther) return "takes float16, bfloat16 and float32";
  const Correlation c = correlation(problem);
  if (c.source.numel() == 0 || c.result.numel() == 0 || problem.w.numel() == 0) return "nothing to compute";
  const auto& [size, stride] = c.source;
  if ((size[2] - 1) * stride[2] + (size[3] - 1) * stride[3] > INT32_MAX) {
    return "an image this large needs 64-bit offsets";
  }
  if (c.source_channels == 1) return "one source channel leaves nothing to add up on tensor cores";
  if (c.result_channels > kMostChannels) {
    return "takes up to " + std::to_string(kMostChannels) + " result channels a group";
  }
  for (const int a : {0, 1}) {
    const AxisGeometry axis = without_idle_taps(geometry(problem, a));
    if (axis.source_step() > 1) return "serves forward, and grad_input of stride 1 and more than one pixel an axis";
    // Places beyond the result, of the last strip and of the last units, are 32-bit integers too.
    if ((round_up(axis.phase_size(0), 8) + 64) * axis.result_step() > INT32_MAX) return "a stride this long";
  }
  if (!small_channel_axis(problem, 0) || !small_channel_axis(problem, 1)) {
    return "more phases or shifts along an axis than its tables hold";
  }
  return "";
}

std::optional<Plan> refuse(const std::string& why, std::vector<Candidate>* considered) {
  if (considered) considered->push_back({"col2im family", 0, why});
  return std::nullopt;
}

// Calls try_channels(channels of a block, their products) with one to three passes. Returns the best plan, or refuses.
template <class Try>
std::optional<Plan> search(const Layer& layer, const std::optional<Plan>& best, std::vector<Candidate>* considered,
                           const Try& try_channels) {
  for (int passes = 1; passes <= kMostPasses && passes <= layer.c.result_channels; ++passes) {
    const int channels = static_cast<int>(layer.c.result_channels / passes);
    if (layer.c.result_channels % passes == 0) try_channels(channels, channels * layer.taps);
  }
  return best ? best
              : refuse("no tile fits: its weights, products and stages of the source in shared memory", considered);
}

// --- gemm_sm80.cuh ---

class Sm80 {
 public:
  explicit Sm80(const Layer& layer)
      : layer_(layer),
        unit_(kCol2imUnitBytes / layer.element),
        copies_channels_(packs_along_channels(layer.c.source, layer.c.source_channels, unit_)) {}

  // With as many rows a step as fit.
  std::optional<Col2imConvPlan> plan(int row_tiles, int channels, int columns, int depth_steps) const {
    Col2imConvPlan p;
    static_cast<Col2imWalk&>(p) = layer_.walk(channels, columns);
    p.row_tiles = row_tiles;
    while (16 * p.all_row_tiles() < channels * layer_.taps) p.warps_m *= 2;
    if (p.warps_m > kCol2imMultiplyWarps) return std::nullopt;
    p.parts = layer_.problem.dtype == DType::kFloat32 && !layer_.problem.allow_tf32 ? 2 : 1;
    p.column_bytes = column_bytes();
    const int piece = std::max(p.column_bytes / layer_.element, 1);
    p.lead = (p.origin_w % piece + piece) % piece;
    p.pitch = static_cast<int>(round_up(p.lead + columns + p.shifts_w - 1, std::max(piece, 2)));
    p.all_depth_steps = static_cast<int>(ceil_div(layer_.c.source_channels, 2 * unit_));
    p.depth_steps = depth_steps;
    p.chunks = static_cast<int>(ceil_div(p.all_depth_steps, depth_steps));
    p.rows = std::min(p.pixels() / p.pitch, layer_.shifted_height());
    while (p.rows > 0 && !choose_memory(p)) --p.rows;
    if (p.rows == 0 || !layer_.choose_segments(p, col2im_add_warps(p.parts), kCol2imMostUnits)) return std::nullopt;
    return p;
  }

  // Cycles on an H200, from runs with parts of the kernel left out.
  double estimate_ms(const Col2imConvPlan& p) const {
    constexpr double kDepth = 90, kRowTile = 88, kRowTile16 = 56, kSplitRowTile = 240;  // a step of K
    constexpr double kCopy = 12, kGather = 130;  // for 32 lanes: copies; loads of an element each
    constexpr double kStep = 250, kStage = 150, kPackByte = 0.1;
    const double row_tile = p.parts == 2 ? kSplitRowTile : layer_.element == 2 ? kRowTile16 : kRowTile;
    const int staged = p.column_bytes > 0 ? p.pixels() : p.rows * p.pitch, depth = 2 * unit_ * p.all_depth_steps;
    const int elements = p.column_bytes > 0 ? p.column_bytes / layer_.element : copies_channels_ ? unit_ : 1;
    const auto copies = static_cast<double>(ceil_div(staged * depth, 32 * elements));
    const double produce = copies * (elements > 1 || p.column_bytes > 0 ? kCopy : kGather);
    const int line = p.pitch * layer_.element + (p.column_bytes > 0 ? kSectorBytes : 0);
    const auto source_bytes = static_cast<double>(p.rows * layer_.c.source_channels * line);
    const double multiply = p.all_depth_steps * (kDepth + p.row_tiles * row_tile);
    const Work work{multiply, produce, kStep + p.chunks * kStage, source_bytes, p.source_at * kPackByte};
    return layer_.estimate_ms(p, work, col2im_add_warps(p.parts));
  }

 private:
  // Bytes of one copy of adjacent columns. 0: no such copies, or channels are adjacent.
  int column_bytes() const {
    const auto& [size, stride] = layer_.c.source;
    if (copies_channels_ || stride[3] != 1) return 0;
    for (const int bytes : {16, 4}) {
      const int64_t pack = bytes / layer_.element;
      if ((size[3] | stride[0] | stride[1] | stride[2]) % pack == 0) return bytes;
    }
    return 0;
  }

  bool choose_memory(Col2imConvPlan& p) const {
    const int64_t products = layer_.choose_ring(p, 8);
    const int64_t weights = int64_t{p.all_depth_steps} * p.parts * p.all_row_tiles() * 512;
    const int64_t tables = kCol2imBarrierBytes + layer_.table_bytes() + 4 * p.pixels();
    const int64_t slot = int64_t{p.depth_steps} * 2 * kCol2imUnitBytes * (p.pixels() + (p.column_bytes > 0 ? 8 : 0));
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

  const Layer& layer_;
  int unit_;
  bool copies_channels_;
};

// --- gemm_sm90.cuh ---

class Sm90 {
 public:
  explicit Sm90(const Layer& layer) : layer_(layer) {}

  // Strips of an NCHW source begin at multiples of this many columns.
  int column_unit() const { return layer_.columns_adjacent() ? 16 / layer_.element : 1; }

  // rows: at most.
  std::optional<Col2imSm90Plan> plan(int operand_rows, int channels, int columns, int rows) const {
    Col2imSm90Plan p;
    static_cast<Col2imWalk&>(p) = layer_.walk(channels, columns);
    p.operand_rows = operand_rows;
    p.planes = layer_.columns_adjacent();
    p.pitch = p.staged_pitch = columns + p.shifts_w - 1;
    if (p.planes) {  // an odd number of octets, so that channels meet all banks
      p.staged_lead = p.origin_w - floor_div(p.origin_w, column_unit()) * column_unit();
      p.staged_pitch = 8 * static_cast<int>(ceil_div(p.staged_lead + p.pitch, 8) | 1);
    }
    if (p.staged_pitch > kMostCopied) return std::nullopt;
    p.chunks = static_cast<int>(ceil_div(layer_.c.source_channels * layer_.element, kCol2imChunkBytes));
    p.rows = std::min({rows, most_pixels(p) / p.staged_pitch, layer_.shifted_height()});
    while (p.rows > 0 && !choose_memory(p)) --p.rows;
    if (p.rows == 0 || !layer_.choose_segments(p, kCol2imSm90AddWarps, kCol2imSm90MostUnits)) return std::nullopt;
    return p;
  }

  double estimate_ms(const Col2imSm90Plan& p) const {
    // Cycles for 2 rows of operand B and 64 pixels: products with 32 bytes of channels; storing the sums.
    const int products = p.chunks * (kCol2imChunkBytes / 32), kept = layer_.element == 2 ? 3 : 1;
    constexpr double kCopiedBytes = 50, kShortRow = 96;  // bytes a cycle; bytes that a row of columns costs more
    constexpr double kStep = 950, kPackByte = 0.4;
    const double multiply = most_pixels(p) / 64 * p.operand_rows / 2 * (products + kept);
    const double row = p.planes ? 1 + kShortRow / (p.staged_pitch * layer_.element) : 1;
    const double produce = p.chunks * p.stage_bytes() * row / kCopiedBytes;
    const Work work{multiply, produce, kStep, 0, p.chunks * kCol2imChunkBytes * p.operand_rows * kPackByte};
    return beside_others(layer_.estimate_ms(p, work, kCol2imSm90AddWarps));
  }

 private:
  static int most_pixels(const Col2imSm90Plan& p) { return 128 * col2im_sm90_tiles(p.operand_rows); }

  bool choose_memory(Col2imSm90Plan& p) const {
    const int64_t products = layer_.choose_ring(p, 4);
    const int64_t weights = int64_t{p.chunks} * p.operand_rows * kCol2imChunkBytes;
    const int64_t tables = 32 + layer_.table_bytes();
    p.slot_bytes = static_cast<int>(round_up(p.stage_bytes(), p.planes ? 128 : 1024));
    // wgmma may read a tile of pixels beyond the last stage.
    const int64_t read = most_pixels(p) * kCol2imChunkBytes;
    const int64_t beyond = p.planes ? 0 : std::max<int64_t>(read - p.slot_bytes - weights - products, 0);
    const int64_t room = layer_.device.shared_bytes_per_block - 1024 - weights - products - tables - beyond;
    p.slots = static_cast<int>(std::min<int64_t>(room / (p.slot_bytes + 16), kCol2imSm90MostSlots));
    if (room < 0 || p.slots < 2) return false;
    p.weights_at = static_cast<int>(round_up(int64_t{p.slots} * p.slot_bytes, 1024));
    p.products_at = static_cast<int>(p.weights_at + weights);
    p.tables_at = static_cast<int>(p.products_at + products);
    p.shared_bytes = static_cast<int>(p.tables_at + tables + 16 * p.slots + beyond);
    return true;
  }

  const Layer& layer_;
};

std::string describe_tile(const Col2imWalk& walk, const std::string& rows) {
  return std::to_string(walk.channels) + " channels with all taps" + rows + " x (" + std::to_string(walk.rows) +
         " rows, " + std::to_string(walk.columns) + " columns), ";
}

}  // namespace

std::string describe(const Col2imConvPlan& plan, DType) {
  std::ostringstream text;
  text << describe_tile(plan, "") << plan.warps_n() << 'x' << plan.warps_m << " warps of " << 16 * plan.row_tiles
       << " rows, " << plan.slots << " stages of " << plan.depth_steps
       << (plan.column_bytes > 0 ? " depths of planes" : " depths") << (plan.parts == 2 ? ", three TF32 products" : "");
  return text.str();
}

std::string describe(const Col2imSm90Plan& plan, DType) {
  std::ostringstream text;
  text << describe_tile(plan, " in " + std::to_string(plan.operand_rows) + " rows") << plan.slots << " stages of "
       << (plan.planes ? "planes" : "pixels") << " by tensor copies, " << plan.units << " units at once";
  return text.str();
}

std::optional<Plan> plan_col2im_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  std::string why = refusal(problem, device);
  if (why.empty() && problem.axis[0].kernel * problem.axis[1].kernel > kMostRows) {
    why = "takes up to " + std::to_string(kMostRows) + " taps";
  }
  if (!why.empty()) return refuse(why, considered);
  const Layer layer(problem, device, *small_channel_axis(problem, 0), *small_channel_axis(problem, 1));
  const Sm80 sm80(layer);
  std::set<int> widths;
  for (int strips = 1; strips <= kMostStrips; ++strips) {
    widths.insert(static_cast<int>(round_up(ceil_div(layer.width, strips), 8)));
  }
  std::optional<Plan> best;
  return search(layer, best, considered, [&](int channels, int products) {
    for (int row_tiles = 1; row_tiles <= std::min<int64_t>(kCol2imMostRowTiles, ceil_div(products, 16)); ++row_tiles) {
      for (const int columns : widths) {
        for (int depth_steps = 1; depth_steps <= kMostDepthSteps; depth_steps *= 2) {
          const auto plan = sm80.plan(row_tiles, channels, columns, depth_steps);
          if (plan) consider_plan(best, "col2im family", *plan, 0, sm80.estimate_ms(*plan), problem.dtype, considered);
        }
      }
    }
  });
}

std::optional<Plan> plan_col2im_sm90(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  std::string why = device.has_wgmma ? refusal(problem, device) : "needs a Hopper GPU and a build for sm_90a";
  if (why.empty() && problem.dtype == DType::kFloat32 && !problem.allow_tf32) why = "takes no strict float32";
  const Tensor4& source = correlation(problem).source;
  if (why.empty() && !takes_halo_copies(problem, source, source.stride[3] == 1)) {
    why = "takes sources whose rows, or pixels, begin at multiples of 16 bytes";
  }
  if (!why.empty()) return refuse(why, considered);
  const Layer layer(problem, device, *small_channel_axis(problem, 0), *small_channel_axis(problem, 1));
  const Sm90 sm90(layer);
  std::set<int> widths;
  for (int strips = 1; strips <= kMostStrips; ++strips) {
    const int wanted = static_cast<int>(round_up(ceil_div(layer.width, strips), sm90.column_unit()));
    widths.insert(wanted);
    if (round_up(wanted, 32) < layer.width) widths.insert(static_cast<int>(round_up(wanted, 32)));
  }
  std::optional<Plan> best;
  return search(layer, best, considered, [&](int channels, int products) {
    const auto* const operand_rows = std::lower_bound(std::begin(kCol2imOperandRows), std::end(kCol2imOperandRows),
                                                      products);
    if (operand_rows == std::end(kCol2imOperandRows)) return;
    for (const int columns : widths) {
      for (int rows = kMostCopied; rows > 0;) {
        const auto plan = sm90.plan(*operand_rows, channels, columns, rows);
        if (!plan) break;
        rows = std::min(rows - 1, plan->rows / 2);
        consider_plan(best, "col2im family", *plan, 0, sm90.estimate_ms(*plan), problem.dtype, considered);
      }
    }
  });
}

int col2im_vector_result(const Problem& problem, const Col2imWalk& walk) {
  const auto& [size, stride] = correlation(problem).result;
  const AxisGeometry w = without_idle_taps(geometry(problem, 1));
  for (int count = 4; count > 1; count /= 2) {
    const auto fits = [count](int64_t number) { return number % count == 0; };
    const bool columns = (size[1] == 1 || fits(stride[1])) && fits(size[3]) && fits(w.phases());
    const bool channels = stride[1] == 1 && fits(walk.channels) && fits(stride[3]);
    const bool pixels = stride[1] == 1 && stride[3] == walk.channels && fits(w.phases() * walk.channels) &&
                        fits(size[3] * walk.channels);
    if (fits(stride[0]) && fits(stride[2]) && (walk.columns_adjacent ? columns : channels || pixels)) return count;
  }
  return 1;
}

}  // namespace deconv
