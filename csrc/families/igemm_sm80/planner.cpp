// Tiles of the mma family (kernels/mma/conv.cuh).
#include "families/igemm_sm80/planner.h"

#include <algorithm>
#include <sstream>

#include "core/correlation.h"
#include "core/tap_span.h"
#include "lowerings/repack.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int64_t kMinChannels = 8;  // a group, on either side; fewer leave most of a tile empty
constexpr int kMostKept = 2;  // halos of a tile that stay for all phases
constexpr int64_t kMostReach = INT32_MAX;  // bytes from a halo's first pixel to its last
constexpr int64_t kMostPadding = 2;
constexpr int kReservedShared = 1024;  // of a block, for the system

// Cycles of a multiprocessor, fitted to 970 timings of all tiles of 26 layers on an H200, in bfloat16 and TF32.
constexpr double kShareOfPeak[2] = {0.91, 0.67};  // of the tensor cores' rate, within a turn; of three TF32 products
constexpr double kRagged = 1.06;  // where 8 pixels do not lie in one line, and share banks
// Times as much for products where a warp has two rows of 16 channels, for pixels are loaded more often: of 16 bits, of
// TF32, of three TF32 products (not fitted); where a block has 256 channels, for weights are.
constexpr double kTwoRows[3] = {1.35, 1.55, 1.2}, kManyChannels = 1.18;
constexpr double kTurnCost = 30;  // of a turn besides: the barrier, the weights, the walk over taps
constexpr double kHaloCost = 100;  // of a halo: the walk over halos
constexpr double kItemCost = 700, kBlockCost = 500;
constexpr int kMostItems = 32;  // of a block
constexpr int kMostRounds = 8;  // whose number of blocks is chosen exactly
constexpr int kLeastWidth = 4;  // of a tile that could be wider
constexpr double kFirstItem = 0.2;  // of an item's time: what a block's beginning costs
constexpr double kRowCost[3] = {1.5, 3.5, 28.0};  // of a band of a halo's pixel: 16 bytes at once; float32; registers
// Of what two blocks get from a multiprocessor, what one gets, and three.
constexpr double kOneBlock = 0.67, kThreeBlocks = 1.28;
// Of an element of the result: whose phases are stored together; of 16 bits that are stored alone; in parts of lines
// that are not whole sectors.
constexpr double kTogetherCost = 0.04, kAloneCost = 0.27, kRaggedLineCost = 0.22;
constexpr double kUnroundedCost = 0.97;  // times as much for products of TF32 where pixels were rounded before
// Sectors read for one that is written in part: where another phase writes the rest, where a neighbouring tile does.
constexpr double kReadOfPhase = 2, kReadOfTile = 0.5;
constexpr double kLaunchMs = 6e-3, kLaterLaunchMs = 3e-3;  // of the first kernel, of those that start early after it
// Over its bytes, at the speed of a device copy; of results whose channels do not begin with sectors, and that do.
constexpr double kRepackPasses = 2.5, kUnpackPasses[2] = {2.8, 2.3};
constexpr double kPackMsPerByte = 0.5e-9;

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  return tensor_core_refusal(problem, kMinChannels, kMmaMaxKernel, kMmaMaxStride);
}

class Candidates {
 public:
  Candidates(const Problem& problem, const Device& device)
      : problem_(problem),
        device_(device),
        c_(correlation(problem)),
        h_(geometry(problem, 0)),
        w_(geometry(problem, 1)),
        span_h_(tap_span(h_)),
        span_w_(tap_span(w_)),
        element_(static_cast<int>(element_size(problem.dtype))),
        vector_source_(vector_source(problem)) {}

  // Whether kernels before and after may rewrite the source and the result, and how many images at a time. 0: they may
  // not.
  int slice(bool repack, bool unpack) const {
    const auto pieces = [&](int64_t channels) { return channels * element_ % 16 == 0; };  // whole ones, in each group
    if (repack && (vector_source_ || !pieces(c_.source_channels))) return 0;
    const bool contiguous = problem_.result_layout == Layout::kContiguous && c_.result.stride[1] != 1;
    if (unpack && !(contiguous && pieces(c_.result_channels))) return 0;
    return static_cast<int>(repack_slice(
        problem_.batch,
        (repack ? repacked_image_bytes(problem_) : 0) + (unpack ? c_.result.numel() / problem_.batch * element_ : 0),
        kRepackLimit));
  }

