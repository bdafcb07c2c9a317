// Tiles, strips, slices and splits of the Hopper family's grad_weight of float32 (kernels/hopper/weight_strips.cuh).
#include <algorithm>
#include <cmath>
#include <sstream>

#include "correlation.h"
#include "plan.h"
#include "plan_arithmetic.h"
#include "plan_hopper.h"
#include "repack_plan.h"

namespace deconv {
namespace {

constexpr int kMostSlots = 4, kLeastSlots = 2;  // of the input's ring
constexpr int64_t kAlignment = 1024;            // of the workspace's parts, bytes
// Tensor cores cut their running sum off instead of rounding it; a split's sum stays short enough for that not to show
// beside the rounding of the operands.
constexpr int64_t kMostPixels = 1 << 15;

// Cycles of a multiprocessor at kClockHopper, fitted to 1,900 timings of 39 layers on an H200.
constexpr double kClockHopper = 1.7e9;
constexpr double kColumn = 0.9;          // of an instruction, for each 2 of wgmma's N
constexpr double kProductCost = 3.6;     // of an instruction besides
constexpr double kNarrowProduct = 6.1;   // more where N is 32: it reads as much of operand A
constexpr double kCopyBytes = 63;        // of bulk copies from L2, in a cycle
constexpr double kOverlap = 0.6;         // of what hides behind something longer, still felt
constexpr double kStepCost = 265, kBlockCost = 18300;
constexpr double kLaunchMs = 8.2e-3, kAddLaunchMs = 1.5e-3;  // of packing and multiplying a slice
constexpr double kPackMsPerByte = 0.65e-9;                   // written
constexpr double kPackImages = 0.18;  // more by pixels, each time that half as many strips lie in a row

std::string refusal_of(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (problem.dtype != DType::kFloat32) return "takes float32";
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  if (problem.axis[1].kernel > kHopperStripsKernel) return "takes kernels up to 128 columns";
  return "";
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device)
      : problem_(problem),
        device_(device),
        h_(problem.axis[0]),
        w_(problem.axis[1]),
        m_(problem.in_channels_per_group()),
        n_(problem.out_channels_per_group()) {
    const AxisGeometry axis = geometry(problem, 1);
    for (int k = 0; k < axis.kernel; ++k) order_.push_back({k, tap_place(axis, k)});
    std::stable_sort(order_.begin(), order_.end(), [](const KernelColumn& a, const KernelColumn& b) {
      return a.place.plane != b.place.plane ? a.place.plane < b.place.plane : a.place.shift < b.place.shift;
    });
  }

  // False: it does not fit. What an earlier call left in `p` is overwritten.
  bool plan(HopperWeightStripsPlan& p, HopperWeightStripsTile tile, HopperWeightShare share, int chunks, int width,
            int strips_w) const {
    const bool of_m = share == HopperWeightShare::kInputChannels, of_n = share == HopperWeightShare::kOutputChannels;
    p.tile = tile;
    p.share = share;
    p.parts = problem_.allow_tf32 ? 1 : 2;
    p.column_chunks = chunks;
    p.column_taps = tile.columns / chunks;
    p.block_taps = p.column_taps * (share == HopperWeightShare::kTaps ? tile.warpgroups : 1);
    p.x_chunks = of_m ? tile.warpgroups : 1;
    p.y_chunks = chunks * (of_n ? tile.warpgroups : 1);
    // Not a tile of channels without channels.
    if ((p.x_chunks - 1) * kHopperWeightChannels >= m_ || (p.y_chunks - 1) * tile.n >= n_) return false;
    p.fold = n_ % 4 == 0 && p.x_chunks * p.y_chunks == 1
                 ? static_cast<int>(
                       std::max<int64_t>(1, std::min({kHopperWeightChannels / m_, tile.n / n_, problem_.groups})))
                 : 1;
    p.width = width;
    p.strips_w = strips_w;
    p.tiles_w = static_cast<int>(ceil_div(w_.input, width * strips_w));
    const int64_t tiles = p.tiles_w * ceil_div(problem_.batch, kHopperStrips / strips_w);
    if (tiles * h_.input > 1 << 30) return false;
    p.tiles = static_cast<int>(tiles);
    for (size_t i = 0; i < order_.size(); ++i) p.kernel_column[i] = static_cast<uint8_t>(order_[i].index);
    p.blocks_m = static_cast<int>(p.fold > 1 ? 1 : ceil_div(m_, kHopperWeightChannels * p.x_chunks));
    p.blocks_n = static_cast<int>(p.fold > 1 ? 1 : ceil_div(n_, tile.n * p.y_chunks));
    p.blocks_tap = static_cast<int>(ceil_div(h_.kernel * w_.kernel, p.block_taps));
    p.blocks_group = static_cast<int>(ceil_div(problem_.groups, p.fold));
    p.padded_m = static_cast<int>(p.fold > 1 ? m_ : p.blocks_m * p.x_chunks * kHopperWeightChannels);
    p.padded_n = static_cast<int>(p.fold > 1 ? n_ : p.blocks_n * p.y_chunks * tile.n);
    return choose_reach(p) && choose_memory(p) && choose_slices(p) && choose_splits(p);
  }

