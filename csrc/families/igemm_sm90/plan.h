// What the Hopper family's planner gives to its kernels: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kSm90RowBytes = 128;  // of one pixel's channels in shared memory: one chunk, at most
inline constexpr int kSm90TileM = 64;      // rows of operand A, of a warpgroup: result channels, unless folded
inline constexpr int kSm90PermutedChannels = 16;  // whose rows of operand A may be permuted (result.cuh: row_of)
// Of one pixel's channels in a raw box; wide ones are float32's, where items wait for boxes.
inline constexpr int kSm90RawBytes = 32, kSm90WideRawBytes = 64;
// Pixels (float) or lanes' octets (16-bit: two for every column) of a raw box, at most.
constexpr int sm90_places(int element) { return element == 2 ? 1536 : 768; }
// Tensor maps of a launch, beside that of the weights: the planes' from the first on, and from the last on those of the
// phase groups' results, where these leave by tensor copies.
inline constexpr int kSm90MaxPlanes = 16;
constexpr int sm90_result_map(int phase_group) { return kSm90MaxPlanes - 1 - phase_group; }
inline constexpr int kSm90MaxKernel = 128;  // taps along one axis
inline constexpr int kSm90MaxStride = 64;

// 32-bit words of a line of results that are staged at once (kernels/hopper/result.cuh): all where they are few, else
// an even share. Lines lie an odd number of words apart.
constexpr int sm90_staged_words(int words) { return words <= 24 ? words : words % 16 == 0 ? 16 : words / 2; }

// Instances of the kernel: 8-pixel groups a warpgroup (wgmma's N is 8 times that), phases of the width that it
// accumulates side by side, and neighbouring columns that share operand A's rows (fold 2: half of the rows compute the
// next column, where channels are too few for all).
struct Sm90Tile {
  int groups, phases, fold;
};
inline constexpr Sm90Tile kSm90Tiles[] = {{4, 1, 1},  {8, 1, 1},  {16, 1, 1}, {18, 1, 1}, {20, 1, 1},
                                          {24, 1, 1}, {26, 1, 1}, {28, 1, 1}, {32, 1, 1}, {8, 2, 1},
                                          {12, 2, 1}, {16, 2, 1}, {16, 1, 2}, {24, 1, 2}, {32, 1, 2}};
// 3xTF32 keeps two accumulators.
inline constexpr Sm90Tile kSm90TilesSplit[] = {{8, 1, 1}, {16, 1, 1}, {8, 2, 1}, {8, 1, 2}, {16, 1, 2}};

// Instances whose items several blocks may share, a cluster: each takes a part of the source's channels and planes, for
// layers with too few items to fill the machine.
constexpr bool sm90_splits(Sm90Tile tile) { return tile.groups <= 8 && tile.phases == 1 && tile.fold == 1; }
inline constexpr int kSm90MostSplit = 8;  // blocks that every GPU takes as a cluster
// What the blocks of a cluster exchange: the accumulators of each.
constexpr int sm90_sums_bytes(Sm90Tile tile) { return tile.groups * tile.phases * 4 * 4 * 256; }

// Instances that read by kIm2col.
constexpr bool sm90_has_im2col(Sm90Tile tile) {
  return tile.phases == 1 && tile.fold == 1 && (tile.groups == 8 || tile.groups == 16 || tile.groups == 24);
}
inline constexpr int kSm90MostIm2col = 1024;  // taps of all channels
inline constexpr int kSm90Im2colAhead = 32;  // places of a pixel's row that a thread reads at once
inline constexpr int kSm90Im2colEntryBytes = 8;  // of the table that says where each reads

// Instances with rows of half the bytes: few channels on one side come with few on the other.
constexpr bool sm90_halves_rows(int element, Sm90Tile tile) { return element == 2 && tile.fold > 1; }

// Whether tiles of groups of columns may write whole sectors (kernels/hopper/result.cuh): with one phase it costs more
// than it saves.
constexpr bool sm90_writes_whole_sectors(Sm90Tile tile) { return tile.phases > 1; }
// Whether they may do so with rows of more phases than they accumulate side by side, which needs registers.
constexpr bool sm90_joins_phases(Sm90Tile tile) { return tile.phases > 1 && tile.groups <= 12; }
// Instances that store the pixels of flat lines from registers: with two phases groups of rows fill a tile as well.
constexpr bool sm90_stores_flat(Sm90Tile tile) { return tile.phases == 1 && tile.fold == 1; }
// Of the instances that store blocks, those whose lanes may exchange pixels for it, which needs registers.
constexpr bool sm90_may_exchange(int element, Sm90Tile tile) { return element == 4 && tile.groups <= 24; }
inline constexpr int kSm90LeastFlat = 8;  // pixels from one of these lines to the next
// Channels of a warp whose rows leave at once, where a tile writes whole sectors.
constexpr int sm90_row_channels(int element) { return 16 / element; }