  // Whether the result's two phases along the width can be stored together: four columns at once, aligned.
  bool alternates() const {
    const auto fours = [](int64_t elements) { return elements % 4 == 0; };
    return c_.result.stride[3] == 1 && c_.result.stride[1] != 1 && w_.result_step() == 2 && fours(c_.result.size[3]) &&
           fours(c_.result.stride[0]) && fours(c_.result.stride[1]) && fours(c_.result.stride[2]);
  }

  // Whether the tile suits the number of result channels; others leave half of it empty, or bring halos too often.
  bool suits(const MmaTile& tile) const {
    const int64_t channels = c_.result_channels;
    return tile.channels() == 32 ? channels <= 32 : channels > tile.channels() / 2;
  }

  // The best of the shapes that the tile's pixels can take. Nothing if none fits.
  std::optional<Plan> plan(const MmaTile& tile, bool repack, bool unpack, int together) const {
    std::optional<MmaConvPlan> best;
    double best_ms = 0;
    const int width = w_.phase_size(0);
    int last = 0;
    for (int most = tile.pixels(); most >= kLeastWidth; most /= 2) {
      const int even = static_cast<int>(ceil_div(width, ceil_div(width, most)));
      // As it is, and as whole 8 pixels, which come from neighbouring rows of shared memory.
      for (const int w : {static_cast<int>(round_up(even, 8)), even}) {
        if (w == last || w > most) continue;
        last = w;
        for (const int row_bytes : {2 * kMmaBandBytes, kMmaBandBytes}) {
          for (const bool keep : {false, true}) {
            const std::optional<MmaConvPlan> p = with_width(tile, w, row_bytes, keep, repack, unpack, together);
            if (!p) continue;
            const double ms = estimate_ms(*p);
            if (best && ms >= best_ms) continue;
            best = p;
            best_ms = ms;
          }
        }
      }
    }
    if (!best) return std::nullopt;
    choose_runs(*best);
    return Plan{tile_plan(*best), best->packed_bytes + best->repacked_bytes + best->unpacked_bytes, estimate_ms(*best)};
  }