  int64_t workspace_bytes(const HopperWeightStripsPlan& p) const { return p.grad_output_at + p.parts * p.y_part; }

  double estimate_ms(const HopperWeightStripsPlan& p) const {
    const double packed = static_cast<double>(p.parts * (p.x_part + p.y_part));
    const bool by_pixels = problem_.x.stride[1] != 1 || problem_.y.stride[1] != 1;
    const double apart = by_pixels ? kPackImages * std::log2(kHopperStrips / p.strips_w) : 0;
    const double slice = 1e3 * cycles(p) / kClockHopper + kLaunchMs + kPackMsPerByte * packed * (1 + apart);
    return slice * p.tiles / p.slice_tiles + (p.splits > 0 ? kAddLaunchMs : 0);
  }

 private:
  struct KernelColumn {
    int index;
    TapPlace place;
  };

  // Rows and columns of grad_output that the taps of a block reach.
  bool choose_reach(HopperWeightStripsPlan& p) const {
    const int taps = static_cast<int>(h_.kernel * w_.kernel), rows = static_cast<int>(h_.kernel);
    const auto plane_of = [&](int place) { return order_[place].place.plane; };
    int range = 0;
    p.all_planes = 1;
    for (int i = 1, first = 0; i < static_cast<int>(order_.size()); ++i) {
      if (plane_of(i) != plane_of(first)) {
        first = i;
        ++p.all_planes;
      }
      range = std::max(range, order_[i].place.shift - order_[first].place.shift);
    }
    int reach = 0, first_row = 0;  // in rows of the kernel: of a block's taps, before them
    p.planes = 1;
    for (int begin = 0; begin < taps; begin += p.block_taps) {
      const int end = std::min(begin + p.block_taps, taps) - 1, first = begin / rows, last = end / rows;
      reach = std::max(reach, first == last ? end - begin : rows - 1);
      first_row = std::max(first_row, first == last ? begin - first * rows : 0);
      int planes = 1;
      for (int i = first + 1; i <= last; ++i) planes += plane_of(i) != plane_of(i - 1);
      p.planes = std::max(p.planes, planes);
    }
    const int64_t span = reach * h_.dilation + 1;
    const int64_t packed_rows = (h_.input - 1) * h_.stride + first_row * h_.dilation + span;
    if (p.all_planes > kHopperStripsPlanes || range > 1 << 12 || packed_rows > 1 << 24) return false;
    const int64_t columns = (static_cast<int64_t>(p.tiles_w) * p.strips_w * p.width + p.width + range) * w_.stride;
    if (columns > INT32_MAX) return false;
    p.span = static_cast<int>(span);
    p.advance = static_cast<int>(std::min<int64_t>(h_.stride, span));
    p.positions = p.width + range;
    p.rows = static_cast<int>(packed_rows);
    return true;
  }

