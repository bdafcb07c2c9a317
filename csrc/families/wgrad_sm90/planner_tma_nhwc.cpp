// Shared by the planners of ss and rs_nhwc.
#include "families/wgrad_sm90/planner_tma_nhwc.h"

#include "lowerings/repack.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kMostBox = 256;  // pixels of a TMA box along one axis

// True if TMA loads the tensor in place. Strides of axes with one pixel do not matter: the tensor map replaces them.
bool lies_in_place(const Problem& problem, const Tensor4& tensor, bool unaligned) {
  bool fits = tensor.stride[1] == 1 && !unaligned;
  for (const int axis : {0, 2, 3}) {
    fits = fits &&
           (tensor.size[axis] == 1 || (tensor.stride[axis] > 0 && is_copied_step(problem, tensor.stride[axis])));
  }
  return fits;
}

// With one input pixel the stride has no effect.
AxisGeometry without_stride(AxisGeometry axis) {
  if (axis.result_size == 1) axis.stride = 1;
  return axis;
}

size_t find_box(const std::vector<PlaneBox>& boxes, int plane_h, int plane_w, int chunk) {
  const auto is_it = [&](const PlaneBox& b) {
    return b.plane_h == plane_h && b.plane_w == plane_w && b.chunk == chunk;
  };
  return std::find_if(boxes.begin(), boxes.end(), is_it) - boxes.begin();
}

}  // namespace

Problem first_images(Problem problem, int64_t count) {
  problem.batch = problem.x.size[0] = problem.y.size[0] = count;
  return problem;
}

WeightSlices weight_slices(const Problem& problem, bool im2col) {
  WeightSlices s{};
  s.im2col = im2col;
  s.repack_x = !lies_in_place(problem, problem.x, problem.unaligned_first);
  s.repack_y = !lies_in_place(problem, problem.y, problem.unaligned_second);
  const auto image_bytes = [&](bool repack, const Tensor4& tensor) {
    return repack ? repacked_bytes(tensor, problem.groups, problem.dtype) / problem.batch : 0;
  };
  const int64_t x_image = image_bytes(s.repack_x, problem.x), y_image = image_bytes(s.repack_y || im2col, problem.y);
  s.slice = repack_slice(problem.batch, x_image + y_image, kRepackHalf);
  if (s.slice == 0) return s;
  s.count = ceil_div(problem.batch, s.slice);
  s.x_bytes = s.slice * x_image;
  s.y_bytes = s.slice * y_image;
  s.before_ms = repack_operands_ms(problem, s.repack_x, s.repack_y, s.x_bytes, s.y_bytes) +
                (im2col ? im2col_ms(s.y_bytes) : 0);
  return s;
}

int64_t place_slices(WgradTma& plan, const WeightSlices& slices, int64_t sums) {
  plan.slice = slices.slice;
  plan.repack_x = slices.repack_x;
  plan.repack_y = slices.repack_y;
  plan.im2col = slices.im2col;
  plan.x_at = round_up(sums, kWorkspaceRoom);
  plan.y_at = round_up(plan.x_at + slices.x_bytes, kWorkspaceRoom);
  return plan.y_at + slices.y_bytes;
}

std::string describe_slices(const WgradTma& plan) {
  if (!plan.repack_x && !plan.repack_y && !plan.im2col) return "";
  return std::string(plan.repack_x ? ", input repacked" : "") + (plan.repack_y ? ", grad_output repacked" : "") +
         (plan.im2col ? ", all taps of grad_output as output channels" : "") + ", " + std::to_string(plan.slice) +
         " images at a time";
}

std::string describe_pixels(const WgradTma& plan) {
  // Extents of the width, the height and the batch; any of them may be innermost.
  const auto [a, b, c] = plan.pixels;
  const char* axes = plan.inner == Sm90Inner::kWidth    ? "width, height, images"
                     : plan.inner == Sm90Inner::kHeight ? "height, width, images"
                                                        : "images, width, height";
  return std::to_string(a) + "x" + std::to_string(b) + "x" + std::to_string(c) + " pixels (" + axes + ") a stage";
}

std::string weight_copies_refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  const int64_t m = problem.in_channels_per_group(), n = problem.out_channels_per_group();
  const int64_t pack = 16 / element_size(problem.dtype);
  if (problem.groups > 1 && (m % pack != 0 || n % pack != 0)) return "takes groups of whole 16 bytes of channels";
  for (const Axis& axis : problem.axis) {  // each source phase has a tensor map, so it must have a pixel
    if (axis.output < axis.stride && axis.input > 1) return "takes outputs of at least a stride";
  }
  if (problem.axis[0].stride > INT16_MAX || problem.axis[1].stride > INT16_MAX) return "takes strides below 32768";
  return "";
}