 private:
  std::optional<MmaConvPlan> with_width(const MmaTile& tile, int width, int row_bytes, bool keep, bool repack,
                                        bool unpack, int together) const {
    MmaConvPlan p;
    p.tile = tile;
    p.together = together;
    p.split = problem_.dtype == DType::kFloat32 && !problem_.allow_tf32;
    p.origin_h = span_h_.origin;
    p.origin_w = span_w_.origin;
    p.phases_h = h_.phases();
    p.phases_w = w_.phases();
    p.planes_h = h_.planes();
    p.planes_w = w_.planes();
    p.slots_h = std::max(1, span_h_.most_of_phase);
    p.slots_w = std::max(1, span_w_.most_of_phase);
    p.row_bytes = row_bytes;
    p.bands = static_cast<int>(ceil_div(c_.source_channels * element_, kMmaBandBytes));
    p.chunks = static_cast<int>(ceil_div(c_.source_channels * element_, row_bytes));
    if (p.bands < row_bytes / kMmaBandBytes) return std::nullopt;  // half of each row empty
    p.m_tiles = static_cast<int>(ceil_div(c_.result_channels, tile.channels()));
    // As few tiles as the extents allow, of equal size.
    p.repack = repack;
    p.unpack = unpack;
    p.slice = slice(repack, unpack);
    const int height = h_.phase_size(0), batch = p.slice;
    const auto even = [](int extent, int most) {
      return static_cast<int>(ceil_div(extent, ceil_div(extent, std::min(extent, most))));
    };
    p.pixels.w = width;
    if (together > 1 && width % 2 != 0) return std::nullopt;  // a lane has two neighbours of each phase
    p.pixels.h = even(height, tile.pixels() / width);
    p.pixels.n = p.pixels.h < height ? 1 : even(batch, tile.pixels() / (width * height));
    p.halo = {p.pixels.n, p.pixels.h + span_h_.length, p.pixels.w + span_w_.length};
    p.tiles = {static_cast<int>(ceil_div(batch, p.pixels.n)), static_cast<int>(ceil_div(height, p.pixels.h)),
               static_cast<int>(ceil_div(w_.phase_size(0), width))};
    const int64_t rows = static_cast<int64_t>(p.halo.n) * p.halo.h * p.halo.w, pitch = mma_row_pitch(row_bytes);
    if (rows > device_.shared_bytes_per_block / pitch) return std::nullopt;
    const Tensor4 source = repack ? repacked_source(problem_) : c_.source;
    const int64_t reach = (p.halo.n - 1) * source.stride[0] +
                          (int64_t{p.halo.h} * h_.source_step() - 1) * source.stride[2] +
                          (int64_t{p.halo.w} * w_.source_step() - 1) * source.stride[3];
    if (reach * element_ > kMostReach) return std::nullopt;
    const int of_chunk = row_bytes / kMmaBandBytes, fewest_bands = p.bands % of_chunk == 0 ? of_chunk : 1;
    const int turns = std::max(1, span_h_.least * span_w_.least) * fewest_bands;  // of the halo with fewest
    p.keep_halos = keep;
    const int halos = p.chunks * p.planes_h * p.planes_w;
    if (keep && (p.phases_h * p.phases_w == 1 || halos > kMostKept)) return std::nullopt;
    // A halo that is asked for at its predecessor's first turn must be there in time, however few turns there are.
    p.halos_ahead = keep ? halos : static_cast<int>(ceil_div(kMmaStages - 1, turns));
    if (p.halos_ahead * turns < kMmaStages - 1) return std::nullopt;
    p.halo_slots = p.halos_ahead + (keep ? halos : 1);
    p.halo_bytes = static_cast<int>(round_up(rows, kMmaPassRows) * pitch);
    p.staged_bytes = channels_adjacent(p) || together > 1 ? 0 : 8 * mma_staging_pitch(element_) * 4;
    p.weights_at = static_cast<int>(round_up(p.halo_slots * p.halo_bytes, 128));
    p.staging_at = p.weights_at + kMmaStages * tile.channels() * kMmaBandBytes;
    p.table_at = p.staging_at + kMmaThreads / 32 * p.staged_bytes;
    const int planes = p.planes_h * p.planes_w;
    p.table_planes = planes <= kMmaMostTablePlanes ? planes : 1;
    p.places_at = p.table_at +
                  p.table_planes * kMmaOffsetBytes * static_cast<int>(round_up(rows, kMmaPassRows * kMmaTablePasses));
    p.kept_at = p.places_at + tile.pixels() * kMmaPlaceBytes;
    p.shared_bytes = p.kept_at + (together - 1) * tile.channels() * tile.pixels() * element_;
    if (p.shared_bytes > device_.shared_bytes_per_block) return std::nullopt;
    p.packed_bytes = problem_.groups * p.m_tiles * p.phases_h * p.phases_w * static_cast<int64_t>(p.bands) * p.slots_h *
                     p.slots_w * tile.channels() * kMmaBandBytes;
    if (p.packed_bytes > std::max(kWorkspaceLimit, kMostPadding * problem_.w.numel() * element_)) return std::nullopt;
    p.repacked_bytes = repack ? repacked_image_bytes(problem_) * p.slice : 0;
    p.unpacked_bytes = unpack ? c_.result.numel() / problem_.batch * p.slice * element_ : 0;
    const double items = static_cast<double>(p.tiles.n) * p.tiles.h * p.tiles.w * p.phases_h * p.phases_w;
    if (items * p.m_tiles * static_cast<double>(problem_.groups) > (1 << 30)) return std::nullopt;
    p.items = static_cast<int>(items);
    set_runs(p, 1);
    return p;
  }

  // Of what the kernel stores.
  bool channels_adjacent(const MmaConvPlan& p) const { return p.unpack || c_.result.stride[1] == 1; }

  bool is_whole(int64_t elements) const { return elements * element_ % kSectorBytes == 0; }
  // Whether a tile has its lines of the result whole, and one after the other.
  bool holds_lines(const MmaConvPlan& p) const {
    return h_.result_step() == 1 && w_.result_step() == p.together && p.pixels.w >= w_.phase_size(0);
  }
  bool whole_lines() const { return is_whole(c_.result.stride[2]) && is_whole(c_.result.stride[1]); }

  // Blocks of a multiprocessor.
  int resident(const MmaConvPlan& p) const {
    const int by_registers = mma_blocks(p.tile.rows, p.split);
    return std::max(1,
                    std::min<int>(by_registers, device_.shared_bytes_per_block / (p.shared_bytes + kReservedShared)));
  }

