// Tiles of the Hopper family's planes as they lie (kernels/hopper/planes.cuh).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "core/correlation.h"
#include "families/igemm_sm90/planner.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kLeastSlots = 3;

// Cycles of a multiprocessor at kClock, fitted to 832 timings of 29 layers on an H200.
struct Costs {
  double product;  // of 64 pixels, for each result channel and chunk of source channels
  double stage;    // of a chunk besides
  double bytes;    // that copies bring in a cycle, at most
  // Where channels are of several classes: of a chunk besides; of a tensor copy.
  double turned, copy;
  double item;     // of an item, on its way out
  // Of a result's element, on its way out; more, where neighbours are stored one by one, where rows begin within a
  // sector, where blocks are not whole.
  double element, apart, ragged, padded;
  double overlap;  // the larger, the more of products and results each hides of the other, where weights stay
  double memory;   // part of the time for moving all tensors that nothing hides
  double least;    // times as much as that, at least
  double launch_ms;
  // Times all that: the least of the other kernel's hundreds of estimates is too low. By hand, of 29 layers each.
  double beside_others;
};
constexpr Costs kCostsShort{1.6, 253, 46.7, 238, 58, 371, 0.0292, 0.219, 0.0622, 0.017, 1.46, 0.545, 1.17, 0.006, 1};
constexpr Costs kCostsTf32{1.6, 244, 48.1, 416, 66, 284, 0.0486, 0.347, 0.0649, 0.0246, 1, 0.446, 1.17, 0.006, 0.9};

// Classes of the source's channels (one_tap_plan.h); 0: tensor copies do not serve.
int channel_classes(const Problem& problem) {
  const Tensor4& x = problem.x;
  const int64_t size = element_size(problem.dtype), channels = problem.in_channels_per_group(), step = x.stride[1];
  const int64_t classes = channels > 1 ? 16 / std::gcd(int64_t{16}, step * size) : 1;
  const auto whole = [&](int64_t elements) { return elements * size % 16 == 0; };
  const bool fits = channels % classes == 0 && (problem.batch == 1 || whole(x.stride[0])) &&
                    (problem.groups == 1 || whole(channels * step)) && classes * step <= INT32_MAX / 2;
  return fits ? static_cast<int>(classes) : 0;
}

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (const std::string why = tensor_core_refusal(problem, 1, 1, 1); !why.empty()) return why;
  if (problem.direction != Direction::kForward || !problem.blocks || problem.blocks->line > 1) {
    return "computes the blocks of contiguous outputs";
  }
  if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) return "takes no strict float32";
  for (const Axis& axis : problem.axis) {
    if (axis.padding != 0 || axis.output != axis.input) return "takes blocks that read the pixel where they are";
  }
  const Tensor4& x = problem.x;
  if (problem.unaligned_first || (x.size[3] > 1 && x.stride[3] != 1) || (x.size[2] > 1 && x.stride[2] != x.size[3]) ||
      channel_classes(problem) == 0) {
    return "takes contiguous inputs of which tensor copies bring every plane";
  }
  const Correlation c = correlation(problem);
  if (std::min(c.source_channels, c.result_channels) < kSm90MinChannels) {
    return "takes at least " + std::to_string(kSm90MinChannels) + " channels a group on either side";
  }
  return "";
}

// How the weights lie, packed: for each group and tile of result channels the chunks of source channels.
IgemmSm90Plan packed_weights(const Problem& problem, int channels) {
  const Correlation c = correlation(problem);
  IgemmSm90Plan weights;
  weights.tile_m = channels;
  weights.to_blocks = true;
  weights.chunks = static_cast<int>(ceil_div(c.source_channels * element_size(problem.dtype), kSm90RowBytes));
  weights.m_tiles = static_cast<int>(ceil_div(c.result_channels, channels));
  weights.stage_bytes = kSm90RowBytes * channels;
  weights.column_bytes = static_cast<int64_t>(weights.chunks) * weights.stage_bytes;
  weights.packed_bytes = problem.groups * weights.m_tiles * weights.column_bytes;
  return weights;
}