  bool choose_memory(HopperWeightStripsPlan& p) const {
    const int64_t units = ceil_div(p.positions, kHopperStripUnit);
    p.x_box_bytes = kHopperWeightChannels * kHopperRowBytes * (p.width / kHopperStripUnit);
    p.y_box_bytes = static_cast<int>(p.tile.n * kHopperRowBytes * units);
    p.x_slot_bytes = p.parts * p.x_chunks * p.x_box_bytes;
    if (static_cast<int64_t>(p.parts) * p.all_planes * p.y_box_bytes > device_.shared_bytes_per_block) return false;
    const int64_t y_row_bytes = static_cast<int64_t>(p.parts) * p.planes * p.y_chunks * p.y_box_bytes;
    const int64_t least_rows = p.span + p.advance, most_rows = 2 * least_rows;
    for (p.x_slots = kMostSlots; p.x_slots >= kLeastSlots; --p.x_slots) {
      const int64_t left = device_.shared_bytes_per_block - p.x_slots * (p.x_slot_bytes + 16);
      const int64_t rows = std::min(left / (y_row_bytes + 16), most_rows);
      if (rows < least_rows + (p.x_slots > kLeastSlots ? p.advance : 0)) continue;
      p.y_row_bytes = static_cast<int>(y_row_bytes);
      p.y_rows = static_cast<int>(rows);
      p.y_at = p.x_slots * p.x_slot_bytes;
      p.barriers_at = p.y_at + p.y_rows * p.y_row_bytes;
      p.shared_bytes = p.barriers_at + 16 * (p.x_slots + p.y_rows);
      return true;
    }
    return false;
  }

  // All of both operands packed, or as many tiles of strips at a time as take half as much.
  bool choose_slices(HopperWeightStripsPlan& p) const {
    const int64_t boxes_x = h_.input * p.blocks_group * p.blocks_m * p.x_chunks;  // of a tile of strips
    const int64_t boxes_y = static_cast<int64_t>(p.rows) * p.all_planes * p.blocks_group * p.blocks_n * p.y_chunks;
    const int64_t x_bytes = boxes_x * p.x_box_bytes, y_bytes = boxes_y * p.y_box_bytes;
    const int64_t tile_bytes = p.parts * (x_bytes + y_bytes);
    const int64_t tiles = p.tiles * tile_bytes <= kRepackLimit ? p.tiles : kRepackLimit / 2 / tile_bytes;
    if (tiles < 1 || tiles * std::max(boxes_x, boxes_y) > INT32_MAX) return false;
    p.slice_tiles = static_cast<int>(tiles);
    p.x_part = tiles * x_bytes;
    p.y_part = tiles * y_bytes;
    return true;
  }

  // Enough blocks of a slice for whole waves over the GPU, in splits that are short enough and fit into the workspace.
  bool choose_splits(HopperWeightStripsPlan& p) const {
    const int64_t items = item_tiles(p), steps = p.slice_tiles * h_.input;
    const int64_t most_steps = p.parts == 2 ? steps : std::max<int64_t>(1, kMostPixels / (kHopperStrips * p.width));
    const int64_t least = ceil_div(steps, most_steps);
    const int64_t most = std::min(steps, kWorkspaceLimit / partial_bytes(p));
    if (p.slice_tiles == p.tiles ? least > std::max<int64_t>(most, 1) : least > most) return false;
    if (items * std::max<int64_t>(most, 1) > INT32_MAX / 16) return false;
    double best = 0;
    int64_t chosen = 0;
    const auto consider = [&](int64_t splits) {
      p.steps_per_split = ceil_div(steps, std::clamp(splits, least, std::max<int64_t>(most, 1)));
      p.slice_splits = static_cast<int>(ceil_div(steps, p.steps_per_split));
      const bool needs_sums = p.slice_splits > 1 || p.slice_tiles < p.tiles;
      p.splits = needs_sums || (is_scattered(problem_.w) && most > 0) ? p.slice_splits : 0;
      p.input_at = round_up(sums_bytes(p), kAlignment);
      p.grad_output_at = p.input_at + p.parts * p.x_part;
      const double ms = estimate_ms(p);
      if (chosen == 0 || ms < best) {
        best = ms;
        chosen = p.slice_splits;
      }
    };
    consider(1);
    for (int64_t waves = 1; waves <= 8; ++waves) consider(waves * device_.multiprocessors / items);
    consider(chosen);
    return true;
  }

