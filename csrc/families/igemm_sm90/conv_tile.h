// A layer as the planner of igemm_sm90/conv.cuh sees it, one tile for it, and that tile's cost.
#pragma once

#include <optional>

#include "core/correlation.h"
#include "core/tap_span.h"
#include "families/igemm_sm90/plan.h"
#include "planner/plan.h"

namespace deconv {

// What all candidates of a layer share.
struct ConvLayer {
  // `problem` with so many neighbouring groups as one; im2col: as its im2col_problem, so read.
  ConvLayer(const Problem& problem, int64_t merge, const Device& device, bool raw_boxes, bool weights_in_place,
            bool im2col = false);
  ConvLayer(const ConvLayer&) = delete;  // members refer to others

  // The source as it lies is as good as rewritten channels_last.
  bool reads_in_place() const { return source == Sm90Source::kTensor || source == Sm90Source::kIm2col; }
  bool by_im2col() const { return source == Sm90Source::kIm2col; }

  int merge;
  Problem problem;
  const Device& device;
  Correlation c;
  AxisGeometry h, w;
  TapSpan span_h, span_w;
  int planes_h, planes_w;  // that any tap reads
  int element;             // bytes
  Sm90Source source;
  bool weights_in_place;  // may be
};

// What the second warpgroup takes: the next 8 pixels of each group, the next groups (of columns: the next lines),
// the same pixels and the next result channels, or items of its own.
enum class Second { kPixels, kGroups, kChannels, kItems };
constexpr int kFlat = 0;  // instead of a number of lines: as many as fit, one after the other (IgemmSm90Plan::flat)

constexpr int kMostIm2colImages = 32, kMostIm2colPixels = 256;  // of a tile, along an axis

// The choices that make a candidate; the rest of its plan follows from them.
struct TileChoice {
  Sm90Tile tile;
  Sm90Inner inner = Sm90Inner::kHeight;
  Second second = Second::kPixels;
  int lines = 1;  // of a warpgroup, where groups are columns, or kFlat
  bool whole_sectors = false;
  bool repack = false;
  bool together = false;  // producer warps bring the columns of all planes of the width together
  int split = 1;
  Sm90Results results = Sm90Results::kStored;
};

// Nothing where it does not fit.
std::optional<IgemmSm90Plan> plan_tile(const ConvLayer& layer, const TileChoice& choice);
// Whether items wait for producer warps rather than for the tensor cores.
bool waits_for_source(const ConvLayer& layer, const IgemmSm90Plan& plan);
double estimate_ms(const ConvLayer& layer, const IgemmSm90Plan& plan);

// Elements of a sector: rows of the result begin at any multiple of so many.
int sector_unit(const ConvLayer& layer);
// Clusters that run at once, one block to a multiprocessor: an H200 with 132 of these, in groups of different sizes,
// takes 66 of 2 blocks, 30 of 4 and 15 of 8 (cudaOccupancyMaxActiveClusters).
inline int most_clusters(const Device& device, int blocks) { return device.multiprocessors * 10 / 11 / blocks; }
// Taps of all phases and planes along the width.
inline int taps_w(const ConvLayer& layer, const IgemmSm90Plan& plan) { return layer.w.kernel + plan.tile.fold - 1; }

}  // namespace deconv
