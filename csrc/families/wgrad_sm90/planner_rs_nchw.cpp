// Tiles, runs and splits of wgrad_rs_nchw.cuh.
#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "families/igemm_sm90/planner.h"
#include "families/wgrad_sm90/planner.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr const char* kName = "wgrad_sm90 family, lines";
constexpr int kRows = kWgradTileM;  // of operand A
constexpr int kMostTap = 128;  // of a kernel row
constexpr int kMostColumns = 256;          // of a box of grad_output

// Cycles of a multiprocessor of an H200.
constexpr int kSharedBytes = 103;  // of shared memory a cycle
constexpr int kSimtBytes = 2048;    // of operand A, for an instruction
constexpr int kHalves = 3;  // times as many if lanes load 16-bit elements in pairs
constexpr double kConflicts = 0.3;  // more bank conflicts for each step of the stride
constexpr double kLatency = 2000;  // of a step: loaded, multiplied
constexpr int kSplitBytes = 6;  // of the input a cycle, to write its low parts
constexpr int kStepCost = 260, kSecondRow = 310;  // of a step, and of a tile's second row
constexpr int kSimtCycles[2] = {8, 18};  // gathering operand A for an instruction; in tf32x3
constexpr int kFirstRows = 6000;  // of a block: tables, first loads, results stored one by one

