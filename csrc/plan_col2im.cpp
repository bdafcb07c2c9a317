// Tiles of the col2im family (kernels/col2im/conv.cuh).
#include "plan_col2im.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "correlation.h"
#include "plan_arithmetic.h"
#include "plan_narrow.h"

namespace deconv {
namespace {

constexpr int kMostRows = 16 * kCol2imMostRowTiles * kCol2imMultiplyWarps;  // products of a pixel in one block
constexpr int64_t kMostChannels = 16;  // more fill the tiles of other families
constexpr int64_t kMostRounds = 4;     // of all multiprocessors, up to which more segments are tried
constexpr double kSegmentSteps = 0.3;  // what a segment costs besides, in steps
constexpr int kMostPasses = 3, kMostStrips = 16, kMostDepthSteps = 4;

// Cycles of a multiprocessor, estimated from the kernel with parts left out, on an H200 (docs/performance_notes.md).
constexpr double kDepth = 90, kRowTile = 88, kRowTile16 = 56, kSplitRowTile = 240;  // of one step of the depth
constexpr double kItem = 300, kTap = 20;         // of an adding warp: 32 or 64 columns of neighbours, a tap of those
constexpr double kCopy = 12, kGather = 130;      // of a copy of 32 lanes, of as many loads
constexpr double kStep = 250, kStage = 150;      // whatever is done in it
constexpr double kApart = 0.5;                   // of the shorter ones of a step's kinds of work: added
constexpr double kBlock = 4500, kPackWord = 0.35;
constexpr double kCache = 1.08;                  // bandwidth of what blocks bring, of memory's
constexpr double kLaunchMs = 0.0036;

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  if (problem.direction == Direction::kGradWeight) return "serves forward, and grad_input of stride 1";
  if (problem.dtype == DType::kFloat64 || problem.dtype == DType::kOther) return "takes float16, bfloat16 and float32";
  const Correlation c = correlation(problem);
  if (c.source.numel() == 0 || c.result.numel() == 0 || problem.w.numel() == 0) return "nothing to compute";
  const auto& [size, stride] = c.source;
  const int64_t reach = (size[2] - 1) * stride[2] + (size[3] - 1) * stride[3];
  if (reach > INT32_MAX) return "an image this large needs 64-bit offsets";
  if (c.source_channels == 1) return "one source channel leaves nothing to add up on tensor cores";
  return "";
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device, const NarrowAxis& h, const NarrowAxis& w)
      : problem_(problem),
        device_(device),
        c_(correlation(problem)),
        h_(h),
        w_(w),
        element_(static_cast<int>(element_size(problem.dtype))),
        unit_(kCol2imUnitBytes / element_),
        taps_(static_cast<int>(problem.axis[0].kernel * problem.axis[1].kernel)) {}

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
    p.row_tiles = row_tiles;
    while (16 * p.all_row_tiles() < channels * taps_) p.warps_m *= 2;
    if (p.warps_m > kCol2imMultiplyWarps) return std::nullopt;
    p.parts = problem_.dtype == DType::kFloat32 && !problem_.allow_tf32 ? 2 : 1;
    p.channels = channels;
    p.passes = static_cast<int>(c_.result_channels / channels);
    p.column_bytes = column_bytes();
    p.columns_adjacent = c_.result.stride[3] == 1;
    p.origin_h = h_.origin, p.origin_w = w_.origin;
    p.shifts_h = h_.shifts, p.shifts_w = w_.shifts;
    p.columns = columns;
    const int piece = std::max(p.column_bytes / element_, 1);
    p.lead = (p.origin_w % piece + piece) % piece;
    p.pitch = static_cast<int>(round_up(p.lead + columns + p.shifts_w - 1, std::max(piece, 2)));
    p.all_depth_steps = static_cast<int>(ceil_div(c_.source_channels, 2 * unit_));
    p.depth_steps = depth_steps;
    p.chunks = static_cast<int>(ceil_div(p.all_depth_steps, depth_steps));
    p.rows = std::min(p.pixels() / p.pitch, h_.geometry.phase_size(0) + p.shifts_h - 1);
    while (p.rows > 0 && !choose_memory(p)) --p.rows;
    if (p.rows == 0) return std::nullopt;
    choose_segments(p);
    return p;
  }

  double estimate_ms(const Col2imConvPlan& p) const {
    const double row_tile = p.parts == 2 ? kSplitRowTile : element_ == 2 ? kRowTile16 : kRowTile;
    const double multiply = p.all_depth_steps * (kDepth + p.row_tiles * row_tile);

    const int vector = col2im_vector_result(problem_, p), columns = p.columns > 32 ? 64 : 32;
    const int phases_h = h_.geometry.phases(), phases_w = w_.geometry.phases();
    const double kinds = static_cast<double>(phases_h) * phases_w * p.channels / vector;
    const double items = std::ceil(kinds * p.rows * ceil_div(p.columns, columns) / col2im_add_warps(p.parts));
    const double taps = vector * (columns / 32) * (1 + (taps_ - 1.0) / (phases_h * phases_w));
    const double add = items * (kItem + kTap * taps);

    const bool copies = p.column_bytes > 0 || copies_channels();
    const double staged = p.column_bytes > 0 ? p.pixels() : p.rows * p.pitch;
    const double bytes = staged * 2 * unit_ * p.all_depth_steps * element_;
    const double bring = copies ? kCopy * bytes / (32.0 * (p.column_bytes == 4 ? 4 : 16))
                                : kGather * bytes / (32.0 * element_);
    const double bandwidth = device_.bandwidth / device_.multiprocessors / kClock;  // bytes a cycle
    const double line = static_cast<double>(p.pitch) * element_ + (p.column_bytes > 0 ? 32 : 0);  // whole sectors
    const double brought = p.rows * static_cast<double>(c_.source_channels) * line;
    const double memory = std::max(brought / kCache, bytes_of_segment(p) / p.steps) / bandwidth;

    const double most = std::max({multiply, add, bring, memory}), sum = multiply + add + std::max(bring, memory);
    const double step = kStep + p.chunks * kStage + most + kApart * (sum - most);
    const double segments = static_cast<double>(ceil_div(all_segments(p), p.segment_blocks));
    const double waves = static_cast<double>(ceil_div(p.blocks, device_.multiprocessors));
    const double pack = kBlock + p.source_at / 4.0 * kPackWord;
    return 1e3 * waves * (pack + segments * p.steps * step) / kClock + kLaunchMs;
  }

 private:
  bool copies_channels() const { return packs_along_channels(c_.source, c_.source_channels, unit_); }

  // Its share of all that is read and written once.
  double bytes_of_segment(const Col2imConvPlan& p) const {
    return static_cast<double>(problem_.bytes()) / static_cast<double>(all_segments(p) * problem_.groups * p.passes);
  }
  int64_t all_segments(const Col2imConvPlan& p) const { return problem_.batch * p.strips * p.segments; }

  bool choose_memory(Col2imConvPlan& p) const {
    p.ring_rows = 2 * p.rows + p.shifts_h - 1;
    p.product_pitch = static_cast<int>(round_up(int64_t{p.ring_rows} * p.pitch - 8, 32) + 8);
    const int64_t weights = int64_t{p.all_depth_steps} * p.parts * p.all_row_tiles() * 512;
    const int64_t products = (int64_t{p.channels} * taps_ + 1) * p.product_pitch * 4;
    const int64_t tables = kCol2imBarrierBytes + 16 * (h_.geometry.phases() + w_.geometry.phases()) + 4 * p.pixels();
    const int64_t slot = int64_t{p.depth_steps} * 2 * unit_ * element_ * (p.pixels() + (p.column_bytes > 0 ? 8 : 0));
    const int64_t room = device_.shared_bytes_per_block - weights - products - tables;
    p.slots = static_cast<int>(std::min<int64_t>(room / slot, kCol2imMostSlots));
    if (room < 0 || p.slots < 2) return false;
    p.slot_bytes = static_cast<int>(slot);
    p.source_at = static_cast<int>(weights);
    p.products_at = static_cast<int>(weights + p.slots * slot);
    p.tables_at = static_cast<int>(p.products_at + products);
    p.shared_bytes = static_cast<int>(p.tables_at + tables);
    return true;
  }

  // As many segments of an image as keep all multiprocessors busy equally long; each has rows in common with the next.
  void choose_segments(Col2imConvPlan& p) const {
    const int height = h_.geometry.phase_size(0), width = w_.geometry.phase_size(0);
    p.strips = static_cast<int>(ceil_div(width, p.columns));
    const int64_t passes = problem_.groups * p.passes, columns = problem_.batch * p.strips;
    const int64_t at_once = std::max<int64_t>(device_.multiprocessors / passes, 1);
    const int64_t most = std::min<int64_t>(height, ceil_div(kMostRounds * at_once, columns));
    double best = 0;
    for (int64_t wanted = 1; wanted <= most; ++wanted) {
      const int64_t steps = ceil_div(ceil_div(height, wanted) + p.shifts_h - 1, p.rows);
      if (best != 0 && steps == p.steps) continue;
      const int64_t segments = ceil_div(height, steps * p.rows - (p.shifts_h - 1));
      const int64_t rounds = ceil_div(columns * segments, at_once);
      const double cost = static_cast<double>(rounds) * (static_cast<double>(steps) + kSegmentSteps);
      if (best != 0 && cost >= best) continue;
      best = cost;
      p.steps = static_cast<int>(steps);
      p.segment_rows = static_cast<int>(ceil_div(height, segments));
      p.segments = static_cast<int>(segments);
    }
    const int64_t all = all_segments(p), blocks = std::min(all, at_once);
    p.segment_blocks = static_cast<int>(ceil_div(all, ceil_div(all, blocks)));
    p.blocks = passes * p.segment_blocks;
  }

  const Problem& problem_;
  const Device& device_;
  Correlation c_;
  const NarrowAxis& h_;
  const NarrowAxis& w_;
  int element_, unit_, taps_;
};

}  // namespace

