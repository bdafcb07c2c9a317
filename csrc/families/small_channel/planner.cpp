// Tiles of conv.cuh.
#include "families/small_channel/planner.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <sstream>

#include "core/correlation.h"
#include "planner/cost_model.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kMultiprocessorShared = 227 << 10;  // bytes, less 1 KiB a block
constexpr int kMostRows = 1024;  // of a block: what its tables hold
constexpr int kFewPhases = 16;  // of the width; with fewer, 8 of many channels are never the best choice

// Cycles of a multiprocessor of an H100, from 2,071 timings (tests/data/h100_narrow.json, h100_few_channels.json).
constexpr double kProduct = 1, kSplitProduct = 5, kSplitProductQuads = 9;  // a warp's mma: 16 rows, 8 pixels, two units
// For 32 lanes: an offset; a unit copied, or loaded from four columns, or loaded one by one and each of its elements; a
// result staged, or stored in a vector; a word of weights packed.
constexpr double kOffset = 10, kCopyUnit = 26, kQuadUnit = 12, kSimtUnit = 13, kSimtElement = 4;
constexpr double kStageResult = 6, kStoreVector = 0.5, kPackWord = 54;
constexpr double kStoreRun = 2;
constexpr double kTile = 2000, kCopyLatency = 1850, kSimtLatency = 5000;  // hidden by other blocks: a tile; a k_block
constexpr double kCopyPlane = 300, kSimtPlane = 2400;  // each further source phase of a k_block
constexpr double kBlock = 1100;
// Factors: warps of 16 rows; of 64 rows (quads: its inverse); a k_block loaded ahead; one block a multiprocessor;
// blocks that only store beside others.
constexpr double kFewRows = 1.15, kManyRows = 0.88, kAhead = 0.6, kAlone = 1.25, kUneven = 1.8;
constexpr double kOnce = 1, kLanes = 32, kLoadsInCycle = 2;
constexpr double kOverlap = 0.45;  // of the shorter of memory's and compute's time that shows, over resident blocks
constexpr double kRaggedRun = 320;  // bytes of memory traffic for a run with partial sectors
constexpr double kLaunchMs = 0.003;
constexpr int kTileWidth = 32, kMostTileWidth = 128;  // most columns of a tile: tries both and what lies between
constexpr int64_t kIdleRounds = 4;  // of resident blocks, if some only store

