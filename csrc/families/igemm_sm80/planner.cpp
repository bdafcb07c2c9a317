// Tiles of conv.cuh.
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
constexpr int kMostKept = 2;  // reused halos of a tile
constexpr int64_t kMostReach = INT32_MAX;  // bytes from a halo's first pixel to its last: 32-bit offsets
constexpr int64_t kMostPadding = 2;
constexpr int kMostItems = 32;  // work tiles of a block
constexpr int kLeastWidth = 4;  // columns of a tile that could be wider

// Cycles of a multiprocessor of an H200, fitted to timings of all tiles of 26 layers.
constexpr double kShareOfPeak = 0.91;  // of the tensor cores' rate
constexpr int kSplitProducts = 4;  // times the cycles: tf32x3
constexpr double kTwoRows = 1.4;  // times the cycles if a warp has 32 channels: more loads of pixels
constexpr double kManyChannels = 1.2;  // times the cycles if a block has 256 channels: more loads of weights
constexpr int kTurnCost = 30;  // a turn: the barrier, the weights
constexpr double kRowCost[3] = {1.5, 3.5, 28};  // a band of a halo's pixel: 16 bytes at once; float32; registers
constexpr int kElements = 4;  // a cycle, stored one by one or in lines of partial sectors
constexpr int kItemCost = 700, kBlockCost = 500;
constexpr double kLaunchMs = 6e-3;

