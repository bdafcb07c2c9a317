// Tiles, runs and splits of wgrad_ss.cuh.
#include <sstream>

#include "families/wgrad_sm90/planner_tma_nhwc.h"

namespace deconv {
namespace {

constexpr const char* kName = "wgrad_sm90 family, tensor copies";
constexpr int kChannels = kWgradChannels;

// Cycles of a multiprocessor of an H200.
constexpr int kSharedBytes = 128;  // a cycle, read by tensor cores or written by TMA
constexpr int kLatency = 1700;  // of a TMA load
constexpr double kOperandBytes = 2048;  // an instruction: operand A, and each 64 columns of operand B

// Which columns share an instruction: taps of one source phase in a row or in a column, taps of adjacent source phases,
// or tiles of output channels.
enum class Along { kWidth, kHeight, kPlanes, kChunks };

class Candidates : public WeightCopiesCandidates {
 public:
  static constexpr int kLeastPixels = 64, kMostPixels = 16 * kWgradSteps;

  Candidates(const Problem& problem, const Device& device, bool in_slices)
      : WeightCopiesCandidates(problem, device, in_slices),
        fold_(std::max<int64_t>(1, std::min({kChannels / m_, kChannels / n_, problem.groups}))) {}

  template <class Visit>
  void for_arrangements(WgradSsTile tile, WgradSsPlan& p, Visit visit) const {
    using Share = WgradShare;
    p.tile = tile;
    p.fold = fold_;
    for (const Share share : {Share::kTaps, Share::kInputChannels, Share::kOutputChannels}) {
      const bool of_m = share == Share::kInputChannels, of_n = share == Share::kOutputChannels;
      if (fold_ > 1 && share != Share::kTaps) continue;
      if (share != Share::kTaps && (tile.warpgroups - 1) * kChannels >= (of_m ? m_ : n_)) continue;
      for (const Along along : {Along::kWidth, Along::kHeight, Along::kPlanes, Along::kChunks}) {
        const int chunks = along == Along::kChunks ? tile.first + tile.second : 1;
        if (along == Along::kChunks && (fold_ > 1 || of_n || (chunks - 1) * kChannels >= n_)) continue;
        if (axis_[0].kernel * axis_[1].kernel * chunks > kWgradRuns * (tile.first + tile.second)) continue;
        p.share = share;
        p.x_boxes = of_m ? tile.warpgroups : 1;
        p.y_chunks = of_n ? tile.warpgroups : chunks;
        const Arrangement all = arrange(tile, share, lines(along, chunks));
        if (!all.groups.empty()) visit(all);
      }
    }
  }

  // Estimates the plan for a tile of pixels, without the tables that `fill` writes. Nothing if it does not fit, or
  // takes limit_ms or more (0: no limit).
  std::optional<double> plan(WgradSsPlan& p, const Arrangement& all, Sm90Inner inner, const std::array<int, 3>& pixels,
                             double limit_ms) const {
    if (!choose_pixels(p, inner, pixels, all)) return std::nullopt;
    const int rows = pixels[0] * pixels[1] * pixels[2];
    p.instructions = rows / 16;
    p.octet_step = pixels[0] % 16 == 0 ? 8 : pixels[1] > 1 ? p.halo[0] : p.halo[0] * p.halo[1];
    p.group_runs = all.groups[0].runs.size();
    if (p.tap_groups * p.group_runs > kWgradRuns || !choose_memory(p, 1, all.most_boxes)) return std::nullopt;
    choose_blocks(p, kChannels);
    const double stage = stage_cycles(p, all);
    if (limit_ms > 0 && least_ms(p, stage) >= limit_ms) return std::nullopt;
    if (!choose_splits(p, stage, is_scattered(problem_.w))) return std::nullopt;
    return estimate_ms(p, stage);
  }

  // Writes the kernel's tables. False: too small.
  bool fill(WgradSsPlan& p, const Arrangement& all) const {
    if (!fill_boxes(p, all)) return false;
    for (int k = 0; k < p.instructions; ++k) p.instruction_row[k] = row_of_pixel(p, 16 * k);
    int runs = 0, last_row = 0;
    for (const TapGroup& group : all.groups) {
      for (const TapRun& of_run : group.runs) {
        WgradRun run{0, 0, 0, 0, 0, 0, static_cast<int8_t>(of_run.size())};
        const auto row_of = [&](int i) { return row_of_tap(p, group, of_run[i]); };
        const auto tap_of = [&](int i) { return of_run[i].kh * axis_[1].kernel + of_run[i].kw; };
        if (run.count > 0) {
          run.row = row_of(0);
          run.tap = tap_of(0);
          run.chunk = of_run[0].chunk;
        }
        if (run.count > 1) {  // the columns of a run are evenly spaced
          run.row_step = row_of(1) - row_of(0);
          run.tap_step = tap_of(1) - tap_of(0);
          run.chunk_step = of_run[1].chunk - of_run[0].chunk;
        }
        // Idle columns read whatever is there, even behind the last slot.
        const int columns = runs % p.tile.runs() == 0 ? p.tile.first : p.tile.second;
        last_row = std::max(last_row, run.row + (columns - 1) * run.row_step);
        p.runs[runs++] = run;
      }
    }
    const int reach = last_row + p.instruction_row[p.instructions - 1] + p.octet_step + 8;
    const int stage = p.x_boxes * p.x_box_bytes + reach * kSm90RowBytes;
    p.shared_bytes = std::max(p.shared_bytes, (p.slots - 1) * p.slot_bytes + stage);
    return p.shared_bytes <= device_.shared_bytes_per_block;
  }