int count_bits(uint64_t bits) { return static_cast<int>(std::bitset<64>(bits).count()); }

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  if (problem.direction == Direction::kGradWeight) return "serves forward and grad_input";
  if (problem.dtype == DType::kFloat64) return "has no float64";
  if (std::max(problem.in_channels_per_group(), problem.out_channels_per_group()) == 1) return "depthwise family";
  if (fills_large_tiles(problem)) return "has channels enough on both sides for other families";
  const Tensor4& source = correlation(problem).source;
  int64_t reach = 0;
  for (int i = 0; i < 4; ++i) {
    if (i != 1) reach += std::max<int64_t>(source.size[i] - 1, 0) * source.stride[i];
  }
  if (reach > INT32_MAX) return "a source this large needs 64-bit offsets";
  if (source.numel() == 0 || correlation(problem).result.numel() == 0) return "nothing to compute";
  return "";
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device, const SmallChannelAxis& h, const SmallChannelAxis& w)
      : problem_(problem),
        device_(device),
        c_(correlation(problem)),
        h_(h),
        w_(w),
        element_(static_cast<int>(element_size(problem.dtype))),
        unit_(kSmallChannelUnitBytes / element_),
        copies_(packs_along_channels(c_.source, c_.source_channels, unit_)) {}

  std::optional<SmallChannelPlan> plan(int row_tiles, int warps_m, int channels, bool all_heights, int width) const {
    SmallChannelPlan p;
    p.row_tiles = row_tiles;
    p.warps_m = warps_m;
    p.parts = problem_.dtype == DType::kFloat32 && !problem_.allow_tf32 ? 2 : 1;
    p.channels = channels;
    p.all_heights = all_heights;
    p.columns_adjacent = c_.result.stride[3] == 1;
    p.whole_lines = !p.columns_adjacent && problem_.groups == 1 && channels == c_.result_channels &&
                    c_.result.stride[3] == channels;
    p.origin_h = h_.origin, p.origin_w = w_.origin;
    p.shifts_h = h_.shifts, p.shifts_w = w_.shifts;
    p.planes_h = std::max(h_.plane_count, 1), p.planes_w = std::max(w_.plane_count, 1);
    p.passes_h = all_heights ? 1 : h_.geometry.phases();
    p.passes_m = static_cast<int>(ceil_div(c_.result_channels, channels));
    if (rows(p) > kMostRows || !choose_pixels(p, width)) return std::nullopt;
    // Columns are adjacent, and no quad lies half inside the image.
    p.quads = packs_four_columns(c_.source) && w_.geometry.source_step() == 1 && p.planes_w == 1 && p.tile.w % 4 == 0;
    p.row_groups = static_cast<int>(std::max<int64_t>(1, ceil_div(rows(p), 16 * row_tiles)));
    each_row_group(p, [&p](int positions) { p.positions = std::max(p.positions, positions); });
    if (!choose_memory(p)) return std::nullopt;
    choose_blocks(p);
    return p;
  }

  double estimate_ms(const SmallChannelPlan& p) const {
    const int64_t tiles = int64_t{p.tiles.n} * p.tiles.h * p.tiles.w, passes = passes_of(p);
    const double busy = p.all_heights ? 1 : static_cast<double>(h_.actives) / p.passes_h;  // others only store
    const double blocks = static_cast<double>(p.blocks) / device_.multiprocessors;
    const double waves = busy < 1 ? std::max(kUneven * blocks, kOnce) : std::ceil(blocks);
    const double together = std::min<double>(waves, p.blocks_per_multiprocessor);
    const int64_t rounds = ceil_div(p.row_groups, p.warps_m), stages = p.chunks > 1 ? rounds * p.chunks : 1;

    const int pixel_tiles = small_channel_pixel_tiles(p.row_tiles);
    const double product = p.parts == 1 ? kProduct : p.quads ? kSplitProductQuads : kSplitProduct;
    const double loads = (p.row_tiles + 3 * pixel_tiles) / kLoadsInCycle;  // of operands
    const double step = std::max(p.row_tiles * pixel_tiles * product, loads) + 1;
    const double multiply = kSmallChannelWarps * p.chunks * steps_of_rounds(p) * step;

    const double unit = copies_ ? kCopyUnit : p.quads ? kQuadUnit : kSimtUnit + unit_ * kSimtElement;
    const double produce = p.source_pixels / kLanes * ((p.quads ? 0 : kOffset) + stages * p.units * unit);
    const double stage = (copies_ || p.quads ? kCopyLatency * (p.buffers == 2 ? kAhead : kOnce) : kSimtLatency) +
                         (copies_ ? kCopyPlane : kSimtPlane) * (p.planes_h * p.planes_w - 1);
    const double latency = (kTile + stages * stage) / together;

    const int heights = h_.geometry.phases(), widths = w_.geometry.phases();
    const int lines = p.tile.n * p.tile.h * (p.all_heights ? heights : 1);
    const int runs = p.columns_adjacent ? lines * p.channels : p.whole_lines ? lines : lines * p.tile.w * widths;
    const double results = static_cast<double>(lines) * p.tile.w * widths * p.channels / kLanes;
    const double computed = results * w_.actives / widths *
                            (p.all_heights ? static_cast<double>(h_.actives) / heights : 1);
    const double store = results / small_channel_vector_result(problem_, p) * kStoreVector + runs * kStoreRun;

    const double tile = busy * (multiply + produce + latency + computed * kStageResult) + store;
    const double setup = kBlock + p.source_at / 4 / kLanes * kPackWord;
    const double few = p.row_tiles == 1 ? kFewRows : p.row_tiles == 4 ? (p.quads ? 1 / kManyRows : kManyRows) : 1;
    const double compute = waves * (static_cast<double>(ceil_div(tiles, p.tile_blocks)) * tile + setup) * few *
                           (together > 1 ? 1 : kAlone) / kClock;
    const auto all_tiles = static_cast<double>(passes * tiles);
    const bool ragged = p.columns_adjacent && c_.result.size[3] * element_ % kSectorBytes != 0;
    const double bytes = static_cast<double>(problem_.bytes()) + (ragged ? all_tiles * runs * kRaggedRun : 0) +
                         busy * all_tiles * p.source_pixels * stages * p.units * kSmallChannelUnitBytes;
    const double memory = bytes / device_.bandwidth;
    return 1e3 * (std::max(compute, memory) + kOverlap / together * std::min(compute, memory)) + kLaunchMs;
  }

 private:
  int64_t passes_of(const SmallChannelPlan& p) const { return int64_t{p.passes_h} * p.passes_m * problem_.groups; }
  int64_t rows(const SmallChannelPlan& p) const {
    return int64_t{p.all_heights ? h_.actives : std::min(h_.actives, 1)} * w_.actives * p.channels;
  }

  // Tiles of up to `most` columns, more if images have few rows. False if a smaller `most` gives the same tile.
  bool choose_pixels(SmallChannelPlan& p, int most) const {
    const int pixels = kSmallChannelWarps / p.warps_m * 8 * small_channel_pixel_tiles(p.row_tiles);
    const int width = w_.geometry.phase_size(0), height = h_.geometry.phase_size(0);
    const auto least = [](int bound, int size) { return std::min(bound, power_of_two_at_least(size)); };
    p.tile.w = least(std::min(pixels, most), width);
    if (most > kTileWidth && (p.tile.w < most || pixels / most >= power_of_two_at_least(height))) return false;
    p.tile.h = least(pixels / p.tile.w, height);
    p.tile.w = least(pixels / p.tile.h, width);
    p.tile.n = pixels / (p.tile.w * p.tile.h);
    p.tiles = {static_cast<int>(ceil_div(problem_.batch, p.tile.n)), static_cast<int>(ceil_div(height, p.tile.h)),
               static_cast<int>(ceil_div(width, p.tile.w))};
    p.rows_h = p.tile.h + p.shifts_h - 1;
    p.rows_w = p.tile.w + p.shifts_w - 1;
    p.source_pixels = p.tile.n * p.planes_h * p.rows_h * p.planes_w * p.rows_w;
    // 1 modulo 8: quads of four units and of two neighbours then meet different banks.
    p.source_pitch = static_cast<int>(round_up(p.source_pixels - 1, 8) + 1);
    return true;
  }

  // Calls each(positions at which the phases of a row group have taps).
  template <class Each>
  void each_row_group(const SmallChannelPlan& p, const Each& each) const {
    const int group_rows = 16 * p.row_tiles, all = static_cast<int>(rows(p));
    int most_heights = 0;  // of a phase
    for (int i = 0; i < h_.actives; ++i) {
      most_heights = std::max(most_heights, count_bits(h_.positions[h_.active[i]]));
    }
    for (int first = 0; first < all; first += group_rows) {
      uint64_t used_h = 0, used_w = 0;
      for (int i = first / p.channels; i <= (std::min(all, first + group_rows) - 1) / p.channels; ++i) {
        used_w |= w_.positions[w_.active[i % w_.actives]];
        if (p.all_heights) used_h |= h_.positions[h_.active[i / w_.actives]];
      }
      each((p.all_heights ? count_bits(used_h) : most_heights) * count_bits(used_w));
    }
  }
  // Steps of a k_block: in each round, those of its longest row group.
  double steps_of_rounds(const SmallChannelPlan& p) const {
    int group = 0;
    int64_t longest = 0, sum = 0;
    each_row_group(p, [&](int positions) {
      longest = std::max(longest, ceil_div(positions * p.units, 2));
      if (++group % p.warps_m == 0 || group == p.row_groups) sum += longest, longest = 0;
    });
    return static_cast<double>(sum);
  }

  // Chooses the most blocks a multiprocessor, then the largest k_block, that fit.
  bool choose_memory(SmallChannelPlan& p) const {
    const int64_t lines = p.tile.h * (p.all_heights ? h_.geometry.phases() : 1);
    const int64_t elements = lines * p.tile.w * w_.geometry.phases(), pack = 16 / element_;
    p.stage_channel = p.columns_adjacent ? static_cast<int>(round_up(elements, pack) + pack) : p.channels;  // banks
    const int64_t of_image = p.columns_adjacent ? int64_t{p.channels} * p.stage_channel : elements * p.channels;
    const int64_t results = round_up(p.tile.n * of_image * element_, 16);
    if (results > kMultiprocessorShared) return false;
    // Loading ahead takes a second buffer. Quads are in flight in registers and gain even with two blocks a
    // multiprocessor; cp.async gains only with one, which has no other block to work meanwhile.
    struct Choice {
      int buffers, blocks;
    };
    const int most = small_channel_blocks(p.row_tiles, p.parts, p.quads);
    const Choice with_quads[] = {{2, 2}, {2, 1}, {1, most}, {1, 1}};
    const Choice others[] = {{1, most}, {1, 2}, {copies_ ? 2 : 1, 1}, {1, 1}};
    for (const auto [buffers, blocks] : p.quads ? with_quads : others) {
      p.buffers = buffers, p.blocks_per_multiprocessor = blocks;
      if (choose_stages(p, results)) return true;
    }
    return false;
  }
  bool choose_stages(SmallChannelPlan& p, int64_t results) const {
    const int64_t most = kMultiprocessorShared / p.blocks_per_multiprocessor - 1024;
    const int64_t room = std::min<int64_t>(most, device_.shared_bytes_per_block);
    const int64_t all_units = ceil_div(c_.source_channels, unit_);
    const int least = p.blocks_per_multiprocessor > 1 && !p.quads ? 4 : 2;  // units of a k_block, of several
    for (int64_t chunks = 1; chunks <= all_units; chunks *= 2) {
      p.units = static_cast<int>(chunks > 1 ? round_up(ceil_div(all_units, chunks), 2) : all_units);
      if (chunks > 1 && p.units < least) return false;
      p.chunks = static_cast<int>(ceil_div(all_units, p.units));
      p.steps = static_cast<int>(ceil_div(p.positions * p.units, 2));
      const int64_t weights = int64_t{p.row_groups} * p.chunks * p.steps * p.row_tiles * 512;
      const int64_t stage_at = weights + int64_t{p.buffers} * p.units * p.source_pitch * kSmallChannelUnitBytes;
      if (weights > room || stage_at + results > room || p.steps >= 1 << 15) continue;
      p.source_at = static_cast<int>(weights);
      p.stage_at = static_cast<int>(stage_at);
      p.tables_at = static_cast<int>(stage_at + results);
      p.shared_bytes = p.tables_at + 4 * small_channel_tables(p, h_, w_).total;
      // Rows that take several rounds, each of all k_blocks, have one buffer.
      if (p.shared_bytes <= room) return p.buffers == 1 || p.chunks == 1 || p.row_groups <= p.warps_m;
    }
    return false;
  }

  void choose_blocks(SmallChannelPlan& p) const {
    const int64_t tiles = int64_t{p.tiles.n} * p.tiles.h * p.tiles.w;
    const int64_t slots = int64_t{device_.multiprocessors} * p.blocks_per_multiprocessor;
    // As many blocks as run at once; twice that if passes differ in their taps. Passes that only store end sooner and
    // overlap with others: then more blocks, so that all multiprocessors have their share of both.
    const int64_t rounds = p.passes_h == 1 ? 1 : h_.actives < p.passes_h ? kIdleRounds : 2;
    const int64_t wanted = std::clamp<int64_t>(rounds * slots / passes_of(p), 1, tiles);
    p.tile_blocks = static_cast<int>(ceil_div(tiles, ceil_div(tiles, wanted)));
    p.blocks = passes_of(p) * p.tile_blocks;
  }

  const Problem& problem_;
  const Device& device_;
  Correlation c_;
  const SmallChannelAxis& h_;
  const SmallChannelAxis& w_;
  int element_, unit_;
  bool copies_;  // cp.async along adjacent channels
};

}  // namespace

