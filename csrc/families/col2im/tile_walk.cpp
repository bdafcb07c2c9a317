// How the col2im family's kernels walk a layer (kernels/col2im/sums.cuh).
#include <algorithm>
#include <cmath>

#include "families/col2im/planner.h"
#include "planner/cost_model.h"

namespace deconv {
namespace {

constexpr int64_t kMostChannels = 16;  // more fill the tiles of other families
constexpr int64_t kMostRounds = 4;     // of all multiprocessors, up to which more segments are tried
constexpr double kSegmentSteps = 0.3;  // what a segment costs besides, in steps

// Cycles of an adding warp: of its units of a kind, of a line of taps of a unit, of a tap of a unit and a neighbour.
// Fitted, with those of the planner for Hopper, to 4,853 timings of 34 layers on an H200.
constexpr double kItem = 470, kLine = 60, kTap = 16;

std::string refusal_of(const Problem& problem, const Device& device) {
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

}  // namespace

Col2imLayer::Col2imLayer(const Problem& of_problem, const Device& of_device, const NarrowAxis& height,
                         const NarrowAxis& width)
    : problem(of_problem),
      device(of_device),
      c(correlation(of_problem)),
      h(height),
      w(width),
      element(static_cast<int>(element_size(of_problem.dtype))),
      taps(static_cast<int>(of_problem.axis[0].kernel * of_problem.axis[1].kernel)) {}

std::optional<Col2imLayer> Col2imLayer::describe(const Problem& problem, const Device& device, std::string& refusal) {
  const auto refuse = [&](const std::string& why) -> std::optional<Col2imLayer> {
    refusal = why;
    return std::nullopt;
  };
  if (const std::string why = refusal_of(problem, device); !why.empty()) return refuse(why);
  const std::optional<NarrowAxis> h = narrow_axis(problem, 0), w = narrow_axis(problem, 1);
  if (!h || !w) return refuse("more phases or shifts along an axis than its tables hold");
  if (h->geometry.source_step() > 1 || w->geometry.source_step() > 1) {
    return refuse("serves forward, and grad_input of stride 1 and more than one pixel along either axis");
  }
  if (correlation(problem).result_channels > kMostChannels) {
    return refuse("takes up to " + std::to_string(kMostChannels) + " result channels a group");
  }
  // Places beyond the result, of the last strip and its lanes and of the last units, are 32-bit integers too.
  for (const AxisGeometry& axis : {h->geometry, w->geometry}) {
    if ((round_up(axis.phase_size(0), 8) + 64) * axis.result_step() > INT32_MAX) return refuse("a stride this long");
  }
  return Col2imLayer(problem, device, *h, *w);
}

Col2imWalk Col2imLayer::walk(int channels, int columns) const {
  Col2imWalk walk;
  walk.channels = channels;
  walk.passes = static_cast<int>(c.result_channels / channels);
  walk.columns_adjacent = c.result.stride[3] == 1;
  walk.origin_h = h.origin, walk.origin_w = w.origin;
  walk.shifts_h = h.shifts, walk.shifts_w = w.shifts;
  walk.columns = columns;
  return walk;
}

bool Col2imLayer::choose_segments(Col2imWalk& walk, int add_warps, int most_units) const {
  const int height = h.geometry.phase_size(0), width = w.geometry.phase_size(0);
  walk.strips = static_cast<int>(ceil_div(width, walk.columns));
  const int64_t passes = problem.groups * walk.passes, columns = problem.batch * walk.strips;
  const int64_t at_once = std::max<int64_t>(device.multiprocessors / passes, 1);
  const int64_t most = std::min<int64_t>(height, ceil_div(kMostRounds * at_once, columns));
  double best = 0;
  for (int64_t wanted = 1; wanted <= most; ++wanted) {
    const int64_t steps = ceil_div(ceil_div(height, wanted) + walk.shifts_h - 1, walk.rows);
    if (best != 0 && steps == walk.steps) continue;
    const int64_t segments = ceil_div(height, steps * walk.rows - (walk.shifts_h - 1));
    const int64_t rounds = ceil_div(columns * segments, at_once);
    const double cost = static_cast<double>(rounds) * (static_cast<double>(steps) + kSegmentSteps);
    if (best != 0 && cost >= best) continue;
    best = cost;
    walk.steps = static_cast<int>(steps);
    walk.segment_rows = static_cast<int>(ceil_div(height, segments));
    walk.segments = static_cast<int>(segments);
  }
  const int64_t all = segments(walk), blocks = std::min(all, at_once);
  walk.segment_blocks = static_cast<int>(ceil_div(all, ceil_div(all, blocks)));
  walk.blocks = passes * walk.segment_blocks;
  Col2imWalk less = walk;
  less.units = most_units / 2;
  walk.units = most_units;
  if (adding_cycles(less, add_warps) < adding_cycles(walk, add_warps)) walk.units = less.units;
  return walk.blocks <= INT32_MAX && all + walk.segment_blocks <= INT32_MAX;
}

double Col2imLayer::bytes_of_segment(const Col2imWalk& walk) const {
  return static_cast<double>(problem.bytes()) / static_cast<double>(segments(walk) * problem.groups * walk.passes);
}

double Col2imLayer::adding_cycles(const Col2imWalk& walk, int add_warps) const {
  const int vector = col2im_vector_result(problem, walk), phases_h = h.geometry.phases(),
            phases_w = w.geometry.phases();
  const double kinds = static_cast<double>(phases_h) * phases_w * walk.channels / vector;
  const double turns = static_cast<double>(ceil_div(walk.rows * ceil_div(walk.columns, 32), walk.units));
  const double lines = std::max(static_cast<double>(problem.axis[0].kernel) / phases_h, 1.0);
  const double most_taps = std::ceil(static_cast<double>(problem.axis[1].kernel) / phases_w);  // of a line
  const double loaded = most_taps == 3 ? 3 : 2 * std::ceil(most_taps / 2);
  const double item = kItem + lines * walk.units * (kLine + vector * loaded * kTap);
  return std::ceil(kinds * turns / add_warps) * item;
}

int col2im_vector_result(const Problem& problem, const Col2imWalk& walk) {
  const Correlation c = correlation(problem);
  const auto& [size, stride] = c.result;
  const AxisGeometry w = without_idle_taps(geometry(problem, 1));
  int count = 4;
  const auto fits = [&](int64_t number) { return number % count == 0; };
  const auto all_fit = [&] {
    if (!fits(stride[0]) || !fits(stride[2])) return false;
    if (walk.columns_adjacent) return (size[1] == 1 || fits(stride[1])) && fits(size[3]) && fits(w.phases());
    if (stride[1] != 1) return false;
    if (fits(walk.channels)) return fits(stride[3]);
    return stride[3] == walk.channels && fits(w.phases() * walk.channels) && fits(size[3] * walk.channels);
  };
  while (count > 1 && !all_fit()) count /= 2;
  return count;
}

}  // namespace deconv
