// Rows family, forward and grad_input:  result[n, m, q] = bias[m] + sum over c, taps of  source[n, c, q + shift] * w.
//
// For results that are large beside their products, with columns adjacent in memory and a source of one plane: what
// counts is that each row leaves as a warp's stores of 512 adjacent bytes. Tensor cores (mma.sync): rows are 16 pixels
// of a phase, columns 8 result channels, the depth is two *units*: 16 bytes of channels of one pixel each, of any two
// taps, so that a few channels fill it.
//
// A *band* of result channels belongs to some warps, each with its columns of the tile. A block has some bands, keeps
// their weights in shared memory, as the tensor cores want them, and walks down the image, one pixel of the phases of
// the height a *step*:
//   source rows -> shared memory, [slot][group, unit][column][16 bytes]; the next step's row comes during this one;
//   for each phase of the height, a result row of each channel of the band:
//     bias to shared memory, if phases of the width have no taps; each warp the rows that it stores;
//     each warp: its columns, phase by phase; sums -> shared memory, interleaved as in the result;
//     whole rows -> result, each as far from a multiple of 16 bytes in shared memory as in memory;
//   phases of the height without taps are bias alone.
// Sums that are not finite are computed again, tap by tap: a padding pixel must not meet Inf.
#pragma once

#include "../barriers.cuh"
#include "../tensor_core.cuh"
#include "params.cuh"

namespace deconv::rows_family {

// What one warp works out again, product by product: `pixels` of a result row from column `first` on, for a band.
template <class T>
__device__ __noinline__ void repair(const ConvParams<T>& p, unsigned char* stage, uint32_t low, int n, int group, int m,
                                    int channels, int h, int first, int pixels, int in_tile) {
  const uint32_t plane = static_cast<uint32_t>(p.result_m) * sizeof(T);
  __syncwarp();
  for (int i = threadIdx.x % 32; i < channels * pixels; i += 32) {
    const int c = i / pixels, column = i % pixels, w = first + column;
    if (w >= p.axis[1].result_size) continue;
    const T* source = p.source + n * p.source_n + static_cast<int64_t>(group) * p.source_channels * p.source_c;
    const T* weight = p.weight + group * p.weight_group + (m + c) * p.weight_m;
    float sum = 0;
    for (int a = 0; a < p.axis[0].kernel; ++a) {
      const int from_h = source_pixel(p.axis[0], h, a);
      if (from_h < 0) continue;
      for (int b = 0; b < p.axis[1].kernel; ++b) {
        const int from_w = source_pixel(p.axis[1], w, b);
        if (from_w < 0) continue;
        const T* x = source + from_h * p.source_h + from_w * p.source_w;
        const T* k = weight + a * p.weight_h + b * p.weight_w;
        for (int d = 0; d < p.source_channels; ++d) sum += widen(x[d * p.source_c]) * widen(k[d * p.weight_c]);
      }
    }
    if (p.bias != nullptr) sum += widen(p.bias[group * p.result_channels + m + c]);
    *reinterpret_cast<T*>(stage + c * p.plan.stage_pitch + (low + c * plane) % 16 +
                          (in_tile + column) * sizeof(T)) = narrow<T>(sum);
  }
  __syncwarp();
}

template <class Config>
class ConvBlock {
  using T = typename Config::Element;
  static constexpr int kPixelTiles = Config::kPixelTiles, kChannelTiles = Config::kChannelTiles;
  static constexpr int kUnit = Config::kUnit, kBand = 8 * kChannelTiles, kPixels = 16 * kPixelTiles;
  static constexpr int kSize = static_cast<int>(sizeof(T));

 public:
  __device__ __forceinline__ ConvBlock(const ConvParams<T>& params, unsigned char* shared)
      : p(params), plan(params.plan), memory(shared), lane(threadIdx.x % 32) {
    const int warp = threadIdx.x / 32;
    band = warp / plan.warps_w;
    warp_w = warp - band * plan.warps_w;
    band_group = band / plan.bands;
    band_m = (band - band_group * plan.bands) * kBand;
    const int g = lane / 4, t = lane % 4;
    stage = memory + plan.stage_at + band * kBand * plan.stage_pitch;
    source = shared_address(memory + plan.source_at) +
             (band_group * plan.units * plan.pitch + warp_w * kPixels + lane % 16 + plan.lead) * kRowsUnitBytes;
    weights = shared_address(memory) + (band * kChannelTiles * 32 + lane) * 8;
    const uint32_t column = (warp_w * kPixels + g) * p.axis[1].result_step() * kSize;
#pragma unroll
    for (int i = 0; i < kChannelTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k)
        staged[i][k] = shared_address(stage) + (8 * i + 2 * t + k) * plan.stage_pitch + column;
    }
  }