std::optional<SmallChannelAxis> small_channel_axis(const Problem& problem, int axis) {
  SmallChannelAxis a;
  a.geometry = without_idle_taps(geometry(problem, axis));
  const AxisGeometry& g = a.geometry;
  const int phases = g.phases(), planes = g.planes();
  if (phases > kSmallChannelMaxPhases || planes > kSmallChannelMaxPhases) return std::nullopt;
  const auto serves = [&](const TapPlace& place) { return place.phase < phases && place.plane < planes; };
  int largest = INT32_MIN;
  a.origin = INT32_MAX;
  for (int k = 0; k < g.kernel; ++k) {
    const TapPlace place = tap_place(g, k);
    if (!serves(place)) continue;
    a.origin = std::min(a.origin, place.shift);
    largest = std::max(largest, place.shift);
    a.planes |= uint64_t{1} << place.plane;
  }
  if (a.planes == 0) {
    a.origin = 0;
    return a;
  }
  a.shifts = largest - a.origin + 1;
  a.plane_count = count_bits(a.planes);
  if (int64_t{a.shifts} * a.plane_count > kSmallChannelMaxPositions) return std::nullopt;
  for (int k = 0; k < g.kernel; ++k) {
    const TapPlace place = tap_place(g, k);
    if (!serves(place)) continue;
    const int slot = count_bits(a.planes & ((uint64_t{1} << place.plane) - 1));
    a.positions[place.phase] |= uint64_t{1} << (slot * a.shifts + place.shift - a.origin);
  }
  for (int phase = 0; phase < phases; ++phase) {
    if (a.positions[phase] != 0) a.active[a.actives++] = static_cast<uint8_t>(phase);
  }
  return a;
}