WeightCopiesCandidates::WeightCopiesCandidates(const Problem& problem, const Device& device, bool in_slices)
    : problem_(problem),
      device_(device),
      in_slices_(in_slices),
      axis_{without_stride(geometry(problem, 0)), without_stride(geometry(problem, 1))},
      m_(problem.in_channels_per_group()),
      n_(problem.out_channels_per_group()) {
  for (int a = 0; a < 2; ++a) {
    std::vector<int> starts;
    for (int k = 0; k < axis_[a].kernel; ++k) {
      const int start = tap_place(axis_[a], k).plane;
      const size_t i = std::find(starts.begin(), starts.end(), start) - starts.begin();
      if (i == starts.size()) {
        starts.push_back(start);
        planes_[a].emplace_back();
      }
      planes_[a][i].push_back(k);
    }
  }
}

void WeightCopiesCandidates::add_group(Arrangement& all, std::vector<TapRun> runs) const {
  TapGroup group{std::move(runs), {}};
  for (const TapRun& run : group.runs) {
    for (const TapColumn& column : run) {
      const TapPlace h = tap_place(axis_[0], column.kh), w = tap_place(axis_[1], column.kw);
      const size_t index = find_box(group.boxes, h.plane, w.plane, column.chunk);
      if (index == group.boxes.size()) {
        group.boxes.push_back({h.plane, w.plane, column.chunk, h.shift, w.shift, h.shift, w.shift});
      }
      PlaneBox& box = group.boxes[index];
      box.first_h = std::min(box.first_h, h.shift);
      box.first_w = std::min(box.first_w, w.shift);
      box.last_h = std::max(box.last_h, h.shift);
      box.last_w = std::max(box.last_w, w.shift);
    }
  }
  for (const PlaneBox& box : group.boxes) {
    all.range_h = std::max(all.range_h, box.last_h - box.first_h);
    all.range_w = std::max(all.range_w, box.last_w - box.first_w);
  }
  all.most_boxes = std::max<int>(all.most_boxes, group.boxes.size());
  all.groups.push_back(std::move(group));
}

int WeightCopiesCandidates::row_of_tap(const WgradTma& p, const TapGroup& group, const TapColumn& column) const {
  const TapPlace h = tap_place(axis_[0], column.kh), w = tap_place(axis_[1], column.kw);
  const size_t index = find_box(group.boxes, h.plane, w.plane, column.chunk);
  const PlaneBox& box = group.boxes[index];
  const std::array<int, 3> shift = in_order<int>(p.inner, h.shift - box.first_h, w.shift - box.first_w, 0);
  return index * p.box_chunks * (p.y_box_bytes / kSm90RowBytes) + box_row(p, shift);
}

bool WeightCopiesCandidates::choose_pixels(WgradTma& p, Sm90Inner inner, const std::array<int, 3>& pixels,
                                           const Arrangement& all) const {
  p.inner = inner;
  p.pixels = pixels;
  p.tap_groups = all.groups.size();
  const std::array<int64_t, 3> of_all = in_order<int64_t>(inner, problem_.axis[0].input, problem_.axis[1].input,
                                                          problem_.batch);
  const std::array<int, 3> range = in_order<int>(inner, all.range_h, all.range_w, 0);
  p.steps = 1;
  for (int a = 0; a < 3; ++a) {
    p.halo[a] = pixels[a] + range[a];
    if (p.halo[a] > kMostBox) return false;
    p.tiles[a] = ceil_div(of_all[a], pixels[a]);
    p.steps *= p.tiles[a];
  }
  return p.steps <= 1 << 30;
}

bool WeightCopiesCandidates::choose_memory(WgradTma& p, int parts, int y_boxes) const {
  p.x_box_bytes = p.pixels[0] * p.pixels[1] * p.pixels[2] * kSm90RowBytes;
  p.y_box_bytes = round_up(p.halo[0] * p.halo[1] * p.halo[2], 8) * kSm90RowBytes;
  p.y_boxes_at = parts * p.x_boxes * p.x_box_bytes;
  const int64_t slot = round_up(p.y_boxes_at, 1024) + int64_t{y_boxes} * p.y_box_bytes;
  const StageRing ring = stage_ring(device_, slot);
  p.slot_bytes = slot;
  p.slots = ring.stages;
  p.barriers_at = ring.barriers_at;
  p.shared_bytes = ring.shared_bytes;
  return p.slots > 0;
}