  __device__ __forceinline__ void run() {
    prepare_tables();
    const int64_t first = plan.steps * blockIdx.x / gridDim.x, last = plan.steps * (blockIdx.x + 1) / gridDim.x;
    for (int64_t step = first; step < last;) {
      const int strip = static_cast<int>(step / plan.heights),
                q = static_cast<int>(step - int64_t{strip} * plan.heights);
      const int end = static_cast<int>(min(static_cast<int64_t>(plan.heights), q + (last - step)));
      walk(strip, q, end);
      step += end - q;
    }
  }

 private:
  const ConvParams<T>& p;
  const RowsConvPlan& plan;
  unsigned char* const memory;  // shared
  const int lane;
  int band, warp_w, band_group, band_m;  // this warp's
  unsigned char* stage;                  // shared: the rows of this warp's band
  uint32_t source, weights;              // shared: what this lane reads of pixels and of weights
  uint32_t staged[kChannelTiles][2];     // shared: where its sums go
  int channel_block = -1, group0 = 0, m0 = 0;  // of the block
  int n = 0, first_q = 0;                      // of the strip
  int channels = 0;                            // of the band
  T* rows = nullptr;   // result: the strip's first column of row 0 of the band's first channel
  int row_bytes = 0;
  uint32_t bias_word = 0;          // of channel `lane` of the band, as often as it fits
  float bias[kChannelTiles][2];    // of those whose sums a lane has
  uint32_t low[kChannelTiles][2];  // of their rows' addresses

  // --- once a block: the lists of the phases ---

  // Of each entry's two halves: where its weights lie, from the first of a result channel on; where its pixels do in
  // shared memory; and its unit, or -1. Then where each phase's entries begin.
  __device__ __forceinline__ int64_t* weight_places() const {
    return reinterpret_cast<int64_t*>(memory + plan.tables_at);
  }
  __device__ __forceinline__ int* places() const { return reinterpret_cast<int*>(weight_places() + 2 * plan.entries); }
  __device__ __forceinline__ int* units() const { return places() + 2 * plan.entries; }
  __device__ __forceinline__ int* starts() const { return units() + 2 * plan.entries; }

  __device__ __forceinline__ void prepare_tables() const {
    // Where rows of the source and the result will be: what each phase of either axis has.
    AxisTaps* const of_axis = reinterpret_cast<AxisTaps*>(memory + plan.source_at);
    const int heights = p.axis[0].phases(), widths = p.axis[1].phases(), phases = heights * widths;
    for (int i = threadIdx.x; i < heights + widths; i += blockDim.x) {
      of_axis[i] = i < heights ? axis_taps(p.axis[0], i, 0) : axis_taps(p.axis[1], i - heights, 0);
    }
    __syncthreads();
    for (int phase = threadIdx.x; phase < phases; phase += blockDim.x) {
      const int phase_h = phase / widths, phase_w = phase - phase_h * widths;
      const auto length = [&](int i, int k) {
        return (of_axis[i].count * of_axis[heights + k].count * plan.units + 1) / 2;
      };
      int start = 0;
      for (int k = 0; k < widths; ++k) {
        for (int i = 0; i < phase_h; ++i) start += length(i, k);
        if (k < phase_w) start += length(phase_h, k);
      }
      starts()[phase] = start;
      if (phase + 1 == phases) starts()[phases] = start + length(phase_h, phase_w);
      const AxisTaps h = of_axis[phase_h], w = of_axis[heights + phase_w];
      int at = 2 * start;
      for (int a = 0; a < h.count; ++a) {
        const int row = h.first_shift + a * h.shift_step - plan.origin_h;
        for (int b = 0; b < w.count; ++b) {
          const int column = w.first_shift + b * w.shift_step - plan.origin_w;
          const int64_t tap = (h.first_tap + a * h.tap_step) * p.weight_h + (w.first_tap + b * w.tap_step) * p.weight_w;
          for (int unit = 0; unit < plan.units; ++unit, ++at) {
            weight_places()[at] = tap + unit * kUnit * p.weight_c;
            places()[at] = row * slot_bytes() + (unit * plan.pitch + column) * kRowsUnitBytes;
            units()[at] = unit;
          }
        }
      }
      if (at % 2 != 0) weight_places()[at] = 0, places()[at] = places()[at - 1], units()[at] = -1;
    }
    __syncthreads();
  }