// Which pixels lie next to each other in a halo, and so make a group of 8 (rows of wgmma's operand B):
//   kHeight, kBatch: 8 image rows, or 8 images, of one column; the next group is the next column (folded: the next
//                    after those that share rows).
//   kWidth:          8 columns; the next group is the next 8 columns.
// Groups go on over the line's halo, where they compute nothing of use, to the next line: the next image (kHeight) or
// image row (kBatch, kWidth). Flat lines (kWidth) have a halo of any width, and a group may lie in two of them.
enum class Sm90Inner { kHeight, kBatch, kWidth };

// How the source comes into shared memory (kernels/hopper/source.cuh). kIm2col: a pixel's row holds what all taps of
// all channels read, as if those were the channels of a layer with one tap (kernels/hopper/source_im2col.cuh).
enum class Sm90Source { kTensor, kTransposed, kWarps, kIm2col };

// How the weights come into shared memory: packed beforehand (kernels/hopper/pack_weight.cuh), or by TMA from where
// they lie, whose source channels are adjacent (K-major rows), or whose result channels are (M-major).
enum class Sm90Weights { kPacked, kMajorK, kMajorM };
// Instances that take M-major weights.
constexpr bool sm90_has_major_m(int element, Sm90Tile tile, Sm90Source source) {
  return element == 2 && tile.fold == 1 && source == Sm90Source::kTensor;
}

// Instances with others beside them that store pixels which are blocks of another result's: few, for the layers timed
// lose 2% in the mean by what is left out.
constexpr bool sm90_stores_blocks(int parts, Sm90Tile tile, Sm90Source source) {
  return parts == 1 && tile.phases == 1 && tile.fold == 1 && source != Sm90Source::kIm2col &&
         (tile.groups == 8 || tile.groups == 20 || tile.groups == 26 || tile.groups == 32);
}

// Whether warps write halos or their low parts: TMA alone brings what needs no change.
constexpr bool sm90_writes(Sm90Source source, int parts) { return source != Sm90Source::kTensor || parts == 2; }
// Whether a thread asks for tensor copies.
constexpr bool sm90_asks(Sm90Source source) {
  return source == Sm90Source::kTensor || source == Sm90Source::kTransposed;
}
// Two warpgroups multiply. One brings the operands, or two where warps write whole halos, unless the accumulators of
// one instruction leave no registers for so many threads.
constexpr int sm90_threads(Sm90Source source, Sm90Tile tile) {
  return source != Sm90Source::kTensor && tile.groups <= 24 ? 512 : 384;
}
// Warps that write halos, beside the one that brings the weights and the one that asks for boxes, if it does.
constexpr int sm90_writers(Sm90Source source, Sm90Tile tile) {
  return sm90_threads(source, tile) / 32 - (sm90_asks(source) ? 10 : 9);
}

// How results leave (kernels/hopper/result.cuh): stored from registers, or by tensor copies out of shared memory.
enum class Sm90Results { kStored, kCopied };
// Instances that have the copies, with channels adjacent, and with columns.
constexpr bool sm90_may_copy(int parts, Sm90Source source) { return parts == 1 && source == Sm90Source::kTensor; }
constexpr bool sm90_may_copy_columns(int element, Sm90Tile tile, Sm90Source source) {
  return element == 2 && tile.phases == 2 && sm90_asks(source);
}
// Columns adjacent: of one channel, neighbours that are staged as a row (64 bytes), and groups that make it.
inline constexpr int kSm90CopiedRun = 32, kSm90RunGroups = 2;
// Bytes of a pixel that are staged for them at once.
constexpr int sm90_copied_bytes(int element, int fold) {
  const int bytes = kSm90TileM / fold * element;
  return bytes < kSm90RowBytes ? bytes : kSm90RowBytes;
}

// Whether a sum also holds products that are not its own: by zeros (folded columns, merged groups), or of parts.
constexpr bool sm90_mixes(Sm90Tile tile, int parts, int merge) { return tile.fold > 1 || parts == 2 || merge > 1; }

inline constexpr int kSm90FlagBytes = 16;  // at the end of the workspace: whether any such sum is not finite

// An extent along each axis: pixels, or rows of shared memory from one pixel to the next.
struct Sm90Extent {
  int n = 1, h = 1, w = 1;
};

// Forward and grad_input (kernels/hopper/conv.cuh has the meaning). Pixels are counted in q (taps.h): a tile is the
// same for every phase.
struct IgemmSm90Plan {
  static constexpr const char* kFamily = "igemm_sm90";