  void set_runs(MmaConvPlan& p, int items_per_block) const {
    p.items_per_block = items_per_block;
    p.runs = static_cast<int>(ceil_div(p.items, items_per_block));
    p.blocks = p.runs * problem_.groups * p.m_tiles;
    p.starts_early = p.blocks > int64_t{device_.multiprocessors} * (resident(p) - 1);
  }

  // As many items a block as leave the blocks in few whole rounds: a block's first halo comes while nothing is
  // computed. With many rounds their number matters little.
  void choose_runs(MmaConvPlan& p) const {
    const int64_t at_once = static_cast<int64_t>(device_.multiprocessors) * resident(p);
    const int64_t columns = problem_.groups * p.m_tiles;
    double best = 0;
    const auto consider = [&](int64_t least) {
      const int64_t count = round_up(least, int64_t{p.together});
      const int64_t rounds = ceil_div(ceil_div(p.items, count) * columns, at_once);
      const double cost = static_cast<double>(rounds) * (items_cost(p, static_cast<int>(count)) + kFirstItem);
      if (best > 0 && cost >= best) return;
      best = cost;
      set_runs(p, static_cast<int>(count));
    };
    consider(1);
    for (int64_t rounds = 1; rounds <= kMostRounds; ++rounds) {
      const int64_t runs = at_once * rounds / columns;
      const int64_t count = runs == 0 ? kMostItems : ceil_div(p.items, runs);
      consider(std::min<int64_t>(count, std::min(kMostItems, p.items)));
    }
  }

  // Of so many items, in items of average taps, for the block that has most.
  double items_cost(const MmaConvPlan& p, int count) const {
    const int phases = p.phases_h * p.phases_w, rest = count % phases;
    const double fullest = static_cast<double>(p.slots_h) * p.slots_w * phases /
                           (static_cast<double>(h_.kernel) * w_.kernel);
    return count + std::min(rest, 1) * std::max(0.0, fullest - 1);
  }

  double estimate_ms(const MmaConvPlan& p) const {
    const bool is_float = element_ == 4;
    // Of one block, on average.
    const double taps = static_cast<double>(h_.kernel) * w_.kernel / (p.phases_h * p.phases_w);
    const double turns = taps * p.bands;
    const double rate = mma_tensor_rate(device_.capability) * kShareOfPeak[p.split] / (p.split ? 3 : 1);
    const double few_rows = p.tile.rows == 2 ? kTwoRows[p.split ? 2 : is_float ? 1 : 0] : 1;
    const double rounding = is_float && !p.split && p.repack ? kUnroundedCost : 1;
    const double products = (p.pixels.w % 8 == 0 ? 1 : kRagged) * few_rows * (p.tile.warps_m == 4 ? kManyChannels : 1) *
                            rounding * 2.0 * p.tile.channels() * p.tile.pixels() * (kMmaBandBytes / 2) / rate;
    const double of_phases = p.keep_halos ? 1.0 / (p.phases_h * p.phases_w) : std::min(1.0, taps);  // that bring halos
    const double rows = static_cast<double>(p.halo.n) * p.halo.h * p.halo.w * of_phases * p.bands * p.planes_h *
                        p.planes_w;
    const double row_cost = kRowCost[vector_source_ || p.repack ? 0 : is_float ? 1 : 2];
    const double results = 1.0 * p.tile.channels() * p.tile.pixels();
    const double halos = of_phases * p.chunks * p.planes_h * p.planes_w;
    const double ragged = whole_lines() || holds_lines(p) ? 0 : kRaggedLineCost;
    const double store = channels_adjacent(p)                           ? 0
                         : p.together > 1                               ? kTogetherCost + ragged
                         : !is_float && !mma_vector_result(problem_, p) ? kAloneCost
                                                                        : ragged;
    const double work = turns * (products + kTurnCost) + halos * kHaloCost + rows * row_cost + results * store +
                        kItemCost;
    const double rounds = static_cast<double>(ceil_div(p.blocks, device_.multiprocessors));
    const double blocks = std::min<double>(rounds, resident(p));  // at once
    const double share = blocks < 2 ? kOneBlock : blocks < 3 ? 1 : kThreeBlocks;
    const double stores = result_traffic(p) / device_.bandwidth;
    const double others = static_cast<double>(problem_.bytes() - c_.result.numel() * element_) / device_.bandwidth;
    const double slices = static_cast<double>(ceil_div(problem_.batch, p.slice));
    const double repacked = slices *
                            (kRepackPasses * static_cast<double>(p.repacked_bytes) +
                             kUnpackPasses[is_whole(c_.result.stride[1])] * static_cast<double>(p.unpacked_bytes));
    const double later_launches = slices * (p.unpack ? 2 : 1) - 1;
    const double cycles = slices * rounds * (items_cost(p, p.items_per_block) * work + kBlockCost) / share;
    return 1e3 * (std::max(cycles / kClock, others) + stores) + kLaunchMs + later_launches * kLaterLaunchMs +
           kPackMsPerByte * static_cast<double>(p.packed_bytes) + 1e3 * repacked / device_.bandwidth;
  }

