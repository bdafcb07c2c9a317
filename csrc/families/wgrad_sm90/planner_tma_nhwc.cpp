// What the planners of grad_weight by tensor copies share (plan_hopper_weight_copies.h).
#include "families/wgrad_sm90/planner_tma_nhwc.h"

namespace deconv {
namespace {

constexpr int64_t kAlignment = 256;  // of the workspace's parts, bytes
constexpr int kMostSlots = 8, kLeastSlots = 2;
constexpr int kMostBox = 256;  // pixels along one axis of a tensor copy

// Cycles of a multiprocessor at kClockHopper, fitted to 2,852 timings of 26 layers on an H200.
constexpr double kClockHopper = 1.7e9;
constexpr double kMemoryOverlap = 0.06;  // of what hides behind something longer, still felt
constexpr double kBlockCost = 1500, kItemCost = 3600;  // once, and with each further item of a block
constexpr double kCache = 32e6;      // bytes that neighbouring tiles of pixels find in L2
constexpr double kBandwidth = 0.95;  // of the device's, that copies reach
constexpr double kLaunchMs = 3.4e-3, kAddLaunchMs = 1.3e-3, kAddMsPerByte = 0.6e-9;

// True if TMA loads the tensor from where it lies. The tensor map has the stride of an axis with more than one pixel.
bool lies_in_place(const Tensor4& tensor, DType dtype, bool unaligned) {
  const int64_t pack = 16 / static_cast<int64_t>(element_size(dtype));
  bool fits = tensor.stride[1] == 1 && !unaligned;
  for (const int axis : {0, 2, 3}) {
    fits = fits && (tensor.size[axis] == 1 ||
                    (tensor.stride[axis] % pack == 0 && tensor.stride[axis] > 0 && tensor.stride[axis] < 1ll << 35));
  }
  return fits;
}

// An axis with one input pixel has no stride to speak of.
AxisGeometry without_stride(AxisGeometry axis) {
  if (axis.result_size == 1) axis.stride = 1;
  return axis;
}

}  // namespace

size_t find_box(const std::vector<WeightPlaneBox>& boxes, int plane_h, int plane_w, int chunk) {
  size_t i = 0;
  while (i < boxes.size() && (boxes[i].plane_h != plane_h || boxes[i].plane_w != plane_w || boxes[i].chunk != chunk)) {
    ++i;
  }
  return i;
}

void WeightReach::extend(const std::vector<WeightPlaneBox>& group) {
  for (const WeightPlaneBox& box : group) {
    range_h = std::max(range_h, box.last_h - box.first_h);
    range_w = std::max(range_w, box.last_w - box.first_w);
  }
  most_boxes = std::max(most_boxes, static_cast<int>(group.size()));
}

Problem first_images(Problem problem, int64_t count) {
  problem.batch = problem.x.size[0] = problem.y.size[0] = count;
  return problem;
}

WeightSlices weight_slices(const Problem& problem, bool im2col) {
  WeightSlices s{};
  s.im2col = im2col;
  s.repack_x = !lies_in_place(problem.x, problem.dtype, problem.unaligned_first);
  s.repack_y = !lies_in_place(problem.y, problem.dtype, problem.unaligned_second);
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

int64_t place_slices(HopperWeightCopies& plan, const WeightSlices& slices, int64_t sums) {
  plan.slice = static_cast<int>(slices.slice);
  plan.repack_x = slices.repack_x;
  plan.repack_y = slices.repack_y;
  plan.im2col = slices.im2col;
  plan.x_at = round_up(sums, kAlignment);
  plan.y_at = round_up(plan.x_at + slices.x_bytes, kAlignment);
  return plan.y_at + slices.y_bytes;
}

std::string describe_slices(const HopperWeightCopies& plan) {
  if (!plan.repack_x && !plan.repack_y && !plan.im2col) return "";
  return std::string(plan.repack_x ? ", input repacked" : "") + (plan.repack_y ? ", grad_output repacked" : "") +
         (plan.im2col ? ", all taps of grad_output as output channels" : "") + ", " + std::to_string(plan.slice) +
         " images at a time";
}

std::string describe_pixels(const HopperWeightCopies& plan) {
  // The extents are those of the width, the height and the batch, of which any may be innermost.
  const auto [a, b, c] = plan.pixels;
  const char* axes = plan.inner == HopperInner::kWidth    ? "width, height, images"
                     : plan.inner == HopperInner::kHeight ? "height, width, images"
                                                          : "images, width, height";
  return std::to_string(a) + "x" + std::to_string(b) + "x" + std::to_string(c) + " pixels (" + axes + ") a stage";
}

std::string weight_copies_refusal(const Problem& problem, const Device& device) {
  if (!device.has_wgmma) return "needs a Hopper GPU and a build for sm_90a";
  if (problem.x.numel() == 0 || problem.w.numel() == 0 || problem.y.numel() == 0) return "takes no empty tensors";
  const int64_t m = problem.in_channels_per_group(), n = problem.out_channels_per_group();
  const int64_t pack = 16 / static_cast<int64_t>(element_size(problem.dtype));
  if (problem.groups > 1 && (m % pack != 0 || n % pack != 0)) return "takes groups of whole 16 bytes of channels";
  for (const Axis& axis : problem.axis) {  // each plane has a tensor map, so it must have a pixel
    if (axis.output < axis.stride && axis.input > 1) return "takes outputs of at least a stride";
  }
  if (problem.axis[0].stride > INT16_MAX || problem.axis[1].stride > INT16_MAX) return "takes strides below 32768";
  return "";
}

WeightCopiesCandidates::WeightCopiesCandidates(const Problem& problem, const Device& device, bool in_slices,
                                               int64_t most_pixels)
    : problem_(problem),
      device_(device),
      in_slices_(in_slices),
      most_pixels_(most_pixels),
      axis_{without_stride(geometry(problem, 0)), without_stride(geometry(problem, 1))},
      m_(problem.in_channels_per_group()),
      n_(problem.out_channels_per_group()) {
  for (int a = 0; a < 2; ++a) {
    for (int k = 0; k < axis_[a].kernel; ++k) {
      const int start = tap_place(axis_[a], k).plane;
      auto plane = std::find_if(planes_[a].begin(), planes_[a].end(),
                                [&](const WeightPlane& p) { return p.start == start; });
      if (plane == planes_[a].end()) plane = planes_[a].insert(plane, {start, {}});
      plane->taps.push_back(k);
    }
  }
}

void WeightCopiesCandidates::reach(std::vector<WeightPlaneBox>& boxes, int kh, int kw, int chunk) const {
  const TapPlace h = tap_place(axis_[0], kh), w = tap_place(axis_[1], kw);
  const size_t index = find_box(boxes, h.plane, w.plane, chunk);
  if (index == boxes.size()) boxes.push_back({h.plane, w.plane, chunk, h.shift, w.shift, h.shift, w.shift});
  WeightPlaneBox& box = boxes[index];
  box.first_h = std::min(box.first_h, h.shift);
  box.first_w = std::min(box.first_w, w.shift);
  box.last_h = std::max(box.last_h, h.shift);
  box.last_w = std::max(box.last_w, w.shift);
}

int WeightCopiesCandidates::row_of_tap(const HopperWeightCopies& p, const std::vector<WeightPlaneBox>& group, int kh,
                                       int kw, int chunk) const {
  const TapPlace h = tap_place(axis_[0], kh), w = tap_place(axis_[1], kw);
  const size_t index = find_box(group, h.plane, w.plane, chunk);
  const WeightPlaneBox& box = group[index];
  const std::array<int, 3> shift = in_order<int>(p.inner, h.shift - box.first_h, w.shift - box.first_w, 0);
  const std::array<int, 3> rows = box_rows(p);
  return static_cast<int>(index) * p.box_chunks * (p.y_box_bytes / kHopperRowBytes) + shift[0] * rows[0] +
         shift[1] * rows[1] + shift[2] * rows[2];
}

bool WeightCopiesCandidates::choose_pixels(HopperWeightCopies& p, HopperInner inner, const std::array<int, 3>& pixels,
                                           const WeightReach& reach) const {
  p.inner = inner;
  p.pixels = pixels;
  const std::array<int64_t, 3> of_all = sizes(inner);
  const std::array<int, 3> range = in_order<int>(inner, reach.range_h, reach.range_w, 0);
  p.steps = 1;
  for (int a = 0; a < 3; ++a) {
    p.halo[a] = pixels[a] + range[a];
    if (p.halo[a] > kMostBox) return false;
    p.tiles[a] = static_cast<int>(ceil_div(of_all[a], pixels[a]));
    p.steps *= p.tiles[a];
  }
  return p.steps <= 1 << 30;
}

bool WeightCopiesCandidates::choose_memory(HopperWeightCopies& p, int parts, int y_boxes) const {
  p.x_box_bytes = p.pixels[0] * p.pixels[1] * p.pixels[2] * kHopperRowBytes;
  p.y_box_bytes = static_cast<int>(round_up(p.halo[0] * p.halo[1] * p.halo[2], 8)) * kHopperRowBytes;
  p.y_boxes_at = parts * p.x_boxes * p.x_box_bytes;
  const int64_t slot = round_up(p.y_boxes_at, 1024) + static_cast<int64_t>(y_boxes) * p.y_box_bytes;
  constexpr int kBarriers = 24;  // bytes of a slot
  p.slots = static_cast<int>(
      std::min<int64_t>(kMostSlots, (device_.shared_bytes_per_block - kBarriers * kMostSlots) / slot));
  if (p.slots < kLeastSlots) return false;
  p.slot_bytes = static_cast<int>(slot);
  p.barriers_at = p.slots * p.slot_bytes;
  p.shared_bytes = p.barriers_at + kBarriers * p.slots;
  return true;
}

void WeightCopiesCandidates::choose_blocks(HopperWeightCopies& p, int chunk) const {
  const bool folds = p.fold > 1;
  p.blocks_m = static_cast<int>(folds ? 1 : ceil_div(m_, chunk * p.x_boxes));
  p.blocks_n = static_cast<int>(folds ? 1 : ceil_div(n_, chunk * p.y_chunks));
  p.blocks_group = static_cast<int>(ceil_div(problem_.groups, p.fold));
  p.padded_m = static_cast<int>(folds ? m_ : p.blocks_m * p.x_boxes * chunk);
  p.padded_n = static_cast<int>(folds ? n_ : p.blocks_n * p.y_chunks * chunk);
}

bool WeightCopiesCandidates::choose_splits(HopperWeightCopies& p, double stage, bool scattered) const {
  const int64_t tiles = block_tiles(p);
  const int64_t pixels = p.pixels[0] * p.pixels[1] * p.pixels[2];
  const int64_t least = ceil_div(p.steps, std::max<int64_t>(1, most_pixels_ / pixels));
  const int64_t most = std::min(p.steps, std::max<int64_t>(1, kWorkspaceLimit / partial_bytes(p)));
  if (least > most || tiles * most > INT32_MAX / 16) return false;
  if (in_slices_ && partial_bytes(p) > kWorkspaceLimit) return false;
  double best = 0;
  int64_t chosen = 0;
  const auto consider = [&](int64_t splits) {
    p.steps_per_split = ceil_div(p.steps, std::clamp(splits, least, most));
    p.splits = static_cast<int>(ceil_div(p.steps, p.steps_per_split));
    p.sums = in_slices_ || p.splits > 1 || (scattered && partial_bytes(p) <= kWorkspaceLimit);
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

bool WeightCopiesCandidates::fill_boxes(HopperWeightCopies& p,
                                        const std::vector<const std::vector<WeightPlaneBox>*>& groups) const {
  p.plane_step = {axis_[0].stride, axis_[1].stride};
  p.planes = 0;
  int boxes = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    p.first_box[g] = static_cast<int8_t>(boxes);
    for (const WeightPlaneBox& box : *groups[g]) {
      const auto fits = [](int shift) { return shift >= INT16_MIN && shift <= INT16_MAX; };
      if (boxes == kHopperWeightBoxes || !fits(box.first_h) || !fits(box.first_w)) return false;
      int plane = 0;
      while (plane < p.planes && (p.plane[plane][0] != box.plane_h || p.plane[plane][1] != box.plane_w)) ++plane;
      if (plane == kHopperWeightPlanes) return false;
      if (plane == p.planes) {
        p.plane[p.planes++] = {static_cast<int16_t>(box.plane_h), static_cast<int16_t>(box.plane_w)};
      }
      p.boxes[boxes++] = {static_cast<int8_t>(plane), static_cast<int8_t>(box.chunk),
                          in_order<int16_t>(p.inner, box.first_h, box.first_w, 0)};
    }
  }
  p.first_box[groups.size()] = static_cast<int8_t>(boxes);
  return true;
}

double WeightCopiesCandidates::cycles(const HopperWeightCopies& p, double stage) const {
  const double waves = static_cast<double>(ceil_div(p.items, device_.multiprocessors));
  return waves * (static_cast<double>(p.steps_per_split) * stage) + kBlockCost + (waves - 1) * kItemCost;
}

double WeightCopiesCandidates::add_ms(const HopperWeightCopies& p) const {
  return p.sums ? kAddLaunchMs + kAddMsPerByte * static_cast<double>(workspace_bytes(p)) : 0;
}

double WeightCopiesCandidates::estimate_ms(const HopperWeightCopies& p, double stage, double stage_bytes) const {
  const double memory = memory_bytes(p, stage_bytes) / (kBandwidth * device_.bandwidth);
  const double compute = cycles(p, stage) / kClockHopper;
  const double longer = std::max(compute, memory), shorter = std::min(compute, memory);
  return 1e3 * (longer + kMemoryOverlap * shorter) + kLaunchMs + add_ms(p);
}

double WeightCopiesCandidates::least_ms(const HopperWeightCopies& p, double stage) const {
  const double busy = static_cast<double>(block_tiles(p)) * static_cast<double>(p.steps) * stage /
                      device_.multiprocessors;
  return 1e3 * busy / kClockHopper + kLaunchMs;
}

// From memory: all of the input and of the planes that are read, and what neighbouring halos share, unless so much lies
// between the two tiles that L2 has forgotten it.
double WeightCopiesCandidates::memory_bytes(const HopperWeightCopies& p, double stage_bytes) const {
  const double grad_output = static_cast<double>(element_size(problem_.dtype)) *
                             static_cast<double>(problem_.y.numel());
  const double planes = static_cast<double>(planes_[0].size() * planes_[1].size()) /
                        (static_cast<double>(axis_[0].stride) * axis_[1].stride);
  const int64_t at_once = std::min<int64_t>(p.splits, device_.multiprocessors);
  double between = static_cast<double>(at_once * p.tiles[0]) * stage_bytes, again = 1;
  for (const int a : {1, 2}) {
    if (between > kCache) again *= static_cast<double>(p.halo[a]) / p.pixels[a];
    between *= p.tiles[a];
  }
  return static_cast<double>(problem_.bytes()) + grad_output * (again * std::min(1.0, planes) - 1);
}

}  // namespace deconv