 private:
  // All columns of a block, in lines to cut runs from.
  std::vector<TapRun> lines(Along along, int chunks) const {
    std::vector<TapRun> all;
    const auto are_single = [&](int a) { return static_cast<int>(planes_[a].size()) == axis_[a].kernel; };
    if (along == Along::kPlanes) {
      for (int kh = 0; are_single(1) && kh < axis_[0].kernel; ++kh) {
        if (kh == 0 || !are_single(0)) all.emplace_back();
        for (int kw = 0; kw < axis_[1].kernel; ++kw) all.back().push_back({kh, kw, 0});
      }
      return all;
    }
    const int outer = along == Along::kHeight ? 1 : 0;
    for (const std::vector<int>& of_outer : planes_[outer]) {
      for (const int fixed : of_outer) {
        for (const std::vector<int>& plane : planes_[1 - outer]) {
          TapRun line;
          for (const int k : plane) line.push_back(outer == 0 ? TapColumn{fixed, k, 0} : TapColumn{k, fixed, 0});
          if (along != Along::kChunks) {
            all.push_back(line);
            continue;
          }
          for (const TapColumn& column : line) {
            all.emplace_back();
            for (int chunk = 0; chunk < chunks; ++chunk) all.back().push_back({column.kh, column.kw, chunk});
          }
        }
      }
    }
    return all;
  }

  // Cuts lines into first and second runs, about as many of each, and deals them to the blocks' warpgroups.
  Arrangement arrange(WgradSsTile tile, WgradShare share, const std::vector<TapRun>& lines) const {
    std::vector<TapRun> first, second;
    for (const TapRun& line : lines) {
      for (size_t at = 0; at < line.size();) {
        const int left = line.size() - at;
        const bool is_second = left <= tile.second && (tile.first > tile.second || second.size() < first.size());
        const int count = std::min(left, is_second ? tile.second : tile.first);
        (is_second ? second : first).emplace_back(line.begin() + at, line.begin() + at + count);
        at += count;
      }
    }
    const auto move_last = [](std::vector<TapRun>& from, std::vector<TapRun>& to) {
      to.push_back(from.back());
      from.pop_back();
    };
    while (second.size() > first.size() + 1) move_last(second, first);
    while (tile.second > 0 && first.size() > second.size() + 1 &&
           static_cast<int>(first.back().size()) <= tile.second) {
      move_last(first, second);
    }
    const bool of_n = share == WgradShare::kOutputChannels;
    const size_t takers = share == WgradShare::kTaps ? tile.warpgroups : 1;  // of different runs
    Arrangement all;
    for (size_t begin = 0; begin < std::max(first.size(), second.size()); begin += takers) {
      std::vector<TapRun> runs;
      for (int taker = 0; taker < (of_n ? tile.warpgroups : static_cast<int>(takers)); ++taker) {
        const size_t slot = of_n ? begin : begin + taker;
        for (const std::vector<TapRun>* pool : {&first, &second}) {
          if (pool == &second && tile.second == 0) continue;
          runs.push_back(slot < pool->size() ? (*pool)[slot] : TapRun{});
          for (TapColumn& column : runs.back()) column.chunk = of_n ? taker : column.chunk;
        }
      }
      add_group(all, std::move(runs));
    }
    return all;
  }

  double stage_cycles(const WgradSsPlan& p, const Arrangement& all) const {
    const int columns = p.tile.warpgroups * (p.tile.first + p.tile.second);
    const double tensor = p.instructions * columns * wgmma_cycles(kChannels);
    const double read = p.instructions * kOperandBytes * (p.tile.warpgroups * p.tile.runs() + columns);
    const double written = p.x_boxes * p.x_box_bytes + all.most_boxes * p.y_box_bytes;
    const double copies = copy_cycles(p, all.most_boxes);
    return overlapped({tensor, (read + written) / kSharedBytes, copies, (copies + kLatency) / (p.slots - 1)});
  }

  int64_t fold_;
};

}  // namespace

std::string describe(const WgradSsPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of 64 input x " << plan.tile.first;
  if (plan.tile.second > 0) text << " + " << plan.tile.second;
  text << " x 64 columns, " << name(plan.share) << " side by side, " << describe_pixels(plan) << describe_slices(plan);
  return text.str();
}

std::optional<Plan> plan_wgrad_ss(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  if (element_size(problem.dtype) != 2) return refuse(considered, kName, "takes float16 and bfloat16");
  return plan_weight_copies<Candidates, WgradSsPlan>(kName, problem, device, kWgradSsTiles, std::size(kWgradSsTiles),
                                                     considered);
}

}  // namespace deconv