  // --- each strip: a block of channels, an image, columns ---

  __device__ __forceinline__ void walk(int strip, int q, int end) {
    const int rest = p.by_tiles_w.quotient(strip);
    first_q = (strip - rest * plan.tiles_w) * plan.columns();
    const int block = p.by_batch.quotient(rest);
    n = rest - block * p.batch;
    __syncthreads();  // nobody reads what is replaced
    if (block != channel_block) enter_channels(block);
    enter_strip();
    int slot = 0;  // of the step's first row
    for (int row = 0; row < plan.shifts_h; ++row) bring_row(q + plan.origin_h + row, row, 0);
    __syncthreads();
    const Item own = locate(threadIdx.x);
    for (; q < end; ++q) {
      const int next_row = q + plan.origin_h + plan.shifts_h;
      int next_slot = slot + plan.shifts_h;
      if (next_slot >= plan.slots) next_slot -= plan.slots;
      Quad quad;
      if (q + 1 < end) load(quad, own, next_row);
      if (channels > 0 && row_bytes > 0) {
        for (int phase = 0; phase < p.axis[0].phases(); ++phase) compute_row(phase, q, slot);
      }
      if (q + 1 < end) {
        put(quad, own, next_slot);
        bring_row(next_row, next_slot, blockDim.x);
      }
      slot = slot + 1 == plan.slots ? 0 : slot + 1;
      __syncthreads();
    }
  }

