// Tiles, runs of taps and splits of the Hopper family's grad_weight by tensor copies
// (kernels/hopper/weight_tensor.cuh).
#include <limits>
#include <sstream>

#include "families/wgrad_sm90/planner_tma_nhwc.h"

namespace deconv {
namespace {

constexpr const char* kName = "wgrad_sm90 family, tensor copies";
constexpr int kChannels = kHopperWeightChannels;
// Tensor cores cut their running sum off instead of rounding it; a split's sum stays short enough for that not to show
// beside the rounding of the operands.
constexpr int64_t kMostPixels = 1 << 16;

// Cycles of a multiprocessor, fitted to 2,852 timings of 26 layers on an H200.
constexpr double kColumns = 34.5;     // of an instruction's 64 columns
constexpr double kOneColumn = 6;      // more where an instruction has no others: it reads as much as it can
constexpr double kSharedBytes = 128;  // read by tensor cores or written by tensor copies, in a cycle
constexpr double kCopyBytes = 76;     // brought from L2 in a cycle
constexpr double kCopyCost = 60;      // of asking for a copy
constexpr double kLatency = 1700;     // of a copy
constexpr double kStageCost = 10;
constexpr double kCopyOverlap = 0.05;  // of what hides behind something longer, still felt

// 64 columns of an instruction: a tap and a tile of output channels.
struct Column {
  int kh, kw, chunk;
};
using Line = std::vector<Column>;  // of one instruction

// Which columns may share an instruction: taps of one plane in a row or in a column, taps of neighbouring planes, tiles
// of output channels.
enum class Along { kWidth, kHeight, kPlanes, kChunks };

// What a block's warpgroups compute on which copies of grad_output; independent of the tile of pixels.
struct Arrangement {
  struct Group {
    std::vector<Line> runs;
    std::vector<WeightPlaneBox> boxes;
  };
  std::vector<Group> groups;
  int x_boxes = 1, y_chunks = 1;
  WeightReach reach;
};

class Candidates : public WeightCopiesCandidates {
 public:
  // in_slices: results of other images add to the same sums.
  Candidates(const Problem& problem, const Device& device, bool in_slices)
      : WeightCopiesCandidates(problem, device, in_slices, kMostPixels),
        fold_(std::max<int64_t>(1, std::min({kChannels / m_, kChannels / n_, problem.groups}))) {}

  std::optional<Arrangement> arrange(HopperWeightTensorTile tile, HopperWeightShare share, Along along) const {
    const bool of_m = share == HopperWeightShare::kInputChannels, of_n = share == HopperWeightShare::kOutputChannels;
    if (fold_ > 1 && (share != HopperWeightShare::kTaps || along == Along::kChunks)) return std::nullopt;
    if (of_n && along == Along::kChunks) return std::nullopt;  // the same blocks in another order
    if (of_m && (tile.warpgroups - 1) * kChannels >= m_) return std::nullopt;
    if (of_n && (tile.warpgroups - 1) * kChannels >= n_) return std::nullopt;
    if (along == Along::kChunks && (tile.first + tile.second - 1) * kChannels >= n_) return std::nullopt;
    Arrangement all;
    all.x_boxes = of_m ? tile.warpgroups : 1;
    all.y_chunks = of_n ? tile.warpgroups : along == Along::kChunks ? tile.first + tile.second : 1;
    const int64_t columns = static_cast<int64_t>(axis_[0].kernel) * axis_[1].kernel *
                            (along == Along::kChunks ? all.y_chunks : 1);
    if (columns > kHopperWeightRuns * (tile.first + tile.second)) return std::nullopt;  // fill would say so
    std::vector<Line> first, second;
    for (const Line& line : lines(along, all.y_chunks)) cut(line, tile, first, second);
    balance(tile, first, second);
    const size_t slots = std::max(first.size(), second.size());
    const int takers = share == HopperWeightShare::kTaps ? tile.warpgroups : 1;
    for (size_t begin = 0; begin < slots; begin += takers) {
      Arrangement::Group group;
      for (int taker = 0; taker < (of_n ? tile.warpgroups : takers); ++taker) {
        const size_t slot = of_n ? begin : begin + taker;
        const auto add = [&](const std::vector<Line>& pool) {
          group.runs.push_back(slot < pool.size() ? pool[slot] : Line{});
          if (of_n) {
            for (Column& column : group.runs.back()) column.chunk = taker;
          }
        };
        add(first);
        if (tile.second > 0) add(second);
      }
      if (!place(group, all)) return std::nullopt;
      all.groups.push_back(std::move(group));
    }
    return all;
  }

