// Depthwise kernels for results (grad_weight: inputs) whose width is innermost in memory.
//
// A block stages the source pixels of a tile in shared memory: widened, zeros outside the image, one section for each
// phase of the result or plane of the source (taps.h). So the loops that multiply test nothing, and any strides of the
// source will do. A thread takes kDepthwiseColumns x depthwise_rows pixels, the rows of one phase: a window of the
// section slides down them in registers and meets up to kDepthwiseTapRows x kDepthwiseTapColumns taps on its way.
//
// Where the stride of a result is neither 1 nor 2, each column of a thread finds its own phase's taps instead.
#pragma once

#include "families/depthwise/params.cuh"

namespace deconv {

template <class T>
using DepthwisePlanesParams = DepthwiseParams<T, DepthwisePlanesPlan>;

// Pixels that move as one access.
template <class T>
inline constexpr int kDepthwisePack = kDepthwiseColumns < kPackSize<T> ? kDepthwiseColumns : kPackSize<T>;

// A block's source tile: what it reads from global memory.
template <class T>
struct DepthwiseTile {
  AccumulatorOf<T>* shared;
  const T* source;
  int64_t* image_at;  // shared: element offset of each image's plane
  int images;
  int first_row, row_step;  // source row of the tile's first row
  int first_column;         // of the result
  int first_section, sections;
};

// The first source column that a result column reads, or one before it.
template <class T>
__device__ __forceinline__ int lowest_column(const DepthwisePlanesParams<T>& p, int result_column) {
  const AxisGeometry& axis = p.axis[1];
  if (!axis.is_forward) return result_column * axis.stride - axis.padding;
  return p.by_stride_w.quotient(result_column) + p.lowest_shift[1];
}

// Where a source column goes within a row of the tile; `copy` of those that several phases read.
template <int kPhases, class T>
__device__ __forceinline__ int place(const DepthwisePlanesParams<T>& p, const DepthwiseTile<T>& tile, int column,
                                     int copy) {
  int section = 0, position;
  if constexpr (kPhases == 1) {
    const int q = p.by_source_step_w.quotient(column), plane = column - q * p.axis[1].source_step();
    section = plane - tile.first_section;
    position = q - tile.first_column - p.taps[1][plane].first_shift;
  } else if constexpr (kPhases == kDepthwiseColumns) {
    position = column - lowest_column(p, tile.first_column);
  } else {
    section = copy;
    position = column - tile.first_column / kPhases - p.taps[1][copy].first_shift;
  }
  const bool needed = static_cast<unsigned>(section) < static_cast<unsigned>(tile.sections) &&
                      static_cast<unsigned>(position) < static_cast<unsigned>(p.plan.pitch);
  return needed ? section * p.plan.pitch + position : p.plan.row_pitch - 1;
}

// Zeros everywhere: staging does not come to columns outside the image.
template <class T>
__device__ __forceinline__ void clear(const DepthwisePlanesParams<T>& p, const DepthwiseTile<T>& tile) {
  using Accum = AccumulatorOf<T>;
  constexpr int kPack = kPackSize<Accum>;
  const int count = p.plan.images * p.plan.source_rows * p.plan.row_pitch;
#pragma unroll 4
  for (int e = threadIdx.x * kPack; e < count; e += kDepthwiseThreads * kPack) {
    *reinterpret_cast<Pack<Accum, kPack>*>(tile.shared + e) = Pack<Accum, kPack>{};
  }
}

// Every thread keeps to kPack neighbouring columns and goes down the rows with kBatch loads in flight.
template <int kPhases, int kBatch, int kPack, class T>
__device__ __forceinline__ void stage_packs(const DepthwisePlanesParams<T>& p, const DepthwiseTile<T>& tile) {
  constexpr int kCopies = kPhases == 2 ? 2 : 1;
  using Source = RawPack<T, kPack>;
  const DepthwiseStage& threads = p.plan.stage[kPack == 1 ? 0 : 1];
  const int any_line = threads.by_lanes.quotient(threadIdx.x), lane = threads.by_lanes.remainder(threadIdx.x);
  const int first_image = threads.by_row_lines.quotient(any_line), line = threads.by_row_lines.remainder(any_line);
  if (first_image >= threads.image_lines) return;
  const int row_lines = threads.by_row_lines.divisor, row_pitch = p.plan.row_pitch;
  // The tile's rows within the image.
  const int above = max(0, -tile.first_row), below = max(0, p.axis[0].source_size - tile.first_row);
  const int begin = min(p.plan.source_rows, p.by_row_step.quotient(above + tile.row_step - 1));
  const int end = min(p.plan.source_rows, p.by_row_step.quotient(below + tile.row_step - 1));
  const int first = lowest_column(p, tile.first_column);
  const int first_pack = first >= 0 ? first / kPack : -((kPack - 1 - first) / kPack);
  const int64_t row_stride = tile.row_step * p.source_stride.h, line_stride = row_lines * row_stride;
  const int line_pitch = row_lines * row_pitch;
#pragma unroll 1
  for (int x = lane; x < threads.packs; x += threads.by_lanes.divisor) {
    const int column = (first_pack + x) * kPack;
    if (column < 0 || column >= p.axis[1].source_size) continue;
    AccumulatorOf<T>* to[kCopies][kPack];
#pragma unroll
    for (int copy = 0; copy < kCopies; ++copy) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) to[copy][k] = tile.shared + place<kPhases>(p, tile, column + k, copy);
    }
    const auto put = [&](const Source& value, int at) {
      AccumulatorOf<T> pixel[kPack];
      widen<T, kPack>(pixel, value);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
#pragma unroll
        for (int copy = 0; copy < kCopies; ++copy) to[copy][k][at] = pixel[k];
      }
    };
    const T* source = tile.source + column * p.source_stride.w + tile.first_row * p.source_stride.h;