  double step_cycles(const HopperWeightStripsPlan& p) const {
    const int products = p.width * p.tile.warpgroups * p.tile.columns;
    const double each = p.parts == 2 ? 3 : 1;
    const double product = kColumn * p.tile.n / 2 + kProductCost + (p.tile.n == 32 ? kNarrowProduct : 0);
    const double tensor = each * products * product;
    const double new_rows = p.advance + static_cast<double>(p.span - p.advance) / static_cast<double>(h_.input);
    const double copies = (p.x_slot_bytes + new_rows * p.y_row_bytes) / kCopyBytes;
    return std::max(tensor, copies) + kOverlap * std::min(tensor, copies) + kStepCost;
  }
  // Of one slice.
  double cycles(const HopperWeightStripsPlan& p) const {
    const double waves = static_cast<double>(ceil_div(p.slice_splits * item_tiles(p), device_.multiprocessors));
    return waves * (static_cast<double>(p.steps_per_split) * step_cycles(p) + kBlockCost);
  }
  // Of channels and taps.
  static int64_t item_tiles(const HopperWeightStripsPlan& p) {
    return static_cast<int64_t>(p.blocks_m) * p.blocks_n * p.blocks_tap * p.blocks_group;
  }
  int64_t sums_bytes(const HopperWeightStripsPlan& p) const { return p.splits * partial_bytes(p); }
  int64_t partial_bytes(const HopperWeightStripsPlan& p) const {
    return 4 * problem_.groups * h_.kernel * w_.kernel * p.padded_m * p.padded_n;
  }

  const Problem& problem_;
  const Device& device_;
  const Axis &h_, &w_;
  int64_t m_, n_;
  std::vector<KernelColumn> order_;
};

}  // namespace

std::string describe(const HopperWeightStripsPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of 64 input x " << plan.column_taps << " taps x " << plan.column_chunks
       << " x " << plan.tile.n << " output channels, " << name(plan.share) << " side by side, packed strips of "
       << plan.width << " pixels, " << plan.strips_w << " in a row, of " << kHopperStrips / plan.strips_w << " images"
       << (plan.parts == 2 ? ", three TF32 products" : "");
  return text.str();
}

std::optional<Plan> plan_hopper_weight_strips(const Problem& problem, const Device& device,
                                              std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) {
    if (considered) considered->push_back({"hopper family, packed strips", 0, why});
    return std::nullopt;
  };
  if (const std::string why = refusal_of(problem, device); !why.empty()) return refuse(why);
  const Candidates candidates(problem, device);
  std::optional<Plan> best;
  HopperWeightStripsPlan plan;
  const auto consider = [&](HopperWeightStripsTile tile) {
    std::optional<Plan> of_tile;
    for (const auto share :
         {HopperWeightShare::kTaps, HopperWeightShare::kInputChannels, HopperWeightShare::kOutputChannels}) {
      for (int chunks = 1; chunks <= tile.columns; ++chunks) {
        if (tile.columns % chunks != 0) continue;
        for (const int width : {4, 8, 16}) {
          for (const int strips_w : {1, 2, 4, 8}) {
            if (!candidates.plan(plan, tile, share, chunks, width, strips_w)) continue;
            const double ms = candidates.estimate_ms(plan);
            if (!of_tile || ms < of_tile->estimate_ms) of_tile = Plan{plan, candidates.workspace_bytes(plan), ms};
          }
        }
      }
    }
    if (!of_tile) return;
    consider_plan(best, "hopper family", std::get<HopperWeightStripsPlan>(of_tile->tile), of_tile->workspace_bytes,
                  of_tile->estimate_ms, problem.dtype, considered);
  };
  if (problem.allow_tf32) {
    for (const HopperWeightStripsTile tile : kHopperWeightStripsTiles) consider(tile);
  } else {
    for (const HopperWeightStripsTile tile : kHopperWeightStripsTilesSplit) consider(tile);
  }
  if (!best) {
    return refuse("no tile fits: rows of grad_output in shared memory, packed operands and sums in the workspace");
  }
  return best;
}

}  // namespace deconv