std::string refusal(const Problem& problem, const Device& device) {
  if (!device.has_mma) return "needs a GPU and a build for compute capability 8.0 or later";
  return tensor_core_refusal(problem, kMinChannels, kSm80MaxKernel, kSm80MaxStride);
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
        element_(element_size(problem.dtype)),
        vector_source_(vector_source(problem)) {}

  // Images at a time if kernels before and after rewrite source and result; 0 if they cannot.
  int slice(bool repack, bool unpack) const {
    const auto is_whole = [&](int64_t channels) { return channels * element_ % 16 == 0; };  // in each group
    if (repack && (vector_source_ || !is_whole(c_.source_channels))) return 0;
    const bool contiguous = problem_.result_layout == Layout::kContiguous && c_.result.stride[1] != 1;
    if (unpack && !(contiguous && is_whole(c_.result_channels))) return 0;
    return repack_slice(problem_.batch,
                        (repack ? repacked_image_bytes(problem_) : 0) + (unpack ? result_image_bytes() : 0),
                        kRepackLimit);
  }

  // True if the result's two phases along the width can be stored together: four columns at once, aligned.
  bool alternates() const { return c_.result.stride[1] != 1 && w_.result_step() == 2 && packs_four_columns(c_.result); }

  // False for tiles that leave half of their channels empty, or load halos more often than necessary.
  bool suits(const Sm80Tile& tile) const {
    const int64_t channels = c_.result_channels;
    return tile.channels() == 32 ? channels <= 32 : channels > tile.channels() / 2;
  }

  // The best shape of the tile's pixels; nothing if none fits.
  std::optional<IgemmSm80Plan> plan(const Sm80Tile& tile, bool repack, bool unpack, int together) const {
    std::optional<IgemmSm80Plan> best;
    double best_ms = 0;
    const int width = w_.phase_size(0);
    int last = 0;
    for (int most = tile.pixels(); most >= kLeastWidth; most /= 2) {
      const int even = even_part(width, most);
      // The even width, and rounded up to 8 pixels, which are adjacent rows of shared memory.
      for (const int w : {(even + 7) / 8 * 8, even}) {
        if (w == last || w > most) continue;
        last = w;
        for (const int row_bytes : {2 * kSm80BandBytes, kSm80BandBytes}) {
          for (const bool keep : {false, true}) {
            const std::optional<IgemmSm80Plan> p = with_width(tile, w, row_bytes, keep, repack, unpack, together);
            if (!p) continue;
            const double ms = estimate_ms(*p);
            if (best && ms >= best_ms) continue;
            best = p;
            best_ms = ms;
          }
        }
      }
    }
    return best;
  }

  double estimate_ms(const IgemmSm80Plan& p) const {
    const double phases = p.phases_h * p.phases_w;
    const double taps = h_.kernel * w_.kernel / phases;  // of a work tile, on average
    const double outputs = p.tile.channels() * p.tile.pixels();
    const double products = outputs * kSm80BandBytes / (kShareOfPeak * sm80_tensor_rate(device_.capability)) *
                            (p.tile.rows == 2 ? kTwoRows : 1) * (p.tile.warps_m == 4 ? kManyChannels : 1) *
                            (p.split ? kSplitProducts : 1);
    const double halos = (p.keep_halos ? 1 / phases : std::min<double>(1, taps)) * p.planes_h * p.planes_w;
    const double rows = halos * p.halo.n * p.halo.h * p.halo.w * p.bands;
    const int loads = vector_source_ || p.repack ? 0 : element_ == 4 ? 1 : 2;
    const bool leaves_alone = !channels_adjacent(p) &&
                              ((!whole_lines() && !holds_lines(p)) ||
                               (element_ == 2 && p.together == 1 && !sm80_vector_result(problem_, p)));
    const double item = taps * p.bands * (products + kTurnCost) + rows * kRowCost[loads] +
                        (leaves_alone ? outputs / kElements : 0) + kItemCost;
    const double rounds = ceil_div(p.blocks, device_.multiprocessors);
    const double speed = (1 + std::min<double>(rounds, resident(p))) / 3;  // of resident blocks, over that of two
    const double slices = ceil_div(problem_.batch, p.slice);
    const double cycles = slices * rounds * (p.items_per_block * item + kBlockCost) / speed;
    const double others = problem_.bytes() - c_.result.numel() * element_;
    const double rewritten = (p.repack ? repack_ms(c_.source, p.repacked_bytes) : 0) +
                             (p.unpack ? repack_ms(c_.result, p.unpacked_bytes) : 0);
    return 1e3 * (std::max(cycles / kClock, others / device_.bandwidth) + result_traffic(p) / device_.bandwidth) +
           kLaunchMs + (slices - 1) * kRepackLaunchMs + slices * rewritten + kRepackMsPerByte * p.packed_bytes;
  }

 private:
  std::optional<IgemmSm80Plan> with_width(const Sm80Tile& tile, int width, int row_bytes, bool keep, bool repack,
                                          bool unpack, int together) const {
    if (together > 1 && width % 2 != 0) return std::nullopt;  // a lane has two adjacent pixels of each phase
    IgemmSm80Plan p;
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
    p.bands = ceil_div(c_.source_channels * element_, kSm80BandBytes);
    p.chunks = ceil_div(c_.source_channels * element_, row_bytes);
    p.m_tiles = ceil_div(c_.result_channels, tile.channels());
    p.repack = repack;
    p.unpack = unpack;
    p.slice = slice(repack, unpack);
    const int of_chunk = row_bytes / kSm80BandBytes;
    if (p.bands < of_chunk) return std::nullopt;  // half of each row is empty
    const int height = h_.phase_size(0), rest = tile.pixels() / width;
    p.pixels.w = width;
    p.pixels.h = even_part(height, rest);
    p.pixels.n = p.pixels.h < height ? 1 : even_part(p.slice, rest / height);
    p.halo = {p.pixels.n, p.pixels.h + span_h_.length, p.pixels.w + span_w_.length};
    p.tiles.n = ceil_div(p.slice, p.pixels.n);
    p.tiles.h = ceil_div(height, p.pixels.h);
    p.tiles.w = ceil_div(w_.phase_size(0), width);
    const int64_t rows = int64_t{p.halo.n} * p.halo.h * p.halo.w, pitch = sm80_row_pitch(row_bytes);
    if (rows > device_.shared_bytes_per_block / pitch) return std::nullopt;
    const Tensor4 source = repack ? repacked_source(problem_) : c_.source;
    const int64_t reach = (p.halo.n - 1) * source.stride[0] +
                          (int64_t{p.halo.h} * h_.source_step() - 1) * source.stride[2] +
                          (int64_t{p.halo.w} * w_.source_step() - 1) * source.stride[3];
    if (reach * element_ > kMostReach) return std::nullopt;

    const int planes = p.planes_h * p.planes_w, halos = p.chunks * planes;
    if (keep && (p.phases_h * p.phases_w == 1 || halos > kMostKept)) return std::nullopt;
    // A halo that is issued in its predecessor's first turn must arrive in time, however few turns there are.
    const int turns = std::max(1, span_h_.least * span_w_.least) * (p.bands % of_chunk == 0 ? of_chunk : 1);
    p.keep_halos = keep;
    p.halos_ahead = keep ? halos : ceil_div(kSm80Stages - 1, turns);
    if (p.halos_ahead * turns < kSm80Stages - 1) return std::nullopt;
    p.halo_slots = p.halos_ahead + (keep ? halos : 1);
    p.halo_bytes = round_up(rows, kSm80PassRows) * pitch;
    p.staged_bytes = channels_adjacent(p) || together > 1 ? 0 : 8 * sm80_staging_pitch(element_) * 4;
    p.weights_at = round_up(p.halo_slots * p.halo_bytes, 128);
    p.staging_at = p.weights_at + kSm80Stages * tile.channels() * kSm80BandBytes;
    p.table_at = p.staging_at + kSm80Threads / 32 * p.staged_bytes;
    p.table_planes = planes <= kSm80MostTablePlanes ? planes : 1;
    p.places_at = p.table_at + p.table_planes * kSm80OffsetBytes * round_up(rows, kSm80PassRows * kSm80TablePasses);
    p.kept_at = p.places_at + tile.pixels() * kSm80PlaceBytes;
    p.shared_bytes = p.kept_at + (together - 1) * tile.channels() * tile.pixels() * element_;
    if (p.shared_bytes > device_.shared_bytes_per_block) return std::nullopt;
    p.packed_bytes = problem_.groups * p.m_tiles * p.phases_h * p.phases_w * p.bands * p.slots_h * p.slots_w *
                     tile.channels() * kSm80BandBytes;
    if (p.packed_bytes > std::max(kWorkspaceLimit, kMostPadding * problem_.w.numel() * element_)) return std::nullopt;
    p.repacked_bytes = repack ? repacked_image_bytes(problem_) * p.slice : 0;
    p.unpacked_bytes = unpack ? result_image_bytes() * p.slice : 0;
    return choose_runs(p) ? std::optional(p) : std::nullopt;
  }

  int64_t result_image_bytes() const { return c_.result.numel() / problem_.batch * element_; }
  // True if the kernel itself stores adjacent channels.
  bool channels_adjacent(const IgemmSm80Plan& p) const { return p.unpack || c_.result.stride[1] == 1; }

  bool is_whole(int64_t elements) const { return elements * element_ % kSectorBytes == 0; }
  bool whole_lines() const { return is_whole(c_.result.stride[2]) && is_whole(c_.result.stride[1]); }
  // True if a tile has whole lines of the result, one after the other.
  bool holds_lines(const IgemmSm80Plan& p) const {
    return h_.result_step() == 1 && w_.result_step() == p.together && p.pixels.w >= w_.phase_size(0);
  }

  // Blocks a multiprocessor.
  int resident(const IgemmSm80Plan& p) const {
    return std::clamp(device_.shared_bytes_per_block / (p.shared_bytes + kReservedShared), 1,
                      sm80_blocks(p.tile.rows, p.split));
  }

  // Chooses the work tiles of a block, so that blocks fill few whole rounds. A block's first halo arrives while nothing
  // is computed: a fifth of a work tile's time. False: too many work tiles.
  bool choose_runs(IgemmSm80Plan& p) const {
    const int64_t items = int64_t{p.tiles.n} * p.tiles.h * p.tiles.w * p.phases_h * p.phases_w;
    const int64_t columns = problem_.groups * p.m_tiles, at_once = int64_t{device_.multiprocessors} * resident(p);
    if (items > (1 << 30) / columns) return false;
    p.items = items;
    int64_t best = 0;
    for (int count = p.together; count == p.together || count <= std::min(kMostItems, p.items); count += p.together) {
      const int64_t runs = ceil_div(p.items, count), cost = ceil_div(runs * columns, at_once) * (5 * count + 1);
      if (best > 0 && cost >= best) continue;
      best = cost;
      p.items_per_block = count;
      p.runs = runs;
      p.blocks = runs * columns;
    }
    p.starts_early = p.blocks > at_once - device_.multiprocessors;
    return true;
  }

  // Bytes of memory traffic for the result. A sector that is written in part is read first.
  double result_traffic(const IgemmSm80Plan& p) const {
    const double bytes = c_.result.numel() * element_;
    if (channels_adjacent(p)) return bytes;
    const double line = p.pixels.w * p.together * element_;  // of a tile
    const int apart = w_.result_step() / p.together;
    const double sectors = line * apart / kSectorBytes;
    // Each of two or more phases writes its part of a sector.
    if (apart > 1) return 3 * bytes / line * kSectorBytes * std::min<double>(sectors + 1, p.pixels.w);
    if (is_whole(p.pixels.w * p.together) && whole_lines()) return bytes;
    return bytes / line * kSectorBytes * (sectors + 3);
  }

  const Problem& problem_;
  const Device& device_;
  Correlation c_;
  AxisGeometry h_, w_;
  TapSpan span_h_, span_w_;
  int64_t element_;
  bool vector_source_;
};

}  // namespace

