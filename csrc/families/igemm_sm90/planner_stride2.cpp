// Tiles of the Hopper family's strided planes (kernels/hopper/strided.cuh).
#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <vector>

#include "core/correlation.h"
#include "families/igemm_sm90/planner.h"
#include "planner/cost_model.h"
#include "planner/plan.h"
#include "planner/tensor_core_limits.h"

namespace deconv {
namespace {

constexpr int kLeastSlots = 2, kMostWeightSlots = 8;

// Cycles of a multiprocessor at kClock, fitted to 244 timings of 29 layers on an H200.
struct Costs {
  double product;    // of 64 pixels and a tap, for each result channel and chunk of source channels
  double turned;     // of a chunk besides, for each row of a pixel's halo and column after its first
  double bytes;      // that copies bring in a cycle, at most
  double short_row;  // of a halo's row, as if it were so many bytes longer
  double item;       // of an item, on its way out
  double element, ragged;  // of a result's element, on its way out; more, where rows begin within a sector
  double overlap;    // the larger, the more of products and results each hides of the other, where weights stay
  double memory;     // part of the time for moving all tensors that nothing hides
  double least;      // times as much as that, at least
  double launch_ms;
  // Times all that: in TF32 the least of the other kernel's hundreds of estimates is too low. By hand.
  double beside_others;
};
constexpr Costs kCostsShort{1.44, 316, 67.7, 300, 628, 0.0418, 0.075, 1.16, 0.432, 1.1, 0.006, 1.02};
constexpr Costs kCostsTf32{1.47, 187, 64.9, 187, 381, 0.0473, 0.106, 1.28, 0.538, 1.1, 0.006, 0.98};

// A layer's taps: which of kStride2Patterns, and what its first pixel reads first, from its own.
struct Layer {
  int pattern = -1;
  int origin_h = 0, origin_w = 0;
  std::string refusal;
};

// The lines that taps read, of even and odd ones of the result (Stride2Pattern); the first.
struct Lines {
  int even = 0, odd = 0, first = 0;
};
std::optional<Lines> find_lines(const AxisGeometry& axis) {
  const AxisTaps taps[2] = {axis_taps(axis, 0, 0), axis_taps(axis, 1, 0)};
  Lines lines;
  lines.first = std::min(taps[0].first_shift, taps[1].first_shift);
  for (int phase = 0; phase < 2; ++phase) {
    if (taps[phase].count == 0 || taps[phase].shift_step != 1) return std::nullopt;
    for (int t = 0; t < taps[phase].count; ++t) {
      const int line = taps[phase].first_shift + t - lines.first;
      if (line > 2) return std::nullopt;
      (phase ? lines.odd : lines.even) |= 1 << line;
    }
  }
  return lines;
}
void find_pattern(const AxisGeometry& h, const AxisGeometry& w, Layer& layer) {
  const std::optional<Lines> rows = find_lines(h), columns = find_lines(w);
  if (!rows || !columns || rows->even != columns->even || rows->odd != columns->odd) return;
  const int rest = columns->first - 8 * floor_div(columns->first, 8);
  for (int i = 0; i < static_cast<int>(std::size(kStride2Patterns)); ++i) {
    const Stride2Pattern& p = kStride2Patterns[i];
    if (p.even == columns->even && p.odd == columns->odd && rest == (p.before ? 7 : 0)) layer.pattern = i;
  }
  layer.origin_h = rows->first;
  layer.origin_w = columns->first - rest;
}

Layer describe_layer(const Problem& problem, const Device& device) {
  Layer layer;
  const auto refuse = [&](const std::string& why) {
    layer.refusal = why;
    return layer;
  };
  if (!device.has_wgmma) return refuse("needs a Hopper GPU and a build for sm_90a");
  const std::string why = tensor_core_refusal(problem, kSm90MinChannels, 4, 2);
  if (!why.empty()) return refuse(why);
  if (problem.direction != Direction::kForward || problem.blocks) return refuse("computes forward");
  if (problem.dtype == DType::kFloat32 && !problem.allow_tf32) return refuse("takes no strict float32");
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  if (h.stride != 2 || w.stride != 2 || h.phases() != 2 || w.phases() != 2) return refuse("takes strides of 2");
  const Tensor4 &x = problem.x, &y = problem.y;
  const int64_t size = element_size(problem.dtype);
  const auto whole = [&](int d) { return x.size[d] == 1 || x.stride[d] * size % 16 == 0; };
  if (problem.unaligned_first || x.stride[3] != 1 || !whole(0) || !whole(1) || !whole(2) || y.stride[3] != 1) {
    return refuse("takes contiguous inputs whose rows begin at multiples of 16 bytes");
  }
  for (const int d : {0, 1, 2}) {
    if (y.size[3] % 2 != 0 || y.stride[d] % 2 != 0) return refuse("stores pairs of columns");
  }
  find_pattern(h, w, layer);
  if (layer.pattern < 0) return refuse("takes kernels of 3 or 4, with the paddings of most layers");
  return layer;
}

// How the weights lie, packed: of each group and tile of channels the phases of the height, chunks, phases of the
// width, taps.
IgemmSm90Plan packed_weights(const Problem& problem, const Layer& layer) {
  const Correlation c = correlation(problem);
  const Stride2Pattern& pattern = kStride2Patterns[layer.pattern];
  IgemmSm90Plan weights;
  weights.tile = {8, 2, 1};
  weights.tile_m = kStride2Channels;
  weights.phases_h = weights.phases_w = weights.phase_groups = 2;
  weights.slots_h = weights.slots_w = std::max(stride2_bits(pattern.even), stride2_bits(pattern.odd));
  weights.chunks = static_cast<int>(ceil_div(c.source_channels * element_size(problem.dtype), kSm90RowBytes));
  weights.m_tiles = static_cast<int>(ceil_div(c.result_channels, kStride2Channels));
  weights.stage_bytes = kSm90RowBytes * kStride2Channels;
  weights.column_bytes = int64_t{2} * weights.phase_groups * weights.chunks * weights.slots_h * weights.slots_w *
                         weights.stage_bytes;
  weights.packed_bytes = problem.groups * weights.m_tiles * weights.column_bytes;
  return weights;
}

// Stages of weights that are in use at once: of the phases that have a tap in a row of a pixel's halo or in the next.
int least_weight_slots(const Stride2Pattern& p) {
  const auto phases = [&](int row) { return (p.even >> row & 1) + (p.odd >> row & 1); };
  return std::max(phases(0), phases(stride2_lines(p) - 1)) + phases(1);
}

std::optional<Stride2Plan> plan_tile(const Problem& problem, const Device& device, const Layer& layer, int octets,
                                     bool resident) {
  Stride2Plan p;
  p.weights = packed_weights(problem, layer);
  const int64_t weight_bytes = problem.w.numel() * element_size(problem.dtype);
  if (!sm90_may_pack(p.weights.packed_bytes, weight_bytes)) return std::nullopt;
  const Stride2Pattern& pattern = kStride2Patterns[layer.pattern];
  const AxisGeometry h = geometry(problem, 0), w = geometry(problem, 1);
  const int lines = stride2_lines(pattern);
  p.pattern = layer.pattern;
  p.resident = resident;
  p.octets = octets;
  p.origin_h = layer.origin_h;
  p.origin_w = layer.origin_w;
  p.halo_rows = p.tile_rows() + lines - 1;
  p.halo_octets = (octets + stride2_more_octets(pattern)) | 1;  // so that channels meet all banks
  p.halo_bytes = p.halo_rows * p.halo_octets * 8 * kSm90RowBytes;
  p.tiles_h = static_cast<int>(ceil_div(h.phase_size(0), p.tile_rows()));
  p.tiles_w = static_cast<int>(ceil_div(w.phase_size(0), 8 * octets));
  p.columns = static_cast<int>(problem.groups * p.weights.m_tiles);
  const double tiles = static_cast<double>(problem.batch) * p.tiles_h * p.tiles_w;
  if ((tiles + kStride2Warpgroups) * p.columns > 1 << 30) return std::nullopt;
  p.tiles = static_cast<int>(problem.batch * p.tiles_h * p.tiles_w);
  p.stage_bytes = stride2_taps(pattern) * p.weights.stage_bytes;
  const int bias = kStride2Warpgroups * kStride2Channels * 4;
  const int64_t room = device.shared_bytes_per_block - bias;
  if (resident) {  // a block has one column
    if (p.columns > device.multiprocessors) return std::nullopt;
    const int64_t blocks = device.multiprocessors / p.columns * p.columns;
    p.items = p.tiles * p.columns;
    p.blocks = static_cast<int>(std::min(blocks, ceil_div(p.tiles, kStride2Warpgroups) * p.columns));
    p.weight_slots = stride2_taps(pattern) * p.weights.chunks;
    const int64_t left = room - int64_t{p.weight_slots} * (p.stage_bytes + 16);
    p.slots = static_cast<int>(std::min<int64_t>(kStride2MostSlots, left / (kStride2Warpgroups * (p.halo_bytes + 16))));
  } else {
    p.items = static_cast<int>(ceil_div(p.tiles, kStride2Warpgroups) * p.columns);
    p.blocks = std::min(p.items, device.multiprocessors);
    for (int slots = kLeastSlots; slots <= 3; ++slots) {
      const int64_t left = room - slots * (int64_t{kStride2Warpgroups} * p.halo_bytes + 16);
      const int64_t weights = std::min<int64_t>(kMostWeightSlots, left / (p.stage_bytes + 16));
      if (weights < least_weight_slots(pattern) + (slots > kLeastSlots ? 1 : 0)) break;  // else a row waits for itself
      p.slots = slots, p.weight_slots = static_cast<int>(weights);
    }
  }
  if (p.slots < kLeastSlots) return std::nullopt;
  p.weights_at = kStride2Warpgroups * p.slots * p.halo_bytes;
  p.bias_at = p.weights_at + p.weight_slots * p.stage_bytes;
  p.barriers_at = p.bias_at + bias;
  p.shared_bytes = p.barriers_at + 16 * (p.rings() * p.slots + p.weight_slots);
  return p;
}

double estimate_ms(const Problem& problem, const Device& device, const Stride2Plan& p) {
  const int64_t size = element_size(problem.dtype), width = problem.y.size[3];
  const Costs& costs = size == 2 ? kCostsShort : kCostsTf32;
  const Stride2Pattern& pattern = kStride2Patterns[p.pattern];
  const double element = costs.element + (width * size % kSectorBytes == 0 ? 0 : costs.ragged);
  const double chunks = p.weights.chunks, lines = stride2_lines(pattern);
  const double taps = stride2_taps(pattern) * stride2_taps(pattern);
  const double leave = kStride2Warpgroups * (costs.item + 64.0 * 4 * kStride2Channels * element);
  const double products = kStride2Warpgroups * chunks *
                          (taps * kStride2Channels * costs.product + lines * (lines - 1) * costs.turned);
  const double weights = chunks * taps * p.weights.stage_bytes;
  const double row = p.halo_octets * 8.0 * static_cast<double>(size);
  const double halos = chunks * kStride2Warpgroups * p.halo_bytes * (1 + costs.short_row / row);
  const double load = (halos + (p.resident ? 0 : weights)) / costs.bytes;
  const double both = p.resident ? std::pow(std::pow(products, costs.overlap) + std::pow(leave, costs.overlap),
                                            1 / costs.overlap)
                                 : products + leave;
  const auto rounds = static_cast<double>(ceil_div(p.items, p.blocks * p.rings()));
  const double cycles = (rounds - 1) * std::max(both, load) + std::max(products, load) + leave +
                        (p.resident ? weights / costs.bytes : 0);
  const double memory_ms = 1e3 * static_cast<double>(problem.bytes()) / device.bandwidth;
  const double ms = std::max(1e3 * cycles / kClock + costs.memory * memory_ms, costs.least * memory_ms) +
                    costs.launch_ms + sm90_pack_ms(p.weights.packed_bytes);
  return ms * costs.beside_others;
}

}  // namespace

std::string describe(const Stride2Plan& plan, DType) {
  std::ostringstream text;
  text << kStride2Channels << " channels x (" << plan.tile_rows() << " rows, " << 8 * plan.octets
       << " columns, 4 phases) of strided planes as they lie" << (plan.resident ? ", weights that stay" : "");
  return text.str();
}

std::optional<Plan> plan_stride2(const Problem& problem, const Device& device, std::vector<Candidate>* considered) {
  const Layer layer = describe_layer(problem, device);
  if (!layer.refusal.empty()) {
    if (considered) considered->push_back({"igemm_sm90 family", 0, layer.refusal});
    return std::nullopt;
  }
  std::optional<Plan> best;
  for (const int octets : {1, 2, 4, 8}) {
    for (const bool resident : {false, true}) {
      if (const auto plan = plan_tile(problem, device, layer, octets, resident)) {
        consider_plan(best, "igemm_sm90 family", *plan, plan->weights.packed_bytes + kSm90FlagBytes,
                      estimate_ms(problem, device, *plan), problem.dtype, considered);
      }
    }
  }
  return best;
}

}  // namespace deconv
