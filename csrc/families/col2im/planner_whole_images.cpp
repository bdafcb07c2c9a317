// Tiles of the Hopper family's folded products (kernels/hopper/folded.cuh).
#include <algorithm>
#include <sstream>
#include <vector>

#include "families/igemm_sm90/planner.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kLeastSlots = 2, kMostSlots = 6;

// Cycles of a multiprocessor at kClock, fitted to 80 timings of 28 layers on an H200.
struct Costs {
  double product;    // of a chunk of source channels, for each pixel of a tile
  double bytes;      // that copies bring in a cycle
  double item;       // of an item besides, before the next one is multiplied
  double exchanged;  // of a tile's pixel, where lanes exchange products, in images of 4 or 12 columns
  double folded;     // of a tile's pixel, by the warps that fold
  double last;       // part of the lesser of products and folding that nothing hides, of all items
  double memory;     // part of the time for moving all tensors that nothing hides
  double least;      // times as much as that, at least
  double launch_ms;
  double beside_others;  // times all that: some of the other kernels' estimates are low. By hand
};
constexpr Costs kCosts{3.8, 49.5, 1050, 8, 11.3, 1.31, 1.34, 0.95, 0.0053, 0.94};

// Pixels of an image that lie together in shared memory.
int run_of(int64_t pixels) { return pixels <= 16 ? 16 : pixels <= 32 ? 32 : 64; }

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma || device.multiprocessors < kFoldedCluster) {
    return "needs a Hopper GPU with two multiprocessors and a build for sm_90a";
  }
  const std::string why = tensor_core_refusal(problem, kHopperMinChannels, kFoldedKernel, 2);
  if (!why.empty()) return why;
  if (problem.direction != Direction::kForward || problem.blocks) return "computes forward";
  if (problem.dtype == DType::kFloat32) return "takes 16 bits";
  for (const Axis& axis : problem.axis) {
    if (axis.kernel != kFoldedKernel || axis.stride != 2 || axis.dilation != 1 || axis.output != 2 * axis.input ||
        axis.padding != 1) {
      return "takes kernels of 4 that double the size";
    }
  }
  const Tensor4 &x = problem.x, &w = problem.w, &y = problem.y;
  const auto is_dense = [](const Tensor4& t) {  // within an image of a channel
    return t.stride[3] == 1 && (t.size[2] == 1 || t.stride[2] == t.size[3]);
  };
  const auto whole = [](const Tensor4& t, int d) { return t.size[d] == 1 || t.stride[d] % 8 == 0; };
  if (problem.unaligned_first || !is_dense(x) || !whole(x, 0) || !whole(x, 1)) {
    return "takes contiguous inputs whose images begin at multiples of 16 bytes";
  }
  if (problem.unaligned_second || !is_dense(w) || (w.size[1] > 1 && w.stride[1] != kFoldedTaps) ||
      w.stride[0] != w.size[1] * kFoldedTaps) {
    return "takes contiguous weights that begin at a multiple of 16 bytes";
  }
  if (!is_dense(y) || !whole(y, 0) || !whole(y, 1)) {
    return "stores contiguous images that begin at multiples of 16 bytes";
  }
  const int64_t pixels = x.size[2] * x.size[3], quads = ceil_div(x.size[3], 4);
  if (x.size[3] % 4 != 0 || quads > kFoldedMostQuads || pixels % run_of(pixels) != 0) {
    return "takes images of 4, 8, 12 or 16 columns, of 16, 32 or a multiple of 64 pixels";
  }
  return "";
}

std::optional<HopperFoldedPlan> plan_tile(const Problem& problem, const Device& device, int pixels) {
  HopperFoldedPlan p;
  const int64_t image = problem.x.size[2] * problem.x.size[3];
  if (image > pixels) return std::nullopt;
  p.pixels = pixels;
  p.run = run_of(image);
  p.image_pixels = static_cast<int>(image);
  p.quads = static_cast<int>(problem.x.size[3] / 4);
  p.images = pixels / p.image_pixels;
  p.chunks = static_cast<int>(ceil_div(problem.in_channels_per_group(), kFoldedChunk));
  p.m_tiles = static_cast<int>(ceil_div(problem.out_channels_per_group(), kFoldedCluster * kFoldedChannels));
  p.columns = static_cast<int>(problem.groups * p.m_tiles);
  const int64_t tiles = ceil_div(problem.batch, p.images);
  if (tiles * p.columns > 1 << 30) return std::nullopt;
  p.tiles = static_cast<int>(tiles);
  p.items = p.tiles * p.columns;
  p.blocks = kFoldedCluster * std::min(p.items, device.multiprocessors / kFoldedCluster);
  p.stage_bytes = kFoldedWeightBytes + pixels * kFoldedChunk * 2;
  p.plane_bytes = static_cast<int>(problem.y.size[2] * problem.y.size[3] * 2);
  const int sums = kFoldedChannels * kFoldedRows * (pixels + kFoldedPitch) * 4;
  const int results = 2 * kFoldedFoldWarps * p.images * p.plane_bytes;
  const int64_t room = device.shared_bytes_per_block - sums - results - 8 * kFoldedSumsBarriers * kFoldedChannels;
  p.slots = static_cast<int>(std::min<int64_t>(kMostSlots, room / (p.stage_bytes + 16)));
  if (p.slots < kLeastSlots) return std::nullopt;
  p.sums_at = p.slots * p.stage_bytes;
  p.results_at = p.sums_at + sums;
  p.barriers_at = p.results_at + results;
  p.shared_bytes = p.barriers_at + 16 * p.slots + 8 * kFoldedSumsBarriers * kFoldedChannels;
  return p;
}

double estimate_ms(const Problem& problem, const Device& device, const HopperFoldedPlan& p) {
  const Costs& costs = kCosts;
  const double loads = (kFoldedWeightBytes + p.pixels * kFoldedChunk * 2.0 / kFoldedCluster) / costs.bytes;
  const double products = p.chunks * std::max(p.pixels * costs.product, loads) + costs.item +
                          (p.quads % 2 != 0 ? p.pixels * costs.exchanged : 0);
  const double folded = p.pixels * costs.folded;
  const auto rounds = static_cast<double>(ceil_div(p.items, p.blocks / kFoldedCluster));
  const double cycles = rounds * std::max(products, folded) + costs.last * std::min(products, folded);
  const double memory_ms = 1e3 * static_cast<double>(problem.bytes()) / device.bandwidth;
  const double ms = std::max(1e3 * cycles / kClock + costs.memory * memory_ms, costs.least * memory_ms);
  return (ms + costs.launch_ms) * costs.beside_others;
}

}  // namespace

std::string describe(const HopperFoldedPlan& plan, DType) {
  std::ostringstream text;
  text << kFoldedCluster * kFoldedChannels << " channels with all taps x (" << plan.images << " images) in "
       << plan.pixels << " pixels, products folded";
  return text.str();
}

std::optional<Plan> plan_hopper_folded(const Problem& problem, const Device& device,
                                       std::vector<Candidate>* considered) {
  const std::string why = refusal(problem, device);
  if (!why.empty()) {
    if (considered) considered->push_back({"igemm_sm90 family", 0, why});
    return std::nullopt;
  }
  std::optional<Plan> best;
  for (const int pixels : kFoldedPixels) {
    if (const auto plan = plan_tile(problem, device, pixels)) {
      consider_plan(best, "igemm_sm90 family", *plan, 0, estimate_ms(problem, device, *plan), problem.dtype,
                    considered);
    }
  }
  return best;
}

}  // namespace deconv