  // The plan of one tile of pixels, given from the innermost axis on, but for the tables that `fill` writes. False: it
  // does not fit, or takes limit_ms or more. What an earlier call left in `p` is overwritten.
  bool plan(HopperWeightTensorPlan& p, HopperWeightTensorTile tile, HopperWeightShare share, const Arrangement& all,
            HopperInner inner, const std::array<int, 3>& pixels, double limit_ms) const {
    p.tile = tile;
    p.share = share;
    p.fold = static_cast<int>(fold_);
    if (!choose_pixels(p, inner, pixels, all.reach)) return false;
    const int rows = pixels[0] * pixels[1] * pixels[2];
    p.instructions = rows / 16;
    if (rows % (16 * kHopperWeightAtOnce) != 0 || p.instructions > kHopperWeightSteps) return false;
    if (pixels[0] % 16 == 0) {
      p.octet_step = 8;
    } else if (pixels[0] == 8 && pixels[1] % 2 == 0) {
      p.octet_step = p.halo[0];
    } else if (pixels[0] == 8 && pixels[1] == 1) {
      p.octet_step = p.halo[0] * p.halo[1];
    } else {
      return false;
    }
    p.x_boxes = all.x_boxes;
    p.y_chunks = all.y_chunks;
    if (!choose_memory(p, 1, all.reach.most_boxes)) return false;
    p.tap_groups = static_cast<int>(all.groups.size());
    p.group_runs = static_cast<int>(all.groups.front().runs.size());
    choose_blocks(p, kChannels);
    const double stage = stage_cycles(p, all);
    return least_ms(p, stage) < limit_ms && choose_splits(p, stage, is_scattered(problem_.w));
  }

  double estimate_ms(const HopperWeightTensorPlan& p, const Arrangement& all) const {
    return WeightCopiesCandidates::estimate_ms(p, stage_cycles(p, all), x_bytes(p) + y_bytes(p, all));
  }

  // The tables of the kernel. False: they do not hold so many, or a run's columns lie unevenly.
  bool fill(HopperWeightTensorPlan& p, const Arrangement& all) const {
    std::vector<const std::vector<WeightPlaneBox>*> groups;
    for (const Arrangement::Group& group : all.groups) groups.push_back(&group.boxes);
    if (p.tap_groups * p.group_runs > kHopperWeightRuns || !fill_boxes(p, groups)) return false;
    const std::array<int, 3> row = box_rows(p);
    int at[3] = {0, 0, 0};
    for (int k = 0; k < p.instructions; ++k) {
      p.instruction_row[k] = static_cast<int16_t>(at[0] * row[0] + at[1] * row[1] + at[2] * row[2]);
      for (int octet = 0; octet < 2; ++octet) {
        at[0] += 8;
        for (int a = 0; a < 2 && at[a] == p.pixels[a]; ++a) {
          at[a] = 0;
          ++at[a + 1];
        }
      }
    }
    int runs = 0, last_row = 0;
    for (const Arrangement::Group& group : all.groups) {
      for (const Line& line : group.runs) {
        HopperWeightRun run{0, 0, 0, 0, 0, 0, static_cast<int8_t>(line.size())};
        std::vector<std::array<int, 3>> blocks;  // row, tap, chunk
        for (const Column& column : line) {
          blocks.push_back({row_of_tap(p, group.boxes, column.kh, column.kw, column.chunk),
                            column.kh * axis_[1].kernel + column.kw, column.chunk});
        }
        if (!blocks.empty()) {
          run.row = static_cast<int16_t>(blocks[0][0]);
          run.tap = static_cast<int16_t>(blocks[0][1]);
          run.chunk = static_cast<int8_t>(blocks[0][2]);
        }
        if (blocks.size() > 1) {
          run.row_step = static_cast<int16_t>(blocks[1][0] - blocks[0][0]);
          run.tap_step = static_cast<int16_t>(blocks[1][1] - blocks[0][1]);
          run.chunk_step = static_cast<int8_t>(blocks[1][2] - blocks[0][2]);
        }
        for (int i = 0; i < run.count; ++i) {
          if (blocks[i] != std::array<int, 3>{run.row + i * run.row_step, run.tap + i * run.tap_step,
                                              run.chunk + i * run.chunk_step}) {
            return false;
          }
        }
        p.runs[runs++] = run;
        // Columns that are idle read what there is, behind the last slot if need be.
        const int blocks_of_run = (runs - 1) % p.tile.runs() == 0 ? p.tile.first : p.tile.second;
        last_row = std::max(last_row, run.row + (blocks_of_run - 1) * run.row_step);
      }
    }
    const int reach = last_row + p.instruction_row[p.instructions - 1] + p.octet_step + 8;
    const int stage = p.x_boxes * p.x_box_bytes + reach * kHopperRowBytes;
    p.shared_bytes = std::max(p.shared_bytes, (p.slots - 1) * p.slot_bytes + stage);
    return p.shared_bytes <= device_.shared_bytes_per_block;
  }

