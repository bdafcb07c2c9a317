// Tiles, runs of taps and splits of the Hopper family's grad_weight by tensor copies
// (kernels/hopper/weight_tensor.cuh).
#include <algorithm>
#include <limits>
#include <sstream>

#include "correlation.h"
#include "plan.h"
#include "plan_arithmetic.h"
#include "plan_hopper.h"
#include "repack_plan.h"

namespace deconv {
namespace {

constexpr int kChannels = kHopperWeightChannels;
constexpr int64_t kAlignment = 256;  // of the workspace's parts, bytes
constexpr int kMostSlots = 8, kLeastSlots = 2;
constexpr int kMostBox = 256;       // pixels along one axis of a tensor copy
// Tensor cores cut their running sum off instead of rounding it; a split's sum stays short enough for that not to show
// beside the rounding of the operands.
constexpr int64_t kMostPixels = 1 << 16;

// Cycles of a multiprocessor at kClockHopper, fitted to 2,852 timings of 26 layers on an H200
// (docs/performance_notes.md).
constexpr double kClockHopper = 1.7e9;
constexpr double kColumns = 34.5;     // of an instruction's 64 columns
constexpr double kOneColumn = 6;      // more where an instruction has no others: it reads as much as it can
constexpr double kSharedBytes = 128;  // read by tensor cores or written by tensor copies, in a cycle
constexpr double kCopyBytes = 76;     // brought from L2 in a cycle
constexpr double kCopyCost = 60;      // of asking for a copy
constexpr double kLatency = 1700;     // of a copy
constexpr double kStageCost = 10;
constexpr double kCopyOverlap = 0.05, kMemoryOverlap = 0.06;  // of what hides behind something longer, still felt
constexpr double kBlockCost = 1500, kItemCost = 3600;         // once, and with each further item of a block
constexpr double kCache = 32e6;       // bytes that neighbouring tiles of pixels find in L2
constexpr double kBandwidth = 0.95;   // of the device's, that copies reach
constexpr double kLaunchMs = 3.4e-3, kAddLaunchMs = 1.3e-3, kAddMsPerByte = 0.6e-9;

// 64 columns of an instruction: a tap and a tile of output channels.
struct Column {
  int kh, kw, chunk;
};
using Line = std::vector<Column>;  // of one instruction

// Which columns may share an instruction: taps of one plane in a row or in a column, taps of neighbouring planes, tiles
// of output channels.
enum class Along { kWidth, kHeight, kPlanes, kChunks };

// TMA takes it as it lies, given a base of 16 bytes. The tensor map has the stride of an axis with more than one pixel.
bool lies_in_place(const Tensor4& tensor) {
  bool fits = tensor.stride[1] == 1;
  for (const int axis : {0, 2, 3}) {
    fits = fits && (tensor.size[axis] == 1 ||
                    (tensor.stride[axis] % 8 == 0 && tensor.stride[axis] > 0 && tensor.stride[axis] < 1ll << 36));
  }
  return fits;
}

// Images whose operands are rewritten at a time: all, or as many as take half of what all may. 0: not even one.
int64_t images_at_once(int64_t batch, int64_t image_bytes) {
  if (batch * image_bytes <= kRepackLimit) return batch;
  const int64_t most = kRepackLimit / 2 / image_bytes;
  return most == 0 ? 0 : ceil_div(batch, ceil_div(batch, most));
}

Problem first_images(Problem problem, int64_t count) {
  problem.batch = problem.x.size[0] = problem.y.size[0] = count;
  return problem;
}

std::string refusal_of(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (element_size(problem.dtype) != 2) return "takes float16 and bfloat16";
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  const int64_t m = problem.in_channels_per_group(), n = problem.out_channels_per_group();
  if (problem.groups > 1 && (m % 8 != 0 || n % 8 != 0)) return "takes groups of whole 16 bytes of channels";
  for (const Axis& axis : problem.axis) {  // each plane has a tensor map, so it must have a pixel
    if (axis.output < axis.stride && axis.input > 1) return "takes outputs of at least a stride";
  }
  if (problem.axis[0].stride > INT16_MAX || problem.axis[1].stride > INT16_MAX) return "takes strides below 32768";
  return "";
}

// Taps of one axis that share a plane, in order of their shifts.
struct Plane {
  int start;
  std::vector<int> taps;
};

// What a block's warpgroups compute on which copies of grad_output; independent of the tile of pixels.
struct Arrangement {
  struct Box {
    int plane_h, plane_w, chunk;
    int first_h, first_w, last_h, last_w;  // shifts
  };
  struct Group {
    std::vector<Line> runs;
    std::vector<Box> boxes;
  };
  std::vector<Group> groups;
  int x_boxes = 1, y_chunks = 1;
  int range_h = 0, range_w = 0;  // most that the shifts of a box differ
  int most_boxes = 0;
};

class Candidates {
 public:
  // in_slices: results of other images add to the same sums.
  Candidates(const Problem& problem, const Device& device, bool in_slices)
      : problem_(problem),
        device_(device),
        in_slices_(in_slices),
        axis_{without_stride(geometry(problem, 0)), without_stride(geometry(problem, 1))},
        m_(problem.in_channels_per_group()),
        n_(problem.out_channels_per_group()),
        fold_(std::max<int64_t>(1, std::min({kChannels / m_, kChannels / n_, problem.groups}))) {
    for (int a = 0; a < 2; ++a) {
      for (int k = 0; k < axis_[a].kernel; ++k) {
        const int start = tap_place(axis_[a], k).plane;
        auto plane = std::find_if(planes_[a].begin(), planes_[a].end(),
                                  [&](const Plane& p) { return p.start == start; });
        if (plane == planes_[a].end()) plane = planes_[a].insert(plane, {start, {}});
        plane->taps.push_back(k);
      }
    }
  }

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
    p.inner = inner;
    p.fold = static_cast<int>(fold_);
    p.pixels = pixels;
    const std::array<int64_t, 3> sizes = in_order<int64_t>(inner, problem_.axis[0].input, problem_.axis[1].input,
                                                           problem_.batch);
    const std::array<int, 3> range = in_order<int>(inner, all.range_h, all.range_w, 0);
    p.steps = 1;
    for (int a = 0; a < 3; ++a) {
      p.halo[a] = pixels[a] + range[a];
      if (p.halo[a] > kMostBox) return false;
      p.tiles[a] = static_cast<int>(ceil_div(sizes[a], pixels[a]));
      p.steps *= p.tiles[a];
    }
    const int rows = pixels[0] * pixels[1] * pixels[2];
    p.instructions = rows / 16;
    if (rows % (16 * kHopperWeightAtOnce) != 0 || p.instructions > kHopperWeightSteps || p.steps > 1 << 30)
      return false;
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
    p.x_box_bytes = rows * kHopperRowBytes;
    p.y_box_bytes = static_cast<int>(round_up(p.halo[0] * p.halo[1] * p.halo[2], 8)) * kHopperRowBytes;
    p.slot_bytes = static_cast<int>(round_up(p.x_boxes * p.x_box_bytes, 1024)) + all.most_boxes * p.y_box_bytes;
    p.slots = std::min(kMostSlots, (device_.shared_bytes_per_block - 16 * kMostSlots) / p.slot_bytes);
    if (p.slots < kLeastSlots) return false;
    p.barriers_at = p.slots * p.slot_bytes;
    p.shared_bytes = p.barriers_at + 16 * p.slots;
    p.tap_groups = static_cast<int>(all.groups.size());
    p.group_runs = static_cast<int>(all.groups.front().runs.size());
    p.blocks_m = static_cast<int>(p.fold > 1 ? 1 : ceil_div(m_, kChannels * p.x_boxes));
    p.blocks_n = static_cast<int>(p.fold > 1 ? 1 : ceil_div(n_, kChannels * p.y_chunks));
    p.blocks_group = static_cast<int>(ceil_div(problem_.groups, p.fold));
    p.padded_m = static_cast<int>(p.fold > 1 ? m_ : p.blocks_m * p.x_boxes * kChannels);
    p.padded_n = static_cast<int>(p.fold > 1 ? n_ : p.blocks_n * p.y_chunks * kChannels);
    const double stage = stage_cycles(p, all);
    // With all multiprocessors busy to the end.
    const double least_cycles = static_cast<double>(block_tiles(p)) * static_cast<double>(p.steps) * stage /
                                device_.multiprocessors;
    if (1e3 * least_cycles / kClockHopper + kLaunchMs >= limit_ms) return false;
    if (!choose_splits(p, stage)) return false;
    return true;
  }