SmallChannelTables small_channel_tables(const SmallChannelPlan& p, const SmallChannelAxis& h,
                                        const SmallChannelAxis& w) {
  const int rows = p.row_groups * 16 * p.row_tiles;
  SmallChannelTables at;
  int next = 0;
  const auto table = [&next](int count) {
    const int start = next;
    next += (count + 3) / 4 * 4;
    return start;
  };
  at.offsets = table(p.source_pixels);
  at.units = table(p.row_groups * 2 * p.steps);
  at.rows = table(rows);
  at.bias = table(rows);
  at.info = table(rows);
  at.pixels = table(p.tile.n * p.tile.h * p.tile.w);
  at.steps = table(p.row_groups);
  at.positions = table(p.row_groups * p.positions);
  at.taps = table(h.geometry.phases() * p.planes_h * p.shifts_h + w.geometry.phases() * p.planes_w * p.shifts_w);
  at.total = next;
  return at;
}

int small_channel_vector_result(const Problem& problem, const SmallChannelPlan& plan) {
  const Correlation c = correlation(problem);
  const int64_t line = int64_t{plan.tile.w} * without_idle_taps(geometry(problem, 1)).phases();
  int count = static_cast<int>(16 / element_size(problem.dtype));
  const auto fits = [&](int64_t number) { return number % count == 0; };
  const auto all_fit = [&] {
    const auto& stride = c.result.stride;
    if (plan.columns_adjacent) {
      return fits(stride[0]) && fits(stride[1]) && fits(stride[2]) && fits(c.result.size[3]) && fits(line);
    }
    if (plan.whole_lines) return fits(stride[0]) && fits(stride[2]) && fits(line * plan.channels);
    return fits(stride[0]) && fits(stride[2]) && fits(stride[3]) && fits(c.result_channels) && fits(plan.channels);
  };
  while (count > 1 && !all_fit()) count /= 2;
  return count;
}