std::optional<OneTapPlan> plan_tile(const Problem& problem, const Device& device, int channels, bool resident) {
  OneTapPlan p;
  p.weights = packed_weights(problem, channels);
  p.resident = resident;
  p.classes = channel_classes(problem);
  const int64_t weight_bytes = problem.w.numel() * element_size(problem.dtype);
  if (!sm90_may_pack(p.weights.packed_bytes, weight_bytes)) return std::nullopt;
  p.pieces = kOneTapPieces * (resident ? 1 : p.warpgroups());
  p.image_pieces = static_cast<int>(ceil_div(problem.axis[0].input * problem.axis[1].input, kOneTapPiece));
  const double pieces = static_cast<double>(problem.batch) * p.image_pieces;
  const int64_t columns = problem.groups * p.weights.m_tiles;
  if ((pieces + p.pieces) * static_cast<double>(columns) > 1 << 30) return std::nullopt;
  const int64_t tiles = ceil_div(problem.batch * p.image_pieces, p.pieces);
  p.columns = static_cast<int>(columns);
  p.items = static_cast<int>(tiles * columns);
  if (resident) {  // a block has one column
    if (columns > device.multiprocessors) return std::nullopt;
    const int64_t blocks = device.multiprocessors / columns * columns;
    p.blocks = static_cast<int>(std::min(blocks, ceil_div(tiles, p.warpgroups()) * columns));
  } else {
    p.blocks = std::min(p.items, device.multiprocessors);
  }
  p.rings = resident ? p.warpgroups() : 1;
  p.stage_bytes = p.pieces * one_tap_piece_bytes(p.classes) + (resident ? 0 : p.weights.stage_bytes);
  const int64_t stays = resident ? p.weights.column_bytes : 0;
  const int tables = 2 * p.warpgroups() * channels * kOneTapEntryBytes;
  const int64_t room = device.shared_bytes_per_block - tables - 16 * kOneTapMostSlots * p.rings - 8 - stays;
  p.slots = static_cast<int>(std::min<int64_t>(kOneTapMostSlots, room / (p.rings * p.stage_bytes)));
  if (room < 0 || p.slots < kLeastSlots) return std::nullopt;
  p.weights_at = p.rings * p.slots * p.stage_bytes;
  p.tables_at = p.weights_at + static_cast<int>(stays);
  p.barriers_at = p.tables_at + tables;
  p.shared_bytes = p.barriers_at + 16 * p.rings * p.slots + 8;
  return p;
}

double estimate_ms(const Problem& problem, const Device& device, const OneTapPlan& p) {
  const int64_t size = element_size(problem.dtype);
  const Costs& costs = size == 2 ? kCostsShort : kCostsTf32;
  const double warpgroups = p.warpgroups(), chunks = p.weights.chunks;
  // Of an item that warpgroups share, or of one of each.
  const double stage = costs.stage + (p.classes > 1 ? costs.turned : 0);
  const double copies = p.classes > 1 ? p.pieces * p.classes * costs.copy : 0;
  const double products = chunks * (warpgroups * p.weights.tile_m * costs.product + stage);
  const double load = chunks * p.rings * (p.stage_bytes / costs.bytes + copies);
  const double element = costs.element + (sm90_blocks_unit(problem, 2) == 2 ? 0 : costs.apart) +
                         (problem.blocks->size_w * size % kSectorBytes == 0 ? 0 : costs.ragged) +
                         (one_tap_have_whole_blocks(problem) ? 0 : costs.padded);
  const double leave = costs.item + kOneTapPieces * kOneTapPiece * warpgroups * p.weights.tile_m * element;
  const double work = p.resident ? std::pow(std::pow(products, costs.overlap) + std::pow(leave, costs.overlap),
                                            1 / costs.overlap)
                                 : products + leave;
  const auto rounds = static_cast<double>(ceil_div(p.items, p.blocks * p.rings));
  const double start = p.resident ? static_cast<double>(p.weights.column_bytes) / costs.bytes : 0;
  const double cycles = start + (rounds - 1) * std::max(work, load) + std::max(products, load) + leave;
  const double memory_ms = 1e3 * static_cast<double>(problem.bytes()) / device.bandwidth;
  const double ms = std::max(1e3 * cycles / kClock + costs.memory * memory_ms, costs.least * memory_ms) +
                    costs.launch_ms + sm90_pack_ms(p.weights.packed_bytes);
  return ms * costs.beside_others;
}

}  // namespace

bool one_tap_have_whole_blocks(const Problem& problem) {
  const ResultBlocks& b = *problem.blocks;
  return b.shift_h == 0 && b.shift_w == 0 && b.size_h == problem.axis[0].output * b.height &&
         b.size_w == problem.axis[1].output * b.width;
}

std::string describe(const OneTapPlan& plan, DType) {
  std::ostringstream text;
  text << plan.weights.tile_m << " channels x " << plan.pieces * kOneTapPiece << " pixels of planes as they lie"
       << (plan.classes > 1 ? " in " + std::to_string(plan.classes) + " classes" : "")
       << (plan.resident ? ", weights that stay" : "") << ", blocks stored where they belong";
  return text.str();
}

std::optional<Plan> plan_one_tap(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty()) {
    if (considered) considered->push_back({"igemm_sm90 family", 0, why});
    return std::nullopt;
  }
  std::optional<Plan> best;
  for (const int channels : kOneTapChannels) {
    for (const bool resident : {false, true}) {
      if (const std::optional<OneTapPlan> plan = plan_tile(problem, device, channels, resident)) {
        consider_plan(best, "igemm_sm90 family", *plan, plan->weights.packed_bytes + kSm90FlagBytes,
                      estimate_ms(problem, device, *plan), problem.dtype, considered);
      }
    }
  }
  return best;
}

}  // namespace deconv