double sm80_tensor_rate(int capability) {
  if (capability == 80) return 2048;
  if (capability == 90) return 2690;
  return capability < 90 || capability >= 120 ? 512 : 2048;
}

std::string describe(const IgemmSm80Plan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.channels() << " channels x (" << plan.pixels.n << " images, " << plan.pixels.h << " rows, "
       << plan.pixels.w << " columns) in " << plan.tile.pixels() << " pixels"
       << (plan.row_bytes > kSm80BandBytes ? ", rows of 128 bytes" : "") << (plan.keep_halos ? ", halos kept" : "")
       << (plan.together > 1 ? ", phases together" : "") << (plan.repack ? ", source repacked" : "")
       << (plan.unpack ? ", result unpacked" : "") << (plan.split ? ", three TF32 products" : "");
  return text.str();
}

bool sm80_vector_result(const Problem& problem, const IgemmSm80Plan& plan) {
  const Correlation c = correlation(problem);
  const int64_t size = element_size(problem.dtype);
  if (plan.unpack) return true;
  if (c.result.stride[1] == 1) return packs_along_channels(c.result, c.result_channels, 16 / size);
  // Pairs of 16-bit columns, each in one line and in one word.
  const bool pairs = geometry(problem, 1).result_step() == 1 && plan.pixels.w % 2 == 0;
  return size == 2 && c.result.stride[3] == 1 && pairs && c.result.size[3] % 2 == 0 && c.result.stride[0] % 2 == 0 &&
         c.result.stride[1] % 2 == 0 && c.result.stride[2] % 2 == 0;
}

std::optional<Plan> plan_mma_conv(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  if (const std::string why = refusal(problem, device); !why.empty())
    return refuse(considered, "igemm_sm80 family", why);
  const Candidates candidates(problem, device);
  std::optional<Plan> best;
  for (const Sm80Tile& tile : kSm80Tiles) {
    if (!candidates.suits(tile)) continue;
    for (const bool repack : {false, true}) {
      for (const auto& [unpack, together] : {std::pair{false, 1}, {false, 2}, {true, 1}}) {
        if (candidates.slice(repack, unpack) == 0 || (together > 1 && !candidates.alternates())) continue;
        const std::optional<IgemmSm80Plan> plan = candidates.plan(tile, repack, unpack, together);
        if (!plan) continue;
        consider_plan(best, "igemm_sm80 family", *plan,
                      plan->packed_bytes + plan->repacked_bytes + plan->unpacked_bytes, candidates.estimate_ms(*plan),
                      problem.dtype, considered);
      }
    }
  }
  if (!best) {
    return refuse(considered, "igemm_sm80 family",
                  "no tile fits: its halo in shared memory and 2 GiB of the source, its packed weights in their bound");
  }
  return best;
}

}  // namespace deconv