#pragma unroll 1
    for (int image = first_image; image < tile.images; image += threads.image_lines) {
      const int image_row = image * p.plan.source_rows;
      const T* next = source + tile.image_at[image] + (begin + line) * row_stride;
      int at = (image_row + begin + line) * row_pitch;
      const auto copy_rows = [&](int count, auto whole) {  // kBatch rows, or `count` if that is fewer
        Source value[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (!whole.value) value[b] = Source{};
          if (whole.value || b < count) value[b] = *reinterpret_cast<const Source*>(next);
          next += line_stride;
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (whole.value || b < count) put(value[b], at);
          at += line_pitch;
        }
      };
      int count = threads.by_row_lines.quotient(max(0, end - begin - line) + row_lines - 1);
#pragma unroll 1
      for (; count >= kBatch; count -= kBatch) copy_rows(kBatch, std::true_type());
      if (count > 0) copy_rows(count, std::false_type());
      // Rows outside the image, where an earlier tile may have left pixels.
      const auto put_zeros = [&](int first, int last) {
        for (int row = first + line; row < last; row += row_lines) put(Source{}, (image_row + row) * row_pitch);
      };
      put_zeros(0, begin);
      put_zeros(end, p.plan.source_rows);
    }
  }
}

template <int kPhases, int kBatch, class T>
__device__ __forceinline__ void stage(const DepthwisePlanesParams<T>& p, const DepthwiseTile<T>& tile) {
  if (p.vector_source) {
    stage_packs<kPhases, kBatch, kDepthwisePack<T>>(p, tile);
  } else {
    stage_packs<kPhases, 8, 1>(p, tile);
  }
}

// kWindow pixels, kColumns of them without the taps' reach. `packed`: they start on a boundary of kColumns.
template <int kColumns, int kWindow, class Accum>
__device__ __forceinline__ void load_window(Accum (&window)[kWindow], const Accum* from, bool packed) {
  constexpr int kPack = kColumns < kPackSize<Accum> ? kColumns : kPackSize<Accum>;
  if (kWindow == kColumns && !packed) {
#pragma unroll
    for (int i = 0; i < kWindow; ++i) window[i] = from[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < kWindow; i += kPack) {
    const auto pack = *reinterpret_cast<const Pack<Accum, kPack>*>(from + i);
#pragma unroll
    for (int k = 0; k < kPack && i + k < kWindow; ++k) window[i + k] = pack.value[k];
  }
}

// Adds kTapRows x kTapColumns taps to the columns `phase`, `phase` + kPhases, ... of a thread's sums.
template <int kPhases, int kTapRows, int kTapColumns, int kRows, class Accum>
__device__ __forceinline__ void add_taps(Accum (&sums)[kRows][kDepthwiseColumns], int phase, const Accum* from,
                                         int row_pitch, bool packed, const Accum* weights, int weight_row,
                                         int weight_column) {
  constexpr int kColumns = kDepthwiseColumns / kPhases;
  Accum weight[kTapRows][kTapColumns];
#pragma unroll
  for (int i = 0; i < kTapRows; ++i) {
#pragma unroll
    for (int k = 0; k < kTapColumns; ++k) weight[i][k] = weights[i * weight_row + k * weight_column];
  }
#pragma unroll
  for (int row = 0; row < kRows + kTapRows - 1; ++row) {
    Accum window[kColumns + kTapColumns - 1];
    load_window<kColumns>(window, from + row * row_pitch, packed);
#pragma unroll
    for (int i = 0; i < kTapRows; ++i) {
      if (row < i || row - i >= kRows) continue;
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
#pragma unroll
        for (int k = 0; k < kTapColumns; ++k) sums[row - i][q * kPhases + phase] += window[q + k] * weight[i][k];
      }
    }
  }
}