  Sm90Tile tile{24, 1, 1};
  int parts = 1;  // 2: float32 as two TF32 parts, three products
  int merge = 1;  // neighbouring groups that count as one, with zeros for the weights between them
  int row_bytes = kSm90RowBytes;  // of one pixel's channels in shared memory: one chunk (sm90_halves_rows)
  bool channels_adjacent = false;  // in the result; decides which row of operand A computes which channel
  bool to_blocks = false;  // the result's pixels are blocks of another one's, where they are stored (ResultBlocks)
  bool exchanges = false;  // then, float32: lanes exchange pixels, so that short rows of blocks leave together
  Sm90Source source = Sm90Source::kWarps;
  bool repack = false;  // a kernel before makes the source channels_last in the workspace
  int slice = 1;  // so many images at a time; all, without repacking
  Sm90Inner inner = Sm90Inner::kHeight;
  Sm90Results results = Sm90Results::kStored;
  Sm90Extent pixels;  // of a tile: of both warpgroups, in turns of one
  Sm90Extent halo;  // pixels staged
  Sm90Extent row;  // rows from one pixel to the next
  Sm90Extent second;  // where the second warpgroup's pixels begin: at the same, if it takes other channels or items
  Sm90Extent tiles;
  int tile_step = 8;  // columns from one tile to the next
  bool whole_sectors = false;  // columns adjacent, groups of columns: tiles may overlap (kernels/hopper/result.cuh)
  int row_phases = 1;  // then: phases of the width in a staged row: the tile's, or all, for which it waits
  int row_lanes = 8;  // then: lanes that store a row together: 4 or 8
  bool even_rows = false;  // then: the result's rows begin and end at multiples of 16 bytes, if the first does
  int origin_h = 0, origin_w = 0;  // smallest source shift of any tap
  int group_rows = 1;  // rows from one group to the next: of all columns that share rows
  int line_groups = 1;  // groups until the next line
  // kWidth: lines follow each other pixel by pixel, so that groups may begin anywhere in them; results are copied, or
  // stored where columns are adjacent in them (sm90_stores_flat).
  bool flat = false;
  int planes_h = 1, planes_w = 1;  // that have halos of their own
  int halo_planes = 1;  // planes of the width that share a halo: all, where their columns are brought together
  int plane_rows = 0;  // rows from one of them to the next
  int phases_h = 1, phases_w = 1;
  int phase_groups = 1;  // phases_h * ceil(phases_w / tile.phases)
  Sm90Weights weights = Sm90Weights::kPacked;
  int item_groups = 1;  // phase groups of an item: one, those of a row that waits for all, or, with a kept halo, all
  bool keep_halo = false;  // an item works through its phase groups on one halo; else each brings its own
  int chunks = 1;  // of source channels
  // Most taps of a (phase, plane) along each axis; those of columns that share rows overlap.
  int slots_h = 1, slots_w = 1;
  int tile_m = kSm90TileM;  // result channels of a block: of one warpgroup (its rows / fold), or of both
  int m_tiles = 1, columns = 1;  // columns: items that share a tile of pixels
  int items = 0;  // of a slice
  int split = 1;  // blocks that share an item
  int blocks = 0;
  bool resident_weights = false;  // a block's weights stay in shared memory
  int halo_slots = 2, weight_slots = 4, raw_slots = 0;
  bool in_turns = false;  // the warpgroups take items of their own; one multiplies while the other stores
  int skew = 0;  // stages by which the second warpgroup starts later, so that results leave in turn
  int halo_bytes = 0;  // of one part of one slot
  int stage_bytes = 0;  // weights of one tap and chunk, all channels and parts
  int staged_bytes = 0;  // of a warp's results on their way out; for tensor copies a quarter of its warpgroup's
  int staged_line_bytes = 0;  // whole sectors: of a channel's line; tensor copies: from one line to the next
  int copied_lines = 0, copied_groups = 0;  // by tensor copies: of a warpgroup
  int raw_row_bytes = kSm90RawBytes;  // of one pixel's channels in a raw box
  int raw_width = 0, raw_bytes = 0, raw_slot_bytes = 0;
  int raw_octets = 0;  // 16-bit: octets of columns of a box's line that may hold a halo's
  int raw_boxes = 0;  // of a chunk: those that hold channels, if there is one chunk alone
  int table_at = 0;  // im2col
  int weights_at = 0, raw_at = 0, staging_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets
  int64_t column_bytes = 0;  // packed weights of one (group, tile of result channels)
  int64_t packed_bytes = 0;  // of all, in place too, for a driver may refuse that
  int64_t repacked_bytes = 0;  // of a slice's source, which follows
};

// Of a line's pixels, those of a warpgroup.
constexpr int sm90_copied_columns(const IgemmSm90Plan& plan) {
  return plan.second.w > 0 ? plan.second.w : plan.pixels.w;
}

// Whether rows of operand A are permuted (kernels/hopper/result.cuh: row_of).
constexpr bool sm90_permutes_rows(const IgemmSm90Plan& plan, int element) {
  return plan.channels_adjacent && element == 2 && plan.results == Sm90Results::kStored;
}

}  // namespace deconv