  // Tiles of pixels to consider, from the innermost axis on.
  std::vector<std::array<int, 3>> pixel_tiles(HopperInner inner) const {
    const std::array<int64_t, 3> sizes = this->sizes(inner);
    std::vector<std::array<int, 3>> tiles;
    for (const int x : {8, 16, 32, 64, 128}) {
      if (x > 8 && x >= 2 * round_up(sizes[0], 8)) break;
      std::vector<int> middle{1, 2, 4, 8, 16, 32};
      for (const int parts : {1, 2, 3}) {
        const int64_t size = ceil_div(sizes[1], parts);
        if (size <= 32 && std::find(middle.begin(), middle.end(), size) == middle.end()) {
          middle.push_back(static_cast<int>(size));
        }
      }
      for (const int y : middle) {
        if (y > 1 && y >= 2 * sizes[1]) continue;
        for (const int z : {1, 2, 4, 8, 16}) {
          if ((z > 1 && z >= 2 * sizes[2]) || x * y * z < 64 || x * y * z > 16 * kHopperWeightSteps) continue;
          tiles.push_back({x, y, z});
        }
      }
    }
    return tiles;
  }

 private:
  // All columns of a block with so many tiles of output channels along the chunks, else of the first.
  std::vector<Line> lines(Along along, int chunks) const {
    std::vector<Line> all;
    const std::vector<WeightPlane>&h = planes_[0], &w = planes_[1];
    const auto is_single = [](const std::vector<WeightPlane>& planes) {
      return std::all_of(planes.begin(), planes.end(), [](const WeightPlane& plane) { return plane.taps.size() == 1; });
    };
    if (along == Along::kPlanes) {
      if (!is_single(w) || w.size() * h.size() == 1) return all;
      for (int kh = 0; kh < axis_[0].kernel; ++kh) {
        if (kh == 0 || !is_single(h)) all.emplace_back();
        for (int kw = 0; kw < axis_[1].kernel; ++kw) all.back().push_back({kh, kw, 0});
      }
      return all;
    }
    const int outer = along == Along::kHeight ? 1 : 0;
    for (const WeightPlane& of_outer : planes_[outer]) {
      for (const int fixed : of_outer.taps) {
        for (const WeightPlane& plane : planes_[1 - outer]) {
          Line line;
          for (const int k : plane.taps) line.push_back(outer == 0 ? Column{fixed, k, 0} : Column{k, fixed, 0});
          if (along != Along::kChunks) {
            all.push_back(line);
            continue;
          }
          for (const Column& column : line) {
            all.emplace_back();
            for (int chunk = 0; chunk < chunks; ++chunk) all.back().push_back({column.kh, column.kw, chunk});
          }
        }
      }
    }
    return all;
  }

  // Cuts a line into what the first and the second runs of warpgroups take.
  static void cut(const Line& line, HopperWeightTensorTile tile, std::vector<Line>& first, std::vector<Line>& second) {
    size_t at = 0;
    const auto take = [&](std::vector<Line>& pool, int count) {
      const size_t end = std::min(line.size(), at + count);
      pool.emplace_back(line.begin() + at, line.begin() + end);
      at = end;
    };
    while (at < line.size()) {
      const bool fits_second = static_cast<int>(line.size() - at) <= tile.second;
      if (fits_second && (tile.first > tile.second || second.size() < first.size())) {
        take(second, tile.second);
      } else {
        take(first, tile.first);
      }
    }
  }
  static void balance(HopperWeightTensorTile tile, std::vector<Line>& first, std::vector<Line>& second) {
    while (second.size() > first.size() + 1) {
      first.push_back(second.back());
      second.pop_back();
    }
    if (tile.second == 0) return;
    while (first.size() > second.size() + 1 && static_cast<int>(first.back().size()) <= tile.second) {
      second.push_back(first.back());
      first.pop_back();
    }
  }

  // The copies that a group of taps reads.
  bool place(Arrangement::Group& group, Arrangement& all) const {
    for (const Line& line : group.runs) {
      for (const Column& column : line) reach(group.boxes, column.kh, column.kw, column.chunk);
    }
    all.reach.extend(group.boxes);
    return all.reach.most_boxes <= kHopperWeightBoxes;
  }