// Kinds of channels of grad_output: every kinds-th channel has the same offset from a multiple of 16 bytes.
int channel_kinds(const Problem& problem) {
  const int64_t bytes = problem.y.stride[1] * element_size(problem.dtype);
  int kinds = 1;
  while (problem.y.size[1] > 1 && kinds * bytes % 16 != 0) kinds *= 2;
  return kinds;
}

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (problem.dtype == DType::kFloat64 || problem.dtype == DType::kOther) return "takes float16, bfloat16 and float32";
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  if (problem.unaligned_first || problem.unaligned_second) return "takes operands that begin at multiples of 16 bytes";
  if (problem.axis[0].stride > INT16_MAX) return "takes strides below 32768";
  if (const std::string why = in_channels_refusal(problem); !why.empty()) return why;
  if (problem.axis[0].kernel > kRsNchwRows || problem.axis[1].kernel > kMostTap) {
    return "takes kernels of up to 64 rows and 128 columns";
  }
  for (const int axis : {0, 1, 2, 3}) {
    const auto lies = [&](const Tensor4& tensor) {
      return tensor.size[axis] == 1 || (axis < 3 ? tensor.stride[axis] > 0 : tensor.stride[axis] == 1);
    };
    if (!lies(problem.x) || !lies(problem.y)) return "takes contiguous images";
  }
  const auto copies = [&](const Tensor4& tensor, int axis) {
    return tensor.size[axis] == 1 || is_copied_step(problem, tensor.stride[axis]);
  };
  for (const int axis : {0, 1, 2}) {
    if (!copies(problem.x, axis)) return "takes rows of the input at multiples of 16 bytes";
  }
  if (!copies(problem.y, 0)) return "takes images of grad_output at multiples of 16 bytes";
  const Tensor4& y = problem.y;
  const int kinds = channel_kinds(problem);
  if (problem.out_channels_per_group() % kinds != 0) return "takes output channels that begin alike in equal numbers";
  // TMA sees each channel of a kind as one long line.
  const int64_t image = (y.size[2] - 1) * y.stride[2] + y.size[3];
  if ((y.size[1] > 1 && y.stride[1] < image) || kinds * std::max(y.stride[1], image) >= INT32_MAX / 2) {
    return "takes grad_output whose channels lie behind each other, up to 2^30 elements";
  }
  return "";
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device)
      : problem_(problem),
        device_(device),
        h_(geometry(problem, 0)),
        w_(geometry(problem, 1)),
        element_(element_size(problem.dtype)),
        parts_(problem.dtype == DType::kFloat32 && !problem.allow_tf32 ? 2 : 1),
        channels_m_(problem.in_channels_per_group()),
        channels_n_(problem.out_channels_per_group()),
        channel_kinds_(channel_kinds(problem)) {}

  // block_rows: kernel rows that share an instruction. rows: of pixels.
  std::optional<WgradRsNchwPlan> plan(RsNchwTile tile, int spread, int block_rows, int rows) const {
    WgradRsNchwPlan p;
    p.tile = tile;
    p.parts = parts_;
    p.fold = channels_n_ <= kRows / 4 ? 4 : channels_n_ <= kRows / 2 ? 2 : 1;
    p.spread = spread;
    p.block_rows = block_rows;
    p.block_m = std::min<int64_t>(round_up(channels_m_, 8), tile.n / block_rows / 8 * 8);
    p.block_taps = std::min<int64_t>(w_.kernel, tile.warpgroups / spread * tile.taps * p.fold);
    p.tap_groups = ceil_div(w_.kernel, p.block_taps);
    p.channel_kinds = channel_kinds_;
    p.y_channels = spread * kRows / p.fold;
    p.rows = rows;
    p.columns = kSm90RowBytes / element_ / rows;
    p.tiles_w = ceil_div(problem_.axis[1].input, p.columns);
    if (!choose_groups(p) || !choose_memory(p)) return std::nullopt;
    p.blocks_m = ceil_div(channels_m_, p.block_m);
    p.blocks_n = ceil_div(channels_n_, p.y_channels);
    p.padded_m = p.blocks_m * p.block_m;
    p.padded_n = p.blocks_n * p.y_channels;
    if (!choose_splits(p)) return std::nullopt;
    return p;
  }

  int64_t workspace_bytes(const WgradRsNchwPlan& p) const { return p.splits * partial_bytes(p); }

  double estimate_ms(const WgradRsNchwPlan& p) const {
    const double waves = ceil_div(p.blocks, device_.multiprocessors);
    const double steps = ceil_div(p.all_runs, p.splits) * p.run;
    return weight_ms(device_, waves * (steps * step_cycles(p) + kFirstRows), problem_.bytes(), workspace_bytes(p));
  }

 private:
  // Groups the kernel rows that read the same source phase of grad_output. A tile begins with the first row that any of
  // them meets. False: too many for the tables, or too far apart.
  bool choose_groups(WgradRsNchwPlan& p) const {
    struct Row {
      int plane, kh, shift;
    };
    std::vector<Row> rows;
    for (int kh = 0; kh < h_.kernel; ++kh) {
      const TapPlace place = tap_place(h_, kh);
      rows.push_back({place.plane, kh, place.shift});
    }
    std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.plane < b.plane; });
    const auto fits = [](int value) { return value >= INT16_MIN && value <= INT16_MAX; };
    int reach = 0;
    p.row_groups = 0;
    for (size_t begin = 0, end = 0; begin < rows.size(); begin = end, ++p.row_groups) {
      while (end < rows.size() && end - begin < static_cast<size_t>(p.block_rows) &&
             rows[end].plane == rows[begin].plane) {
        ++end;
      }
      if ((p.row_groups + 1) * p.block_rows > kRsNchwRows || !fits(rows[begin].shift) || !fits(rows[end - 1].shift)) {
        return false;
      }
      // Shifts rise with the taps of a source phase.
      reach = std::max(reach, rows[end - 1].shift - rows[begin].shift);
      p.groups[p.row_groups] = {static_cast<int16_t>(rows[begin].plane), static_cast<int16_t>(rows[begin].shift)};
      for (size_t i = begin; i < begin + p.block_rows; ++i) {
        p.kernel_rows[p.row_groups * p.block_rows + i - begin] = i < end ? rows[i].kh : -1;
      }
    }
    p.row_step = h_.dilation / gcd(h_.stride, h_.dilation);
    const int64_t tiles = ceil_div(problem_.axis[0].input + reach, p.rows);
    // Rows of grad_output, inside the image or not, are 32-bit integers.
    if ((tiles * p.rows + (1 << 16)) * h_.stride > INT32_MAX / 2) return false;
    p.tiles_h = tiles;
    return true;
  }

  bool choose_memory(WgradRsNchwPlan& p) const {
    // Room for the elements before a row's first in its 16 bytes. An odd number of 16 bytes, so that adjacent channels
    // begin in different banks.
    const int64_t taps = p.tile.warpgroups / p.spread * p.tile.taps * p.fold;  // idle ones read, too
    const int64_t columns = int64_t{p.columns - 1} * w_.stride + (taps - 1) * w_.dilation + 1;
    const int64_t pitch = (ceil_div(columns * element_ + 16 - element_, 16) | 1) * 16;
    if (pitch > kMostColumns * element_) return false;
    p.y_pitch = pitch;
    if (p.y_channels % p.channel_kinds != 0) return false;
    p.y_box_bytes = round_up(p.y_channels / p.channel_kinds * pitch, 128);
    p.y_row_bytes = p.channel_kinds * p.y_box_bytes;
    const int input = p.block_rows * p.block_m * kSm90RowBytes;
    p.y_at = p.parts * input;
    // Idle columns read what lies behind the input.
    const int64_t bytes = std::max<int64_t>(p.y_at + int64_t{p.rows} * p.y_row_bytes,
                                            (p.parts - 1) * input + p.tile.n * kSm90RowBytes);
    const int64_t stage = round_up(bytes, 1024);
    const StageRing ring = stage_ring(device_, stage);
    p.stage_bytes = stage;
    p.stages = ring.stages;
    p.barriers_at = ring.barriers_at;
    p.shared_bytes = ring.shared_bytes;
    return p.stages > 0;
  }

  double step_cycles(const WgradRsNchwPlan& p) const {
    double busy = 0;  // warpgroups with a tap, in all tap groups
    const int taps = p.tile.taps * p.fold;
    for (int first = 0; first < w_.kernel; first += p.block_taps) {
      busy += p.spread * ceil_div(std::min(p.block_taps, w_.kernel - first), taps);
    }
    const double products = kSm90RowBytes / 32 * p.tile.taps * busy / p.tap_groups;
    const double product = wgmma_cycles(p.tile.n) + kSimtCycles[p.parts - 1];
    const double tensor = products * product * (p.parts == 2 ? kSplitProducts : 1);
    const double conflicts = (element_ == 2 ? kHalves : 1) * (1 + kConflicts * (std::min(w_.stride, 8) - 1));
    const double shared = (products * (kSimtBytes * conflicts + (p.parts == 2 ? 3 : 1) * p.tile.n * 32) +
                           p.stage_bytes) /
                          kSharedBytes;
    const double split = p.parts == 2 ? p.block_rows * p.block_m * kSm90RowBytes / kSplitBytes : 0;
    return overlapped({tensor, shared, split, kLatency / (p.stages - 1)}) + kStepCost + (p.rows == 2 ? kSecondRow : 0);
  }

  // A split takes whole runs.
  bool choose_splits(WgradRsNchwPlan& p) const {
    const int64_t tiles = int64_t{p.tap_groups} * p.row_groups * p.blocks_n * p.blocks_m * problem_.groups;
    const int64_t columns = p.tiles_w * problem_.batch;  // of tiles
    if (columns * p.tiles_h >= 1 << 30 || partial_bytes(p) > kWorkspaceLimit) return false;
    const int64_t most_steps = std::max<int64_t>(1, most_split_pixels(problem_) / (p.rows * p.columns));
    WgradRsNchwPlan best;
    double best_ms = 0;
    for (int run = 8; run <= 256 && (run == 8 || run < 2 * p.tiles_h); run *= 2) {
      p.runs = ceil_div(p.tiles_h, run);
      p.run = ceil_div(p.tiles_h, p.runs);
      p.all_runs = columns * p.runs;
      if (p.run > most_steps) continue;
      const SplitLimits limits{tiles, p.all_runs, most_splits(partial_bytes(p)), most_steps / p.run};
      deconv::choose_splits(limits, device_.multiprocessors, 8, [&](const SplitK& split) {
        p.splits = split.splits;
        p.blocks = tiles * p.splits;
        const double ms = estimate_ms(p);
        if (best_ms == 0 || ms < best_ms) {
          best = p;
          best_ms = ms;
        }
        return ms;
      });
    }
    if (best_ms > 0) p = best;
    return best_ms > 0;
  }

  int64_t partial_bytes(const WgradRsNchwPlan& p) const {
    return 4 * problem_.groups * h_.kernel * w_.kernel * p.padded_m * p.padded_n;
  }

  const Problem& problem_;
  const Device& device_;
  AxisGeometry h_, w_;
  int element_, parts_;
  int64_t channels_m_, channels_n_;
  int channel_kinds_;
};

}  // namespace