  // Bytes of memory, to and fro, for the result. A sector that is written in part is read before.
  double result_traffic(const MmaConvPlan& p) const {
    const double bytes = static_cast<double>(c_.result.numel()) * element_;
    if (channels_adjacent(p)) return bytes;
    const double line = static_cast<double>(p.pixels.w) * p.together * element_;  // of a tile
    const int apart = w_.result_step() / p.together;
    double sectors = line * apart / kSectorBytes, read = 0;
    if (apart > 1) {
      sectors = std::min(sectors + 1, static_cast<double>(p.pixels.w));
      read = kReadOfPhase * sectors;
    } else if (!(is_whole(p.pixels.w * p.together) && whole_lines())) {
      sectors += 1;
      read = kReadOfTile * std::min(2.0, sectors);
    }
    return bytes / line * kSectorBytes * (sectors + read);
  }

  const Problem& problem_;
  const Device& device_;
  Correlation c_;
  AxisGeometry h_, w_;
  TapSpan span_h_, span_w_;
  int element_;
  bool vector_source_;
};

}  // namespace

double mma_tensor_rate(int capability) {
  if (capability == 80) return 2048;
  if (capability == 90) return 2690;
  return capability < 90 || capability >= 120 ? 512 : 2048;
}

std::string describe(const MmaConvPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.channels() << " channels x (" << plan.pixels.n << " images, " << plan.pixels.h << " rows, "
       << plan.pixels.w << " columns) in " << plan.tile.pixels() << " pixels"
       << (plan.row_bytes > kMmaBandBytes ? ", rows of 128 bytes" : "") << (plan.keep_halos ? ", halos kept" : "")
       << (plan.together > 1 ? ", phases together" : "") << (plan.repack ? ", source repacked" : "")
       << (plan.unpack ? ", result unpacked" : "") << (plan.split ? ", three TF32 products" : "");
  return text.str();
}

bool mma_vector_result(const Problem& problem, const MmaConvPlan& plan) {
  const Correlation c = correlation(problem);
  const int64_t size = element_size(problem.dtype);
  if (plan.unpack) return true;
  if (c.result.stride[1] == 1) return packs_along_channels(c.result, c.result_channels, 16 / size);
  // Pairs of 16-bit columns, in one line and in one word.
  const bool pairs = geometry(problem, 1).result_step() == 1 && plan.pixels.w % 2 == 0;
  return size == 2 && c.result.stride[3] == 1 && pairs && c.result.size[3] % 2 == 0 && c.result.stride[0] % 2 == 0 &&
         c.result.stride[1] % 2 == 0 && c.result.stride[2] % 2 == 0;
}

std::optional<Plan> plan_mma_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty()) {
    if (considered) considered->push_back({"igemm_sm80 family", 0, why});
    return std::nullopt;
  }
  const Candidates candidates(problem, device);
  std::optional<Plan> best;
  for (const MmaTile& tile : kMmaTiles) {
    if (!candidates.suits(tile)) continue;
    for (const bool repack : {false, true}) {
      for (const auto& [unpack, together] : {std::pair{false, 1}, {false, 2}, {true, 1}}) {
        if (candidates.slice(repack, unpack) == 0 || (together > 1 && !candidates.alternates())) continue;
        const std::optional<Plan> plan = candidates.plan(tile, repack, unpack, together);
        if (!plan) continue;
        consider_plan(best, "igemm_sm80 family", *plan->get_if<MmaConvPlan>(), plan->workspace_bytes, plan->estimate_ms,
                      problem.dtype, considered);
      }
    }
  }
  if (!best && considered) {
    considered->push_back(
        {"igemm_sm80 family", 0,
         "no tile fits: its halo in shared memory and 2 GiB of the source, its packed weights in their bound"});
  }
  return best;
}

}  // namespace deconv
