// Tiles of gemm_sm90_whole_images.cuh.
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

// Cycles of a multiprocessor of an H200 at kClock (tests/data/h200_folded.json).
constexpr double kProduct = 3.8;  // a pixel and 64 source channels
constexpr double kBytes = 50;  // loaded by TMA in a cycle
constexpr double kItem = 1050, kExchanged = 8, kFolded = 11;  // a work tile; a pixel: exchanged, added
constexpr double kMemory = 1.3;  // part of the time to move all tensors that shows
constexpr double kLaunchMs = 0.005;

// Adjacent pixels of an image in shared memory.
int run_of(int64_t pixels) { return pixels <= 16 ? 16 : pixels <= 32 ? 32 : 64; }

// True if the images of a channel have no gaps and begin at multiples of 16 bytes.
bool has_whole_images(const Problem& problem, const Tensor4& t) {
  const auto whole = [&](int d) { return t.size[d] == 1 || is_copied_step(problem, t.stride[d]); };
  return is_line(t) && whole(0) && whole(1);
}

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma || device.multiprocessors < kWholeImagesCluster) {
    return "needs a Hopper GPU with two multiprocessors and a build for sm_90a";
  }
  const std::string why = tensor_core_refusal(problem, kSm90MinChannels, kWholeImagesKernel, 2);
  if (!why.empty()) return why;
  if (problem.direction != Direction::kForward || problem.blocks) return "computes forward";
  if (problem.dtype == DType::kFloat32) return "takes 16 bits";
  for (const Axis& axis : problem.axis) {
    if (axis.kernel != kWholeImagesKernel || axis.stride != 2 || axis.dilation != 1 || axis.output != 2 * axis.input ||
        axis.padding != 1) {
      return "takes kernels of 4 that double the size";
    }
  }
  const Tensor4 &x = problem.x, &w = problem.w;
  for (const Tensor4* const t : {&x, &w, &problem.y}) {
    if (problem.unaligned_first || problem.unaligned_second || !has_whole_images(problem, *t)) {
      return "takes and stores contiguous images that begin at multiples of 16 bytes";
    }
  }
  if ((w.size[1] > 1 && w.stride[1] != kWholeImagesTaps) || w.stride[0] != w.size[1] * kWholeImagesTaps) {
    return "takes contiguous weights";
  }
  const int64_t pixels = x.size[2] * x.size[3];
  if (x.size[3] % 4 != 0 || x.size[3] > 4 * kWholeImagesMostQuads || pixels % run_of(pixels) != 0) {
    return "takes images of 4, 8, 12 or 16 columns, of 16, 32 or a multiple of 64 pixels";
  }
  return "";
}

std::optional<WholeImagesPlan> plan_tile(const Problem& problem, const Device& device, int pixels) {
  WholeImagesPlan p;
  const int64_t image = problem.x.size[2] * problem.x.size[3];
  if (image > pixels) return std::nullopt;
  p.pixels = pixels;
  p.run = run_of(image);
  p.image_pixels = static_cast<int>(image);
  p.quads = static_cast<int>(problem.x.size[3] / 4);
  p.images = pixels / p.image_pixels;
  p.chunks = static_cast<int>(ceil_div(problem.in_channels_per_group(), kWholeImagesChunk));
  p.m_tiles = static_cast<int>(ceil_div(problem.out_channels_per_group(), kWholeImagesCluster * kWholeImagesChannels));
  p.columns = static_cast<int>(problem.groups * p.m_tiles);
  const int64_t tiles = ceil_div(problem.batch, p.images);
  if (tiles * p.columns > 1 << 30) return std::nullopt;
  p.tiles = static_cast<int>(tiles);
  p.items = p.tiles * p.columns;
  p.blocks = kWholeImagesCluster * std::min(p.items, device.multiprocessors / kWholeImagesCluster);
  p.stage_bytes = kWholeImagesWeightBytes + pixels * kWholeImagesChunk * 2;
  const int sums = kWholeImagesChannels * kWholeImagesRows * (pixels + kWholeImagesPitch) * 4;
  const int barriers = 8 * kWholeImagesSumsBarriers * kWholeImagesChannels;
  const int room = device.shared_bytes_per_block - sums - barriers;
  p.slots = std::min(kMostSlots, room / (p.stage_bytes + 16));
  if (p.slots < kLeastSlots) return std::nullopt;
  p.sums_at = p.slots * p.stage_bytes;
  p.barriers_at = p.sums_at + sums;
  p.shared_bytes = p.barriers_at + 16 * p.slots + barriers;
  return p;
}

// Adding columns overlaps with multiplying, except for the last work tile.
double estimate_ms(const Problem& problem, const Device& device, const WholeImagesPlan& p) {
  const double bring = (kWholeImagesWeightBytes + p.pixels * kWholeImagesChunk * 2 / kWholeImagesCluster) / kBytes;
  const double multiply = p.chunks * std::max(p.pixels * kProduct, bring) + kItem +
                          (p.quads % 2 != 0 ? p.pixels * kExchanged : 0);
  const double fold = p.pixels * kFolded;
  const auto rounds = static_cast<double>(ceil_div(p.items, p.blocks / kWholeImagesCluster));
  const double cycles = rounds * std::max(multiply, fold) + std::min(multiply, fold);
  return 1e3 * (cycles / kClock + kMemory * static_cast<double>(problem.bytes()) / device.bandwidth) + kLaunchMs;
}

}  // namespace

std::string describe(const WholeImagesPlan& plan, DType) {
  std::ostringstream text;
  text << kWholeImagesCluster * kWholeImagesChannels << " channels with all taps x (" << plan.images << " images) in "
       << plan.pixels << " pixels, products folded";
  return text.str();
}

std::optional<Plan> plan_whole_images(const Problem& problem, const Device& device,
                                      std::vector<Candidate>* considered) {
  const std::string why = refusal(problem, device);
  if (!why.empty()) {
    if (considered) considered->push_back({"igemm_sm90 family", 0, why});
    return std::nullopt;
  }
  std::optional<Plan> best;
  for (const int pixels : kWholeImagesPixels) {
    const auto plan = plan_tile(problem, device, pixels);
    if (!plan) continue;
    consider_plan(best, "igemm_sm90 family", *plan, 0, estimate_ms(problem, device, *plan), problem.dtype, considered);
  }
  return best;
}

}  // namespace deconv