std::string describe(const WgradRsNchwPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of " << plan.tile.taps * plan.fold << " taps x " << kRows / plan.fold
       << " output channels, lines of " << plan.block_rows << " rows of the kernel x " << plan.block_m
       << " input channels, " << (plan.spread > 1 ? "output channels" : "taps") << " side by side, " << plan.rows << 'x'
       << plan.columns << " pixels a stage" << (plan.parts == 2 ? ", three TF32 products" : "");
  return text.str();
}

std::optional<Plan> plan_wgrad_rs_nchw(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty()) return refuse(considered, kName, why);
  const Candidates candidates(problem, device);
  std::optional<Plan> best;
  const int64_t tiles_n = ceil_div(problem.out_channels_per_group(), kRows), kernel_h = problem.axis[0].kernel;
  const auto consider = [&](RsNchwTile tile) {
    for (const int spread : {1, tile.warpgroups}) {
      if (spread > 1 && tiles_n == 1) continue;
      for (int block_rows = 1; block_rows <= kernel_h && 8 * block_rows <= tile.n; ++block_rows) {
        for (const int rows : {1, 2}) {
          const std::optional<WgradRsNchwPlan> plan = candidates.plan(tile, spread, block_rows, rows);
          if (!plan) continue;
          const double ms = candidates.estimate_ms(*plan);
          consider_plan(best, "wgrad_sm90 family", *plan, candidates.workspace_bytes(*plan), ms, problem.dtype,
                        considered);
        }
      }
    }
  };
  if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) {
    for (const RsNchwTile tile : kRsNchwTilesSplit) consider(tile);
  } else {
    for (const RsNchwTile tile : kRsNchwTiles) consider(tile);
  }
  if (!best) return refuse(considered, kName, "no tile fits: lines in shared memory, sums in their bound");
  return best;
}

}  // namespace deconv