std::string describe(const SmallChannelPlan& plan, DType) {
  std::ostringstream text;
  text << plan.channels << " channels in " << (plan.all_heights ? "all phases" : "all phases of the width") << " x ("
       << plan.tile.n << " images, " << plan.tile.h << " rows, " << plan.tile.w << " columns), "
       << kSmallChannelWarps / plan.warps_m << 'x' << plan.warps_m << " warps of " << 16 * plan.row_tiles << " rows"
       << (plan.quads ? ", four columns at a time" : "") << (plan.parts == 2 ? ", three TF32 products" : "");
  return text.str();
}

std::optional<Plan> plan_narrow_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) -> std::optional<Plan> {
    if (considered) considered->push_back({"small_channel family", 0, why});
    return std::nullopt;
  };
  if (const std::string why = refusal(problem, device); !why.empty()) return refuse(why);
  const std::optional<SmallChannelAxis> h = small_channel_axis(problem, 0), w = small_channel_axis(problem, 1);
  if (!h || !w) return refuse("more phases, planes or shifts along an axis than its tables hold");
  const Candidates candidates(problem, device, *h, *w);
  const int64_t all_channels = correlation(problem).result_channels;
  std::optional<Plan> best;
  const auto consider = [&](int row_tiles, int warps_m, int channels, bool all_heights) {
    for (int width = kTileWidth; width <= kMostTileWidth; width *= 2) {
      const std::optional<SmallChannelPlan> plan = candidates.plan(row_tiles, warps_m, channels, all_heights, width);
      if (!plan || plan->blocks > INT32_MAX) continue;
      const double ms = candidates.estimate_ms(*plan);
      consider_plan(best, "small_channel family", *plan, 0, ms, problem.dtype, considered);
    }
  };
  for (const int channels : {8, 16, 32, 64}) {
    const int of_block = static_cast<int>(std::min<int64_t>(channels, all_channels));
    if (of_block < all_channels && of_block == 8 && w->actives < kFewPhases) continue;
    for (const bool all_heights : {false, true}) {
      if (all_heights && h->geometry.phases() == 1) continue;
      const int rows = (all_heights ? h->actives : 1) * std::max(w->actives, 1) * of_block;
      for (const int row_tiles : {1, 2, 4}) {
        if (row_tiles > 1 && rows < 12 * row_tiles) continue;
        for (int warps_m = 1; warps_m <= 8 && (warps_m == 1 || (warps_m - 1) * 16 * row_tiles < rows); warps_m *= 2) {
          consider(row_tiles, warps_m, of_block, all_heights);
        }
      }
    }
    if (of_block == all_channels) break;
  }
  if (!best) return refuse("no tile fits: its weights and one chunk of the source in shared memory");
  return best;
}

}  // namespace deconv