  __device__ __forceinline__ void enter_channels(int block) {
    channel_block = block;
    const int group = p.by_group_blocks.quotient(block);
    group0 = group * plan.groups;
    m0 = (block - group * plan.group_blocks) * plan.bands * kBand;
    channels = group0 + band_group < p.groups ? min(kBand, p.result_channels - m0 - band_m) : 0;
    const T* const of_band = p.bias + (group0 + band_group) * p.result_channels + m0 + band_m;
    const auto bias_of = [&](int channel) {
      return p.bias != nullptr && channel < channels ? of_band[channel] : narrow<T>(0.0f);
    };
    Pack<T, 4 / kSize> word;
#pragma unroll
    for (int i = 0; i < 4 / kSize; ++i) word.value[i] = bias_of(lane);
    bias_word = *reinterpret_cast<const uint32_t*>(&word);
#pragma unroll
    for (int i = 0; i < kChannelTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) bias[i][k] = widen(bias_of(8 * i + lane % 4 * 2 + k));
    }
    pack_weights();
  }

  // [entry][8 channels][lane], a lane's operand.
  __device__ __forceinline__ void pack_weights() const {
    const int tiles = plan.groups * plan.bands * kChannelTiles, warps = blockDim.x / 32;
    const int first_c = lane % 4 * (4 / kSize);  // of a unit's channels
#pragma unroll 4
    for (int i = threadIdx.x / 32; i < plan.entries * tiles; i += warps) {
      const int entry = p.by_tiles.quotient(i), tile = i - entry * tiles;
      const int of_group = p.by_group_tiles.quotient(tile), group = group0 + of_group;
      const int m = m0 + (tile - of_group * plan.bands * kChannelTiles) * 8 + lane / 4;
      const bool exists = group < p.groups && m < p.result_channels;
      const T* const of_lane = p.weight + group * p.weight_group + m * p.weight_m + first_c * p.weight_c;
      uint32_t word[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int unit = units()[2 * entry + k], c = unit * kUnit + first_c;
        const T* const from = of_lane + weight_places()[2 * entry + k];
        Pack<T, 4 / kSize> values{};
#pragma unroll
        for (int j = 0; j < 4 / kSize; ++j) {
          if (exists && unit >= 0 && c + j < p.source_channels) values.value[j] = from[j * p.weight_c];
        }
        word[k] = operand(*reinterpret_cast<const uint32_t*>(&values));
      }
      store_shared_8(shared_address(memory) + 8 * (32 * i + lane), make_uint2(word[0], word[1]));
    }
  }
  __device__ __forceinline__ static uint32_t operand(uint32_t bits) {
    if constexpr (kSize == 4) return round_to_tf32(bits);
    return bits;
  }

  __device__ __forceinline__ void enter_strip() {
    const int column = first_q * p.axis[1].result_step();
    row_bytes = min(plan.columns() * p.axis[1].result_step(), p.axis[1].result_size - column) * kSize;
    rows = p.result + n * p.result_n +
           (static_cast<int64_t>(group0 + band_group) * p.result_channels + m0 + band_m) * p.result_m + column;
#pragma unroll
    for (int i = 0; i < kChannelTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) low[i][k] = low_address(rows) + (8 * i + lane % 4 * 2 + k) * plane_bytes();
    }
  }
  __device__ __forceinline__ static uint32_t low_address(const void* pointer) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer));
  }
  __device__ __forceinline__ uint32_t plane_bytes() const { return static_cast<uint32_t>(p.result_m) * kSize; }

  // --- source rows: four columns of a unit's channels at a time ---

  struct Item {
    const T* from;  // of the image's first row
    uint32_t to;    // shared, in the first slot
    int column, channels;  // none: 0
  };
  struct Quad {
    uint32_t word[kUnit][kSize];
  };
  __device__ __forceinline__ Item locate(int index) const {
    const int rest = p.by_quads.quotient(index), quad = index - rest * p.quads;
    const int group = p.by_units.quotient(rest), c = (rest - group * plan.units) * kUnit;
    Item item;
    item.column = first_q + plan.origin_w - plan.lead + 4 * quad;
    const bool exists = rest < plan.groups * plan.units && group0 + group < p.groups;
    item.channels = exists ? p.source_channels - c : 0;
    item.from = p.source + n * p.source_n +
                (static_cast<int64_t>(group0 + group) * p.source_channels + c) * p.source_c + item.column * p.source_w;
    item.to = rest < plan.groups * plan.units
                  ? shared_address(memory + plan.source_at) + (rest * plan.pitch + 4 * quad) * kRowsUnitBytes
                  : 0;
    return item;
  }
  __device__ __forceinline__ void load(Quad& quad, const Item& item, int row) const {
    const bool inside = row >= 0 && row < p.axis[0].source_size;
    const int width = p.axis[1].source_size, count = inside ? item.channels : 0;
    const T* from = item.from + row * p.source_h;
    if (p.vector_source) {
      const bool whole = item.column >= 0 && item.column < width;
#pragma unroll
      for (int i = 0; i < kUnit; ++i, from += p.source_c) {
        if constexpr (kSize == 4) {
          const uint4 v = i < count && whole ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
          quad.word[i][0] = v.x, quad.word[i][1] = v.y, quad.word[i][2] = v.z, quad.word[i][3] = v.w;
        } else {
          const uint2 v = i < count && whole ? __ldg(reinterpret_cast<const uint2*>(from)) : make_uint2(0, 0);
          quad.word[i][0] = v.x, quad.word[i][1] = v.y;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i, from += p.source_c) {
        Pack<T, 4> values{};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int column = item.column + k;
          if (i < count && column >= 0 && column < width) values.value[k] = from[k * p.source_w];
        }
#pragma unroll
        for (int k = 0; k < kSize; ++k) quad.word[i][k] = reinterpret_cast<const uint32_t*>(&values)[k];
      }
    }
  }
  __device__ __forceinline__ void put(const Quad& quad, const Item& item, int slot) const {
    if (item.to == 0) return;
    const uint32_t to = item.to + slot * slot_bytes();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t word[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (kSize == 4) {
          word[k] = round_to_tf32(quad.word[k][i]);
        } else {  // the lower or the upper halves of two channels
          word[k] = __byte_perm(quad.word[2 * k][i / 2], quad.word[2 * k + 1][i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
        }
      }
      store_shared_16(to + i * kRowsUnitBytes, make_uint4(word[0], word[1], word[2], word[3]));
    }
  }
  // This thread's items from `begin` on.
  __device__ __forceinline__ void bring_row(int row, int slot, int begin) const {
#pragma unroll 1
    for (int i = threadIdx.x + begin; i < plan.groups * plan.units * p.quads; i += blockDim.x) {
      const Item item = locate(i);
      Quad quad;
      load(quad, item, row);
      put(quad, item, slot);
    }
  }
  __device__ __forceinline__ uint32_t slot_bytes() const {
    return plan.groups * plan.units * plan.pitch * kRowsUnitBytes;
  }

  // --- each result row of a band ---

  // All warps of a band have come here.
  __device__ __forceinline__ void meet() const {
    if (plan.warps_w == 1) {
      __syncwarp();
    } else {
      named_barrier_sync(1 + band, 32 * plan.warps_w);
    }
  }

  __device__ __forceinline__ void compute_row(int phase_h, int q, int slot) {
    const int h = q * p.axis[0].result_step() + phase_h;
    if (h >= p.axis[0].result_size) return;
    T* const row = rows + h * p.result_h;
    if (p.idle[0] >> phase_h & 1) {
      store_rows(
          row, [&](int channel) { return __shfl_sync(0xffffffffu, bias_word, channel); },
          [](uint32_t word, int) { return make_uint4(word, word, word, word); },
          [](uint32_t word, int) { return reinterpret_cast<const T&>(word); });
      return;
    }
    if (p.idle[1] != 0) {
      __syncwarp();  // other lanes have read the ends of the row before
      const int of_row = lane * plan.rows_at_once / 32, step = plan.rows_at_once * plan.warps_w;
      for (int first = warp_w; first < channels; first += step) {
        const int channel = first + of_row * plan.warps_w;
        const uint32_t word = __shfl_sync(0xffffffffu, bias_word, min(channel, kBand - 1));
        if (channel >= channels) continue;
        const uint32_t to = shared_address(stage + channel * plan.stage_pitch);
        for (int i = (lane - of_row * plan.row_lanes) * 16; i < row_bytes + 15; i += 16 * plan.row_lanes) {
          store_shared_16(to + i, make_uint4(word, word, word, word));
        }
      }
    }
    meet();
    const int widths = p.axis[1].phases();
    const uint32_t of_row = static_cast<uint32_t>(h * p.result_h) * kSize;
    uint32_t to[kChannelTiles][2];
#pragma unroll
    for (int i = 0; i < kChannelTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) to[i][k] = staged[i][k] + ((low[i][k] + of_row) & 15);
    }
    float nothing[2] = {};  // NaN from the first sum on that is not finite
    const int* const list = starts() + phase_h * widths;
    int begin = list[0];
    Walk walk{shared_address(places() + 2 * begin + lane / 16), weights + begin * weights_of_entry(),
              slot * slot_bytes()};
    for (int phase_w = 0; phase_w < widths; ++phase_w) {
      const int end = list[phase_w + 1];
      if (end > begin) multiply(walk, end - begin, phase_w, to, nothing);
      begin = end;
    }
    if (__any_sync(0xffffffffu, !(nothing[0] + nothing[1] == 0))) {
      const int step = p.axis[1].result_step(), in_tile = warp_w * kPixels * step;
      repair(p, stage, low_address(row), n, group0 + band_group, m0 + band_m, channels, h, first_q * step + in_tile,
             kPixels * step, in_tile);
    }
    meet();
    store_rows(
        row, [](int) { return 0u; }, [&](uint32_t, int at) { return load_shared_16(shared_address(stage) + at); },
        [&](uint32_t, int at) { return *reinterpret_cast<const T*>(stage + at); });
  }

  // Where a lane's next entry and its weights lie in shared memory, and the step's first row of the source.
  struct Walk {
    uint32_t entry, weight, slot;
  };
  __device__ __forceinline__ uint32_t weights_of_entry() const {
    return plan.groups * plan.bands * kChannelTiles * 256;
  }

  // The sums of a phase, of the next `entries` entries, to the staged rows.
  __device__ __forceinline__ void multiply(Walk& walk, int entries, int phase_w, const uint32_t (&to)[kChannelTiles][2],
                                           float (&nothing)[2]) const {
    float sums[kPixelTiles][kChannelTiles][4];
    const uint32_t slots_end = plan.slots * slot_bytes();
    const auto take = [&](bool is_first) {
      uint32_t place = walk.slot + load_shared_4(walk.entry);
      if (place >= slots_end) place -= slots_end;
      uint2 w[kChannelTiles];
#pragma unroll
      for (int k = 0; k < kChannelTiles; ++k) w[k] = load_shared_8(walk.weight + k * 256);
#pragma unroll
      for (int i = 0; i < kPixelTiles; ++i) {
        uint32_t x[4];
        load_matrices(x, source + place + i * 16 * kRowsUnitBytes);
#pragma unroll
        for (int k = 0; k < kChannelTiles; ++k) {
          if (is_first) {
            sums[i][k][0] = sums[i][k][2] = bias[k][0], sums[i][k][1] = sums[i][k][3] = bias[k][1];
          }
          multiply_add<T>(sums[i][k], make_uint4(x[0], x[1], x[2], x[3]), w[k].x, w[k].y);
        }
      }
      walk.entry += 8, walk.weight += weights_of_entry();
    };
    take(true);
    int left = entries - 1;
#pragma unroll 1
    for (; left >= 2; left -= 2) take(false), take(false);
    if (left > 0) take(false);
    // A lane holds two neighbouring channels of pixels lane / 4 and lane / 4 + 8.
    const uint32_t step = 8 * p.axis[1].result_step() * kSize;
    uint32_t at = phase_w * kSize;
#pragma unroll
    for (int i = 0; i < kPixelTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half, at += step) {
#pragma unroll
        for (int k = 0; k < kChannelTiles; ++k) {
          const float first = sums[i][k][2 * half], second = sums[i][k][2 * half + 1];
          nothing[0] = fmaf(0, first, nothing[0]), nothing[1] = fmaf(0, second, nothing[1]);
          store_element(to[k][0] + at, first);
          store_element(to[k][1] + at, second);
        }
      }
    }
  }
  __device__ __forceinline__ static void store_element(uint32_t address, float value) {
    if constexpr (kSize == 4) {
      store_shared_4(address, __float_as_uint(value));
    } else {
      const T element = narrow<T>(value);
      store_shared_2(address, reinterpret_cast<const uint16_t&>(element));
    }
  }

  // Every warps_w-th row of the band from `row` on, plan.row_lanes lanes each. What a row has: `of_channel`; then 16
  // bytes, or an element, of byte `at` of the staged rows.
  template <class OfChannel, class Vector, class Element>
  __device__ __forceinline__ void store_rows(T* row, const OfChannel& of_channel, const Vector& vector,
                                             const Element& element) const {
    constexpr int kAhead = 4, kElements = 16 / kSize, kEndsAtOnce = 32 / (2 * kElements);
    const bool even = ((low_address(row) | plane_bytes() | row_bytes) & 15) == 0;
    const int of_row = lane * plan.rows_at_once / 32, step = plan.rows_at_once * plan.warps_w;
    // A lane's places in a row, from `at` on by `stride`, and its rows, one after the other.
    const int stride = plan.row_lanes * 16, row_end = even ? row_bytes : row_bytes + 15;
    const uint32_t wholes = max(row_bytes - 15, 0);  // places in a row at which 16 bytes are the row's
    const int64_t next = step * p.result_m * kSize;
    const int first_at = (lane - of_row * plan.row_lanes) * 16;
    int left = channels - warp_w - of_row * plan.warps_w, at = 0, channel = channels - left;
    uint32_t in_tile = channel * plan.stage_pitch + first_at;
    unsigned char* to = reinterpret_cast<unsigned char*>(row + channel * p.result_m);
    uint32_t in_row = first_at - (low_address(to) & 15);
#pragma unroll 1
    for (int rows_left = channels - warp_w; rows_left > 0;) {
      uint4 v[kAhead];
      unsigned char* line[kAhead];
      bool whole[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const auto word = of_channel(min(channel, kBand - 1));
        const uint32_t place = in_row + at;
        whole[k] = place < wholes && left > 0;
        line[k] = to + place;
        if (whole[k]) v[k] = vector(word, in_tile + at);
        at += stride;
        if (at >= row_end) {
          at = 0, left -= step, channel += step, rows_left -= step;
          in_tile += step * plan.stage_pitch, in_row += low_address(to) & 15;
          to += next;
          in_row -= low_address(to) & 15;
        }
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (whole[k]) *reinterpret_cast<uint4*>(line[k]) = v[k];
      }
    }
    if (even) return;
    // What lies before the first multiple of 16 bytes and behind the last, of a few rows at once.
    const int of_end = lane / (2 * kElements), is_tail = lane / kElements % 2, index = lane % kElements;
    for (int first = 0; warp_w + first * plan.warps_w < channels; first += kEndsAtOnce) {
      const int channel = warp_w + (first + of_end) * plan.warps_w;
      const auto word = of_channel(min(channel, kBand - 1));
      if (channel >= channels) continue;
      T* const own = row + channel * p.result_m;
      const int offset = static_cast<int>(low_address(own) & 15), end = offset + row_bytes, last = end & ~15;
      const int at = is_tail ? last + index * kSize : offset + index * kSize;
      const bool wanted = is_tail ? at < end && (last > 0 || offset == 0) : offset > 0 && at < min(16, end);
      if (wanted) own[(at - offset) / kSize] = element(word, channel * plan.stage_pitch + at);
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    conv_kernel(const __grid_constant__ ConvParams<typename Config::Element> params) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) unsigned char shared[];
  ConvBlock<Config>(params, shared).run();
#endif
}

}  // namespace deconv::rows_family