void WeightCopiesCandidates::choose_blocks(WgradTma& p, int chunk) const {
  const bool folds = p.fold > 1;
  p.blocks_m = folds ? 1 : ceil_div(m_, chunk * p.x_boxes);
  p.blocks_n = folds ? 1 : ceil_div(n_, chunk * p.y_chunks);
  p.blocks_group = ceil_div(problem_.groups, p.fold);
  p.padded_m = folds ? m_ : p.blocks_m * p.x_boxes * chunk;
  p.padded_n = folds ? n_ : p.blocks_n * p.y_chunks * chunk;
}

bool WeightCopiesCandidates::choose_splits(WgradTma& p, double stage, bool scattered) const {
  if (in_slices_ && partial_bytes(p) > kWorkspaceLimit) return false;
  const int64_t pixels = p.pixels[0] * p.pixels[1] * p.pixels[2];
  const SplitLimits limits{block_tiles(p), p.steps, most_splits(partial_bytes(p)),
                           std::max<int64_t>(1, most_split_pixels(problem_) / pixels)};
  const auto set = [&](const SplitK& split) {
    p.steps_per_split = split.steps_per_split;
    p.splits = split.splits;
    p.sums = in_slices_ || p.splits > 1 || (scattered && partial_bytes(p) <= kWorkspaceLimit);
    p.items = limits.tiles * p.splits;
    p.blocks = std::min<int64_t>(p.items, device_.multiprocessors);
    return estimate_ms(p, stage);
  };
  const std::optional<SplitK> split = deconv::choose_splits(limits, device_.multiprocessors, 8, set);
  if (split) set(*split);
  return split.has_value();
}

bool WeightCopiesCandidates::fill_boxes(WgradTma& p, const Arrangement& all) const {
  p.plane_step = {axis_[0].stride, axis_[1].stride};
  p.planes = 0;
  int boxes = 0;
  for (size_t g = 0; g < all.groups.size(); ++g) {
    p.first_box[g] = boxes;
    for (const PlaneBox& box : all.groups[g].boxes) {
      const auto fits = [](int shift) { return shift >= INT16_MIN && shift <= INT16_MAX; };
      if (boxes == kWgradBoxes || !fits(box.first_h) || !fits(box.first_w)) return false;
      int plane = 0;
      while (plane < p.planes && (p.plane[plane][0] != box.plane_h || p.plane[plane][1] != box.plane_w)) ++plane;
      if (plane == kWgradPlanes) return false;
      if (plane == p.planes) {
        p.plane[p.planes++] = {static_cast<int16_t>(box.plane_h), static_cast<int16_t>(box.plane_w)};
      }
      p.boxes[boxes++] = {static_cast<int8_t>(plane), static_cast<int8_t>(box.chunk),
                          in_order<int16_t>(p.inner, box.first_h, box.first_w, 0)};
    }
  }
  p.first_box[all.groups.size()] = boxes;
  return true;
}

double WeightCopiesCandidates::copy_cycles(const WgradTma& p, int y_boxes) const {
  // On an H200: bytes a cycle from L2; cycles of a 128-byte row that the tensor has only in part (zeros fill it).
  constexpr double kRowBytesPerCycle = 76, kPartialRow = 4;
  const auto row = [&](const Tensor4& tensor) {
    const bool is_whole = tensor.size[1] * element_size(problem_.dtype) >= kSm90RowBytes;
    return is_whole ? kSm90RowBytes / kRowBytesPerCycle : kPartialRow;
  };
  const double x_rows = p.x_boxes * p.x_box_bytes / kSm90RowBytes;
  return x_rows * row(problem_.x) + y_rows(p, y_boxes) * row(problem_.y);
}

double WeightCopiesCandidates::estimate_ms(const WgradTma& p, double stage) const {
  const double waves = ceil_div(p.items, device_.multiprocessors);
  const double cycles = waves * (p.steps_per_split * stage + kBlockCycles);
  const double read = planes_[0].size() * planes_[1].size(), planes = int64_t{axis_[0].stride} * axis_[1].stride;
  const double unread = problem_.y.numel() * element_size(problem_.dtype) * (1 - std::min<double>(read / planes, 1));
  return weight_ms(device_, cycles, problem_.bytes() - unread, workspace_bytes(p));
}

double WeightCopiesCandidates::least_ms(const WgradTma& p, double stage) const {
  return 1e3 * block_tiles(p) * p.steps * stage / device_.multiprocessors / kClock;
}

}  // namespace deconv