  double estimate_ms(const HopperWeightTensorPlan& p, const Arrangement& all) const {
    const double memory = memory_bytes(p, all) / (kBandwidth * device_.bandwidth);
    const double compute = cycles(p, stage_cycles(p, all)) / kClockHopper;
    const double longer = std::max(compute, memory), shorter = std::min(compute, memory);
    return 1e3 * (longer + kMemoryOverlap * shorter) + kLaunchMs + add_ms(p);
  }

  int64_t workspace_bytes(const HopperWeightTensorPlan& p) const { return p.sums ? p.splits * partial_bytes(p) : 0; }

  // The tables of the kernel. False: they do not hold so many, or a run's columns lie unevenly.
  bool fill(HopperWeightTensorPlan& p, const Arrangement& all) const {
    p.plane_step = {axis_[0].stride, axis_[1].stride};
    const std::array<int, 3> row{1, p.halo[0], p.halo[0] * p.halo[1]};
    const int row_h = p.inner == HopperInner::kHeight ? row[0] : p.inner == HopperInner::kWidth ? row[1] : row[2];
    const int row_w = p.inner == HopperInner::kWidth ? row[0] : row[1];
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
    p.planes = 0;
    int runs = 0, boxes = 0, last_row = 0;
    if (p.tap_groups * p.group_runs > kHopperWeightRuns) return false;
    for (int g = 0; g < p.tap_groups; ++g) {
      const Arrangement::Group& group = all.groups[g];
      p.first_box[g] = static_cast<int8_t>(boxes);
      for (const Arrangement::Box& box : group.boxes) {
        if (boxes == kHopperWeightBoxes) return false;
        int plane = 0;
        while (plane < p.planes && (p.plane[plane][0] != box.plane_h || p.plane[plane][1] != box.plane_w)) ++plane;
        if (plane == kHopperWeightPlanes) return false;
        if (plane == p.planes) {
          p.plane[p.planes++] = {static_cast<int16_t>(box.plane_h), static_cast<int16_t>(box.plane_w)};
        }
        p.boxes[boxes++] = {static_cast<int8_t>(plane), static_cast<int8_t>(box.chunk),
                            in_order<int16_t>(p.inner, box.first_h, box.first_w, 0)};
      }
      for (const Line& line : group.runs) {
        HopperWeightRun run{0, 0, 0, 0, 0, 0, static_cast<int8_t>(line.size())};
        std::vector<std::array<int, 3>> blocks;  // row, tap, chunk
        for (const Column& column : line) {
          const TapPlace h = tap_place(axis_[0], column.kh), w = tap_place(axis_[1], column.kw);
          const size_t index = find_box(group, h.plane, w.plane, column.chunk);
          const Arrangement::Box& box = group.boxes[index];
          blocks.push_back({static_cast<int>(index) * (p.y_box_bytes / kHopperRowBytes) +
                                (h.shift - box.first_h) * row_h + (w.shift - box.first_w) * row_w,
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
    if (p.shared_bytes > device_.shared_bytes_per_block) return false;
    p.first_box[p.tap_groups] = static_cast<int8_t>(boxes);
    return true;
  }

  // Tiles of pixels to consider, from the innermost axis on.
  std::vector<std::array<int, 3>> pixel_tiles(HopperInner inner) const {
    const std::array<int64_t, 3> sizes = in_order<int64_t>(inner, problem_.axis[0].input, problem_.axis[1].input,
                                                           problem_.batch);
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
  // An axis with one input pixel has no stride to speak of.
  static AxisGeometry without_stride(AxisGeometry axis) {
    if (axis.result_size == 1) axis.stride = 1;
    return axis;
  }

  template <class Value, class From>
  static std::array<Value, 3> in_order(HopperInner inner, From h, From w, From n) {
    const auto value = [](From from) { return static_cast<Value>(from); };
    if (inner == HopperInner::kHeight) return {value(h), value(w), value(n)};
    if (inner == HopperInner::kBatch) return {value(n), value(w), value(h)};
    return {value(w), value(h), value(n)};
  }

  static size_t find_box(const Arrangement::Group& group, int plane_h, int plane_w, int chunk) {
    size_t i = 0;
    while (i < group.boxes.size() &&
           (group.boxes[i].plane_h != plane_h || group.boxes[i].plane_w != plane_w || group.boxes[i].chunk != chunk)) {
      ++i;
    }
    return i;
  }

  // All columns of a block with so many tiles of output channels along the chunks, else of the first.
  std::vector<Line> lines(Along along, int chunks) const {
    std::vector<Line> all;
    const std::vector<Plane>&h = planes_[0], &w = planes_[1];
    const auto is_single = [](const std::vector<Plane>& planes) {
      return std::all_of(planes.begin(), planes.end(), [](const Plane& plane) { return plane.taps.size() == 1; });
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
    for (const Plane& of_outer : planes_[outer]) {
      for (const int fixed : of_outer.taps) {
        for (const Plane& plane : planes_[1 - outer]) {
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
      for (const Column& column : line) {
        const TapPlace h = tap_place(axis_[0], column.kh), w = tap_place(axis_[1], column.kw);
        const size_t index = find_box(group, h.plane, w.plane, column.chunk);
        if (index == group.boxes.size()) {
          group.boxes.push_back({h.plane, w.plane, column.chunk, h.shift, w.shift, h.shift, w.shift});
        }
        Arrangement::Box& box = group.boxes[index];
        box.first_h = std::min(box.first_h, h.shift);
        box.first_w = std::min(box.first_w, w.shift);
        box.last_h = std::max(box.last_h, h.shift);
        box.last_w = std::max(box.last_w, w.shift);
      }
    }
    for (const Arrangement::Box& box : group.boxes) {
      all.range_h = std::max(all.range_h, box.last_h - box.first_h);
      all.range_w = std::max(all.range_w, box.last_w - box.first_w);
    }
    all.most_boxes = std::max(all.most_boxes, static_cast<int>(group.boxes.size()));
    return all.range_h < kMostBox && all.range_w < kMostBox && all.most_boxes <= kHopperWeightBoxes;
  }

  // Bytes of one stage from memory; rows of channels may be shorter than 128 bytes.
  double x_bytes(const HopperWeightTensorPlan& p) const {
    return static_cast<double>(p.x_boxes) * p.x_box_bytes * share_of_row(m_);
  }
  double y_bytes(const HopperWeightTensorPlan& p, const Arrangement& all) const {
    return static_cast<double>(all.most_boxes) * p.halo[0] * p.halo[1] * p.halo[2] * kHopperRowBytes * share_of_row(n_);
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
    const double shared = (read + p.x_boxes * p.x_box_bytes + all.most_boxes * p.y_box_bytes) / kSharedBytes;
    const double asked = (p.x_boxes + all.most_boxes) * kCopyCost;
    const double flight = (copies + kLatency) / (p.slots - 1);
    return std::max({tensor, shared, copies, asked, flight}) + kCopyOverlap * copies + kStageCost;
  }
  double cycles(const HopperWeightTensorPlan& p, double stage) const {
    const double waves = static_cast<double>(ceil_div(p.items, device_.multiprocessors));
    return waves * (static_cast<double>(p.steps_per_split) * stage) + kBlockCost + (waves - 1) * kItemCost;
  }

  // From memory: all of the input and of the planes that are read, and what neighbouring halos share, unless so much
  // lies between the two tiles that L2 has forgotten it.
  double memory_bytes(const HopperWeightTensorPlan& p, const Arrangement& all) const {
    const double grad_output = 2.0 * static_cast<double>(problem_.y.numel());
    const double planes = static_cast<double>(planes_[0].size() * planes_[1].size()) /
                          (static_cast<double>(axis_[0].stride) * axis_[1].stride);
    const int64_t at_once = std::min<int64_t>(p.splits, device_.multiprocessors);
    double between = static_cast<double>(at_once * p.tiles[0]) * (x_bytes(p) + y_bytes(p, all)), again = 1;
    for (const int a : {1, 2}) {
      if (between > kCache) again *= static_cast<double>(p.halo[a]) / p.pixels[a];
      between *= p.tiles[a];
    }
    return static_cast<double>(problem_.bytes()) + grad_output * (again * std::min(1.0, planes) - 1);
  }
  double add_ms(const HopperWeightTensorPlan& p) const {
    return p.sums ? kAddLaunchMs + kAddMsPerByte * static_cast<double>(workspace_bytes(p)) : 0;
  }

  // Of channels and taps.
  static int64_t block_tiles(const HopperWeightTensorPlan& p) {
    return static_cast<int64_t>(p.tap_groups) * p.blocks_m * p.blocks_n * p.blocks_group;
  }

  // Enough blocks for whole waves over the GPU, in splits that are short enough and fit into the workspace.
  bool choose_splits(HopperWeightTensorPlan& p, double stage) const {
    const int64_t tiles = block_tiles(p);
    const int64_t pixels = p.pixels[0] * p.pixels[1] * p.pixels[2];
    const int64_t least = ceil_div(p.steps, std::max<int64_t>(1, kMostPixels / pixels));
    const int64_t most = std::min(p.steps, std::max<int64_t>(1, kWorkspaceLimit / partial_bytes(p)));
    if (least > most || tiles * most > INT32_MAX / 16) return false;
    if (in_slices_ && partial_bytes(p) > kWorkspaceLimit) return false;
    double best = 0;
    int64_t chosen = 0;
    const auto consider = [&](int64_t splits) {
      p.steps_per_split = ceil_div(p.steps, std::clamp(splits, least, most));
      p.splits = static_cast<int>(ceil_div(p.steps, p.steps_per_split));
      p.sums = in_slices_ || p.splits > 1 || (is_scattered(problem_.w) && partial_bytes(p) <= kWorkspaceLimit);
      p.items = tiles * p.splits;
      p.blocks = std::min<int64_t>(p.items, device_.multiprocessors);
      const double ms = 1e3 * cycles(p, stage) / kClockHopper + add_ms(p);
      if (chosen == 0 || ms < best) {
        best = ms;
        chosen = p.splits;
      }
    };
    consider(1);
    for (int64_t waves = 1; waves <= 8; ++waves) consider(waves * device_.multiprocessors / tiles);
    consider(chosen);
    return true;
  }

  int64_t partial_bytes(const HopperWeightTensorPlan& p) const {
    return 4 * problem_.groups * axis_[0].kernel * axis_[1].kernel * p.padded_m * p.padded_n;
  }

  const Problem& problem_;
  const Device& device_;
  bool in_slices_;
  AxisGeometry axis_[2];
  std::vector<Plane> planes_[2];
  int64_t m_, n_, fold_;
};

}  // namespace

std::string describe(const HopperWeightTensorPlan& plan, DType) {
  std::ostringstream text;
  text << plan.tile.warpgroups << " warpgroups of 64 input x " << plan.tile.first;
  if (plan.tile.second > 0) text << " + " << plan.tile.second;
  text << " x 64 columns, " << name(plan.share) << " side by side, ";
  // The extents are those of the width, the height and the batch, of which any may be innermost.
  const auto [a, b, c] = plan.pixels;
  const char* axes = plan.inner == HopperInner::kWidth    ? "width, height, images"
                     : plan.inner == HopperInner::kHeight ? "height, width, images"
                                                          : "images, width, height";
  text << a << 'x' << b << 'x' << c << " pixels (" << axes << ") a stage" << (plan.repack_x ? ", input repacked" : "")
       << (plan.repack_y ? ", grad_output repacked" : "")
       << (plan.repack_x || plan.repack_y ? ", " + std::to_string(plan.slice) + " images at a time" : "");
  return text.str();
}

std::optional<Plan> plan_hopper_weight_tensor(const Problem& problem, const Device& device,
                                              std::vector<Candidate>* considered) {
  const auto refuse = [&](const std::string& why) {
    if (considered) considered->push_back({"hopper family, tensor copies", 0, why});
    return std::nullopt;
  };
  if (const std::string why = refusal_of(problem, device); !why.empty()) return refuse(why);
  const bool repack_x = !lies_in_place(problem.x), repack_y = !lies_in_place(problem.y);
  const int64_t x_image = repack_x ? repacked_bytes(problem.x, problem.groups, problem.dtype) / problem.batch : 0;
  const int64_t y_image = repack_y ? repacked_bytes(problem.y, problem.groups, problem.dtype) / problem.batch : 0;
  const int64_t slice = images_at_once(problem.batch, x_image + y_image);
  if (slice == 0) return refuse("takes channels_last, or images of at most 128 MiB to rewrite so");
  const int64_t x_bytes = slice * x_image, y_bytes = slice * y_image, slices = ceil_div(problem.batch, slice);
  const double before_ms = (repack_x ? repack_ms(problem.x, x_bytes) : 0) +
                           (repack_y ? repack_ms(problem.y, y_bytes) : 0);
  const Problem part = first_images(problem, slice);
  const std::optional<Plan> gathered = plan_hopper_weight(problem, device, nullptr);
  if (!gathered) return refuse("has no kernel for tensors that a driver refuses");
  const Candidates candidates(part, device, slices > 1);
  constexpr HopperInner kInner[] = {HopperInner::kWidth, HopperInner::kHeight, HopperInner::kBatch};
  std::vector<std::array<int, 3>> pixel_tiles[3];
  for (int i = 0; i < 3; ++i) pixel_tiles[i] = candidates.pixel_tiles(kInner[i]);
  std::optional<Plan> best;
  HopperWeightTensorPlan plan;
  for (const HopperWeightTensorTile tile : kHopperWeightTensorTiles) {
    std::optional<HopperWeightTensorPlan> of_tile;
    // Only what is better than this is looked at; where all tiles are listed, each for itself.
    double of_tile_ms = best && !considered ? best->estimate_ms / static_cast<double>(slices) - before_ms
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
    // Every slice reads and writes the sums, which costs about what adding them costs.
    of_tile_ms = (of_tile_ms + before_ms) * static_cast<double>(slices);
    of_tile->slice = static_cast<int>(slice);
    of_tile->repack_x = repack_x;
    of_tile->repack_y = repack_y;
    of_tile->x_at = round_up(candidates.workspace_bytes(*of_tile), kAlignment);
    of_tile->y_at = round_up(of_tile->x_at + x_bytes, kAlignment);
    if (considered) considered->push_back({"hopper family, " + describe(*of_tile, problem.dtype), of_tile_ms, ""});
    if (best && of_tile_ms >= best->estimate_ms) continue;
    of_tile->gathered = std::get<HopperWeightPlan>(gathered->tile);
    best = Plan{*of_tile, std::max(of_tile->y_at + y_bytes, gathered->workspace_bytes), of_tile_ms};
  }
  if (!best) return refuse("no tile fits: boxes of grad_output in shared memory, taps in the kernel's tables");
  return best;
}

}  // namespace deconv