int col2im_vector_result(const Problem& problem, const Col2imConvPlan& plan) {
  const Correlation c = correlation(problem);
  const auto& [size, stride] = c.result;
  const AxisGeometry w = without_idle_taps(geometry(problem, 1));
  int count = 4;
  const auto fits = [&](int64_t number) { return number % count == 0; };
  const auto all_fit = [&] {
    if (!fits(stride[0]) || !fits(stride[2])) return false;
    if (plan.columns_adjacent) return (size[1] == 1 || fits(stride[1])) && fits(size[3]) && fits(w.phases());
    if (stride[1] != 1) return false;
    if (fits(plan.channels)) return fits(stride[3]);
    return stride[3] == plan.channels && fits(w.phases() * plan.channels) && fits(size[3] * plan.channels);
  };
  while (count > 1 && !all_fit()) count /= 2;
  return count;
}

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
  if (const std::string why = refusal(problem, device); !why.empty()) return refuse(why);
  const std::optional<NarrowAxis> h = narrow_axis(problem, 0), w = narrow_axis(problem, 1);
  if (!h || !w) return refuse("more phases or shifts along an axis than its tables hold");
  if (h->geometry.source_step() > 1 || w->geometry.source_step() > 1) {
    return refuse("serves forward, and grad_input of stride 1 and more than one pixel along either axis");
  }
  const int64_t taps = problem.axis[0].kernel * problem.axis[1].kernel;
  const int64_t all_channels = correlation(problem).result_channels;
  if (taps > kMostRows) return refuse("takes up to " + std::to_string(kMostRows) + " taps");
  if (all_channels > kMostChannels) {
    return refuse("takes up to " + std::to_string(kMostChannels) + " result channels a group");
  }
  const Candidates candidates(problem, device, *h, *w);
  const int width = w->geometry.phase_size(0);
  // Places beyond the result, of the last strip and its lanes, are 32-bit integers too.
  if ((round_up(width, 8) + 64) * w->geometry.result_step() > INT32_MAX) return refuse("a stride this long");
  std::optional<Plan> best;
  const auto consider = [&](int row_tiles, int channels, int columns, int depth_steps) {
    const std::optional<Col2imConvPlan> plan = candidates.plan(row_tiles, channels, columns, depth_steps);
    if (!plan) return;
    // Their indices, and the first one beyond, are 32-bit integers.
    const int64_t segments = int64_t{problem.batch} * plan->strips * plan->segments;
    if (plan->blocks > INT32_MAX || segments + plan->segment_blocks > INT32_MAX) return;
    const double ms = candidates.estimate_ms(*plan);
    consider_plan(best, "col2im family", *plan, 0, ms, problem.dtype, considered);
  };
  for (int passes = 1; passes <= kMostPasses && passes <= all_channels; ++passes) {
    const int channels = static_cast<int>(all_channels / passes);
    if (all_channels % passes != 0 || channels * taps > kMostRows) continue;
    for (int row_tiles = 1; row_tiles <= kCol2imMostRowTiles; ++row_tiles) {
      if (row_tiles > 1 && channels * taps <= 16 * (row_tiles - 1)) continue;
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