// `kPasses`: the sources of a result come one after the other, planes of the height or channels.
template <class T, int kPhases, bool kPasses>
class DepthwisePlanesBlock {
  using Accum = AccumulatorOf<T>;
  static constexpr int kRows = depthwise_rows(kPhases), kColumnsOfPhase = kDepthwiseColumns / kPhases;

 public:
  __device__ __forceinline__ DepthwisePlanesBlock(const DepthwisePlanesParams<T>& params, unsigned char* shared,
                                                  int64_t* image_at)
      : p(params),
        weights(reinterpret_cast<Accum*>(shared)),
        tile{reinterpret_cast<Accum*>(shared + p.plan.tile_at), p.source, image_at},
        row_pitch(p.plan.row_pitch) {
    BlockIndex block;
    tile.first_column = block.take(p.plan.by_tiles_w) * p.plan.columns;
    tile.first_section = 0;
    tile.sections = p.plan.sections;
    first_q = block.take(p.plan.by_tiles_h) * p.plan.rows;
    first_c = block.take(p.plan.by_tiles_n) * p.plan.images;
    n = block.rest();
    tile.images = min(p.plan.images, p.channels - first_c);
  }

  __device__ __forceinline__ void run() {
    const int items = tile.images * p.plan.image_items;
    if constexpr (!kPasses) load(0, 0);
    for (int first = 0; first < items; first += kDepthwiseThreads) {
      const int item = first + threadIdx.x;
      const int line = p.plan.by_strips.quotient(item), line_phase = p.plan.by_groups.quotient(line);
      strip = p.plan.by_strips.remainder(item);
      group = p.plan.by_groups.remainder(line);
      image = p.plan.by_row_phases.quotient(line_phase);
      row_phase = p.plan.by_row_phases.remainder(line_phase);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kDepthwiseColumns; ++c) sums[r][c] = Accum(0);
      }
      if constexpr (kPasses) {
        const int planes = p.is_forward ? 1 : p.axis[0].planes();
        for (int s = 0; s < p.sources(); ++s) {
          for (int plane = 0; plane < planes; ++plane) {
            load(s, plane);
            if (item < items) add_plane(plane);
          }
        }
      } else if (item < items) {
        add_plane(0);
      }
      if (item < items) store();
    }
  }

 private:
  const DepthwisePlanesParams<T>& p;
  Accum* weights;  // shared: [images][kernel height][kernel width]
  DepthwiseTile<T> tile;
  int row_pitch, first_q, first_c, n;
  int strip, group, row_phase, image;  // this thread's pixels
  Accum sums[kRows][kDepthwiseColumns];

  __device__ __forceinline__ void load(int s, int plane) {
    __syncthreads();  // the previous plane's readers are done
    if (s == 0 && plane == 0) clear(p, tile);
    if (plane == 0) {
      const int taps = p.by_taps.divisor;
      if (threadIdx.x < tile.images) {
        tile.image_at[threadIdx.x] = n * p.source_stride.n +
                                     p.source_channel(first_c + threadIdx.x, s) * p.source_stride.c;
      }
      for (int e = threadIdx.x; e < tile.images * taps; e += kDepthwiseThreads) {
        const int i = p.by_taps.quotient(e), tap = p.by_taps.remainder(e), kh = p.by_kernel_w.quotient(tap);
        weights[e] = widen(
            p.weight(first_c + i, s)[kh * p.other_stride.h + p.by_kernel_w.remainder(tap) * p.other_stride.w]);
      }
    }
    __syncthreads();
    const int shift = p.is_forward ? p.lowest_shift[0] : p.taps[0][plane].first_shift;
    tile.row_step = p.axis[0].source_step();
    tile.first_row = (first_q + shift) * tile.row_step + plane;
    stage<kPhases, kPasses ? 4 : 8>(p, tile);  // sums in registers leave room for fewer loads
    __syncthreads();
  }

  __device__ __forceinline__ void add_plane(int plane) {
    const AxisTaps& th = p.taps[0][p.is_forward ? row_phase : plane];
    const int row = group * kRows + (p.is_forward ? th.first_shift - p.lowest_shift[0] : 0);
    const Accum* from = tile.shared + (image * p.plan.source_rows + row) * row_pitch;
    const int kernel_w = p.axis[1].kernel, taps = p.axis[0].kernel * kernel_w;
    const Accum* weight = weights + image * taps + th.first_tap * kernel_w;
    if constexpr (kPhases == kDepthwiseColumns) {
      add_columns(th, from, weight);
    } else {
      for (int i = 0; i < th.count; i += p.plan.chunk_h) {
        add_rows(min(p.plan.chunk_h, th.count - i), from + i * th.shift_step * row_pitch + strip * kColumnsOfPhase,
                 weight + i * th.tap_step * kernel_w, th.tap_step * kernel_w);
      }
    }
  }

  __device__ __forceinline__ void add_rows(int tap_rows, const Accum* from, const Accum* weight, int weight_row) {
    for (int first = 0; first < p.plan.sections; first += kPhases) {
#pragma unroll
      for (int phase = 0; phase < kPhases; ++phase) {
        const int section = first + phase;
        const AxisTaps& tw = p.taps[1][section];
        for (int k = 0; k < tw.count; k += p.plan.chunk_w) {
          const Accum* window = from + section * p.plan.pitch + k * tw.shift_step;
          const Accum* taps = weight + tw.first_tap + k * tw.tap_step;
          dispatch<kDepthwiseTapRows>(tap_rows, [&](auto rows) {
            dispatch<kDepthwiseTapColumns>(min(p.plan.chunk_w, tw.count - k), [&](auto columns) {
              add_taps<kPhases, rows.value, columns.value>(sums, phase, window, row_pitch, tw.shift_step == 1, taps,
                                                           weight_row, tw.tap_step);
            });
          });
        }
      }
    }
  }

  // Each column with its own phase: its first pixel in the section, its taps.
  __device__ __forceinline__ void add_columns(const AxisTaps& th, const Accum* from, const Accum* weight) {
    const AxisGeometry& axis = p.axis[1];
    const int lowest = lowest_column(p, tile.first_column);
    const Accum *pixel[kDepthwiseColumns], *tap[kDepthwiseColumns];
    int count[kDepthwiseColumns], most = 0;
    int tap_step = 0, shift_step = 0;  // the same in every phase that has taps
#pragma unroll
    for (int c = 0; c < kDepthwiseColumns; ++c) {
      const int column = tile.first_column + strip * kDepthwiseColumns + c;
      const int q = p.by_stride_w.quotient(column);
      const AxisTaps& tw = p.taps[1][column - q * axis.stride];
      count[c] = column < axis.result_size ? tw.count : 0;
      most = max(most, count[c]);
      pixel[c] = from + q + tw.first_shift - lowest;
      tap[c] = weight + tw.first_tap;
      if (count[c] > 0) tap_step = tw.tap_step, shift_step = tw.shift_step;
    }
    const int weight_row = th.tap_step * axis.kernel, pixel_row = th.shift_step * row_pitch;
    for (int k = 0; k < most; ++k) {
      for (int i = 0; i < th.count; ++i) {
#pragma unroll
        for (int c = 0; c < kDepthwiseColumns; ++c) {
          if (k >= count[c]) continue;
          const Accum w = tap[c][i * weight_row];
          const Accum* at = pixel[c] + i * pixel_row;
#pragma unroll
          for (int r = 0; r < kRows; ++r) sums[r][c] += at[r * row_pitch] * w;
        }
      }
#pragma unroll
      for (int c = 0; c < kDepthwiseColumns; ++c) {
        tap[c] += tap_step;
        pixel[c] += shift_step;
      }
    }
  }

  __device__ __forceinline__ void store() const {
    constexpr int kPack = kDepthwisePack<T>;
    const int c = first_c + image, column = tile.first_column + strip * kDepthwiseColumns;
    const Accum bias = p.bias != nullptr ? widen(p.bias[c]) : Accum(0);
    const int valid = p.axis[1].result_size - column;
    const int step = p.axis[0].result_step(), first_row = (first_q + group * kRows) * step + row_phase;
    T* at = p.result + n * p.result_stride.n + c * p.result_stride.c + first_row * p.result_stride.h +
            column * p.result_stride.w;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first_row + r * step >= p.axis[0].result_size) return;
      if (p.vector_pixels && valid >= kDepthwiseColumns) {
#pragma unroll
        for (int i = 0; i < kDepthwiseColumns; i += kPack) {
          Accum pack[kPack];
#pragma unroll
          for (int k = 0; k < kPack; ++k) pack[k] = sums[r][i + k] + bias;
          *reinterpret_cast<RawPack<T, kPack>*>(at + i) = narrow<T, kPack>(pack);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kDepthwiseColumns; ++i) {
          if (i < valid) at[i * p.result_stride.w] = narrow<T>(sums[r][i] + bias);
        }
      }
      at += step * p.result_stride.h;
    }
  }
};

