// Tiles of the Hopper family's planes as they lie (kernels/hopper/planes.cuh).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "core/correlation.h"
#include "families/igemm_sm90/planner.h"
#include "planner/cost_sm90.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kLeastSlots = 3;

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

std::optional<OneTapPlan> plan_tile(const Problem& problem, const Device& device, int channels, bool resident) {
  OneTapPlan p;
  p.weights = weights_as_b(problem, channels);
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
  p.blocks = resident ? resident_blocks(device, tiles, p.warpgroups(), columns)
                      : std::min(p.items, device.multiprocessors);
  if (p.blocks == 0) return std::nullopt;
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
  const int warpgroups = p.warpgroups();
  const int64_t element = element_size(problem.dtype);
  const double store = sm90::kStorePixels + (sm90_blocks_unit(problem, 2) == 2 ? 0 : sm90::kStoreSingle);
  const double products = p.weights.chunks *
                          (warpgroups * sm90::sm80_cycles(p.weights.tile_m, kSm90RowBytes) + sm90::kStage);
  const double leave = sm90::kHandOver + warpgroups * kOneTapPieces * kOneTapPiece * p.weights.tile_m * store;
  const double copies = p.classes > 1 ? p.pieces * p.classes * sm90::kCopy : 0;
  sm90::Work work;
  work.rounds = static_cast<double>(ceil_div(p.items, p.blocks * p.rings));
  work.item = p.resident ? sm90::overlapped(products, leave, element) : products + leave;
  work.load = p.weights.chunks * p.rings * (p.stage_bytes / sm90::kL2Bytes + copies);
  work.last = products + leave;
  work.start = p.resident ? static_cast<double>(p.weights.column_bytes) / sm90::kL2Bytes : 0;
  return sm90::kernel_ms(device, work, static_cast<double>(problem.bytes())) + sm90_pack_ms(p.weights.packed_bytes);
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
  return search_tiles(problem, refusal(problem, device), considered, [&](const auto& consider) {
    for (const int channels : kOneTapChannels) {
      for (const bool resident : {false, true}) {
        if (const std::optional<OneTapPlan> plan = plan_tile(problem, device, channels, resident)) {
          consider(*plan, plan->weights.packed_bytes + kSm90FlagBytes, estimate_ms(problem, device, *plan));
        }
      }
    }
  });
}

}  // namespace deconv