  // Bytes of one stage from memory; rows of channels may be shorter than 128 bytes.
  double x_bytes(const HopperWeightTensorPlan& p) const {
    return static_cast<double>(p.x_boxes) * p.x_box_bytes * share_of_row(m_);
  }
  double y_bytes(const HopperWeightTensorPlan& p, const Arrangement& all) const {
    return static_cast<double>(all.reach.most_boxes) * p.halo[0] * p.halo[1] * p.halo[2] * kHopperRowBytes *
           share_of_row(n_);
  }
  double share_of_row(int64_t channels) const {
    return std::min<double>(1, static_cast<double>(channels * fold_) / kChannels);
  }

  double stage_cycles(const HopperWeightTensorPlan& p, const Arrangement& all) const {
    const double columns = p.tile.warpgroups * (p.tile.first + p.tile.second);
    const double single = p.tile.second == 1 || p.tile.first == 1 ? p.tile.warpgroups : 0;
    const double tensor = p.instructions * (columns * kColumns + single * kOneColumn);
    const double read = p.instructions * 2048.0 * (p.tile.warpgroups * p.tile.runs() + columns);
    const double copies = (x_bytes(p) + y_bytes(p, all)) / kCopyBytes;
    const double shared = (read + p.x_boxes * p.x_box_bytes + all.reach.most_boxes * p.y_box_bytes) / kSharedBytes;
    const double asked = (p.x_boxes + all.reach.most_boxes) * kCopyCost;
    const double flight = (copies + kLatency) / (p.slots - 1);
    return std::max({tensor, shared, copies, asked, flight}) + kCopyOverlap * copies + kStageCost;
  }
  int64_t fold_;
};

// seen: the problem as the copies see it, with or without im2col.
std::optional<Plan> plan_seen(const Problem& seen, bool im2col, const Device& device,
                              std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) { return refuse_tile(considered, kName, why); };
  if (const std::string why = weight_copies_refusal(seen, device); !why.empty()) return refuse(why);
  const WeightSlices slices = weight_slices(seen, im2col);
  if (slices.slice == 0) return refuse("takes channels_last, or images of at most 128 MiB to rewrite so");
  const Problem part = first_images(seen, slices.slice);
  const Candidates candidates(part, device, slices.count > 1);
  constexpr HopperInner kInner[] = {HopperInner::kWidth, HopperInner::kHeight, HopperInner::kBatch};
  std::vector<std::array<int, 3>> pixel_tiles[3];
  for (int i = 0; i < 3; ++i) pixel_tiles[i] = candidates.pixel_tiles(kInner[i]);
  std::optional<Plan> best;
  HopperWeightTensorPlan plan;
  for (const HopperWeightTensorTile tile : kHopperWeightTensorTiles) {
    std::optional<HopperWeightTensorPlan> of_tile;
    // Only what is better than this is looked at; where all tiles are listed, each for itself.
    double of_tile_ms = best && !considered ? best->estimate_ms / static_cast<double>(slices.count) - slices.before_ms
                                            : std::numeric_limits<double>::infinity();
    for (const auto share :
         {HopperWeightShare::kTaps, HopperWeightShare::kInputChannels, HopperWeightShare::kOutputChannels}) {
      for (const auto along : {Along::kWidth, Along::kHeight, Along::kPlanes, Along::kChunks}) {
        const std::optional<Arrangement> all = candidates.arrange(tile, share, along);
        if (!all || all->groups.empty()) continue;
        for (int i = 0; i < 3; ++i) {
          for (const std::array<int, 3>& pixels : pixel_tiles[i]) {
            if (!candidates.plan(plan, tile, share, *all, kInner[i], pixels, of_tile_ms)) continue;
            const double ms = candidates.estimate_ms(plan, *all);
            if (ms >= of_tile_ms || !candidates.fill(plan, *all)) continue;
            of_tile = plan;
            of_tile_ms = ms;
          }
        }
      }
    }
    if (!of_tile) continue;
    const int64_t sums = candidates.workspace_bytes(*of_tile);
    consider_tile(best, *of_tile, of_tile_ms, sums, slices, seen.dtype, considered);
  }
  if (!best) return refuse("no tile fits: boxes of grad_output in shared memory, taps in the kernel's tables");
  return best;
}

}  // namespace

std::string describe(const HopperWeightTensorPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of 64 input x " << plan.tile.first;
  if (plan.tile.second > 0) text << " + " << plan.tile.second;
  text << " x 64 columns, " << name(plan.share) << " side by side, " << describe_pixels(plan) << describe_slices(plan);
  return text.str();
}

std::optional<Plan> plan_hopper_weight_tensor(const Problem& problem, const Device& device,
                                              std::vector<Candidate>* considered) {
  if (element_size(problem.dtype) != 2) return refuse_tile(considered, kName, "takes float16 and bfloat16");
  return with_or_without_im2col(
      problem, [&](const Problem& seen, bool im2col) { return plan_seen(seen, im2col, device, considered); });
}

}  // namespace deconv