template <class T, int kPhases, bool kPasses>
__global__ void __launch_bounds__(kDepthwiseThreads, sizeof(T) == 8 || (kPasses && kPhases > 1) ? 2 : 4)
    depthwise_planes_kernel(const __grid_constant__ DepthwisePlanesParams<T> p) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ int64_t image_at[kDepthwiseImages];
  DepthwisePlanesBlock<T, kPhases, kPasses>(p, shared, image_at).run();
}

// grad_weight: a block takes one pair of channels, one chunk of tap rows, `group_warps` chunks of tap columns and one
// split of the tiles. Warps with the same taps share the pixels; their sums are added in order.
template <class T>
__global__ void __launch_bounds__(kDepthwiseThreads, sizeof(T) == 8 ? 2 : 3)
    depthwise_planes_weight_kernel(const __grid_constant__ DepthwisePlanesParams<T> p) {
  using Accum = AccumulatorOf<T>;
  constexpr int kRows = depthwise_rows(1);
  constexpr int kTaps = kDepthwiseTapRows * kDepthwiseTapColumns, kWarps = kDepthwiseThreads / 32;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ int64_t image_at[kDepthwiseImages];
  __shared__ Accum warp_sums[kWarps][kTaps];

  BlockIndex block;
  const int first_group = block.take(p.plan.by_passes_w) * p.plan.group_warps;
  const int pass_h = block.take(p.plan.by_passes_h);
  const int pair = block.take(p.by_channels);
  const int64_t split = block.rest();

  const int plane_h = p.plan.by_chunks_h.quotient(pass_h);
  const int first_h = p.plan.by_chunks_h.remainder(pass_h) * p.plan.chunk_h;
  const AxisTaps& th = p.taps[0][plane_h];
  const int tap_rows = min(p.plan.chunk_h, th.count - first_h);
  if (tap_rows <= 0) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = first_group + warp % p.plan.group_warps;
  const int pixel_warp = warp / p.plan.group_warps, pixel_warps = kWarps / p.plan.group_warps;
  const int section = p.plan.by_chunks_w.quotient(group);
  const int first_w = p.plan.by_chunks_w.remainder(group) * p.plan.chunk_w;
  const int planes_w = p.axis[1].stride;  // those beyond the image, too: their taps get zeros
  const AxisTaps tw = section < planes_w ? p.taps[1][section] : AxisTaps{};
  const int tap_columns = min(p.plan.chunk_w, tw.count - first_w);

  DepthwiseTile<T> tile{reinterpret_cast<Accum*>(shared), p.source, image_at};
  tile.first_section = p.plan.by_chunks_w.quotient(first_group);
  tile.sections = min(planes_w, p.plan.by_chunks_w.quotient(first_group + p.plan.group_warps - 1) + 1) -
                  tile.first_section;
  tile.row_step = p.axis[0].stride;
  const int row_pitch = p.plan.row_pitch;

  // This thread's pixels within a tile.
  const int line = p.plan.by_strips.quotient(pixel_warp * 32 + lane);
  const int strip = p.plan.by_strips.remainder(pixel_warp * 32 + lane);
  const int row = p.plan.by_groups.remainder(line) * kRows, image = p.plan.by_groups.quotient(line);
  const Accum* from = tile.shared + (image * p.plan.source_rows + row) * row_pitch +
                      (section - tile.first_section) * p.plan.pitch + strip * kDepthwiseColumns +
                      first_w * tw.shift_step;

  Accum sums[kDepthwiseTapRows][kDepthwiseTapColumns] = {};
  const int first_tile = static_cast<int>(split * p.plan.tiles_per_split);
  const int end = static_cast<int>(min(p.plan.tiles, (split + 1) * p.plan.tiles_per_split));
  for (int index = first_tile; index < end; ++index) {
    const int tile_line = p.plan.by_tiles_w.quotient(index);
    tile.first_column = p.plan.by_tiles_w.remainder(index) * p.plan.columns;
    const int first_q = p.plan.by_tiles_h.remainder(tile_line) * p.plan.rows;
    const int first_n = p.plan.by_tiles_h.quotient(tile_line) * p.plan.images;
    tile.images = min(p.plan.images, p.batch - first_n);
    tile.first_row = (first_q + th.first_shift + first_h * th.shift_step) * tile.row_step + plane_h;
    __syncthreads();  // the previous tile's readers are done
    if (index == first_tile || p.plan.by_tiles_w.divisor > 1) clear(p, tile);
    if (threadIdx.x < tile.images) {
      image_at[threadIdx.x] = (first_n + threadIdx.x) * p.source_stride.n + p.pair_output(pair) * p.source_stride.c;
    }
    __syncthreads();
    stage<1, 4>(p, tile);
    // The input's pixels, on their way while the tile gets complete.
    Accum pixels[kRows][kDepthwiseColumns];
    const int valid = image < tile.images ? p.axis[1].result_size - tile.first_column - strip * kDepthwiseColumns : 0;
    const T* input = p.other + (first_n + image) * p.other_stride.n + p.pair_input(pair) * p.other_stride.c +
                     (first_q + row) * p.other_stride.h +
                     (tile.first_column + strip * kDepthwiseColumns) * p.other_stride.w;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      constexpr int kPack = kDepthwisePack<T>;
      const bool inside = first_q + row + r < p.axis[0].result_size;
      const T* at = input + r * p.other_stride.h;
      if (p.vector_pixels && inside && valid >= kDepthwiseColumns) {
#pragma unroll
        for (int i = 0; i < kDepthwiseColumns; i += kPack) {
          Accum pack[kPack];
          widen<T, kPack>(pack, *reinterpret_cast<const RawPack<T, kPack>*>(at + i));
#pragma unroll
          for (int k = 0; k < kPack; ++k) pixels[r][i + k] = pack[k];
        }
      } else {
#pragma unroll
        for (int i = 0; i < kDepthwiseColumns; ++i) {
          pixels[r][i] = inside && i < valid ? widen(at[i * p.other_stride.w]) : Accum(0);
        }
      }
    }
    __syncthreads();
    if (valid <= 0) continue;
    dispatch<kDepthwiseTapRows>(tap_rows, [&](auto rows) {
      dispatch<kDepthwiseTapColumns>(tap_columns, [&](auto columns) {
#pragma unroll
        for (int j = 0; j < kRows + rows.value - 1; ++j) {
          Accum window[kDepthwiseColumns + columns.value - 1];
          load_window<kDepthwiseColumns>(window, from + j * row_pitch, tw.shift_step == 1);
#pragma unroll
          for (int i = 0; i < rows.value; ++i) {
            if (j < i || j - i >= kRows) continue;
#pragma unroll
            for (int q = 0; q < kDepthwiseColumns; ++q) {
#pragma unroll
              for (int k = 0; k < columns.value; ++k) sums[i][k] += pixels[j - i][q] * window[q + k];
            }
          }
        }
      });
    });
  }

#pragma unroll
  for (int i = 0; i < kTaps; ++i) {
    Accum sum = sums[i / kDepthwiseTapColumns][i % kDepthwiseTapColumns];
#pragma unroll
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (lane == 0) warp_sums[warp][i] = sum;
  }
  __syncthreads();
  if (pixel_warp > 0) return;
  const int i = lane / kDepthwiseTapColumns, k = lane % kDepthwiseTapColumns;
  if (lane >= kTaps || i >= tap_rows || k >= tap_columns) return;
  Accum sum = 0;
  for (int other = 0; other < pixel_warps; ++other) sum += warp_sums[warp + other * p.plan.group_warps][lane];
  p.store_weight(split, pair, th.first_tap + (first_h + i) * th.tap_step, tw.first_tap + (first_w + k) * tw.tap_step,
                 sum);
}

}  // namespace deconv
