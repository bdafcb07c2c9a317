// Plan of conv.cuh, and what its instances can do: plain data, host and device.
#pragma once

#include <cstdint>

namespace deconv {

inline constexpr int kSm90RowBytes = 128;  // bytes of a pixel's k_block in shared memory, at most
inline constexpr int kSm90TileM = 64;  // rows of operand A of a warpgroup: result channels, unless folded
inline constexpr int kSm90PermutedChannels = 16;  // period of the order of rows (row_order.cuh)
// Bytes of a pixel's channels in a raw box. Wide boxes are for float32, where work tiles wait for the writer warps.
inline constexpr int kSm90RawBytes = 32, kSm90WideRawBytes = 64;
// Most places of a raw box. float32: a pixel each. 16 bits: 32 lanes for two octets of columns.
constexpr int sm90_places(int element) { return element == 2 ? 1536 : 768; }
// Most tensor maps of a launch, without that of the weights. Source phases count from the first on; results of phase
// groups that leave by TMA from the last on.
inline constexpr int kSm90MaxPlanes = 16;
constexpr int sm90_result_map(int phase_group) { return kSm90MaxPlanes - 1 - phase_group; }
inline constexpr int kSm90MaxKernel = 128;  // taps along one axis
inline constexpr int kSm90MaxStride = 64;

// 32-bit words of a line of results that are staged at once (store_columns.cuh): all of few, otherwise an equal share.
// Lines lie an odd number of words apart: no bank conflicts.
constexpr int sm90_staged_words(int words) { return words <= 24 ? words : words % 16 == 0 ? 16 : words / 2; }

// Instances of the kernel. groups: of 8 pixels, of a warpgroup; wgmma's N is 8 times that. phases: of the width,
// accumulated side by side. fold: adjacent columns that share the rows of operand A; with 2, half of the rows compute
// the next column, for layers with few channels.
struct Sm90Tile {
  int groups, phases, fold;
};
inline constexpr Sm90Tile kSm90Tiles[] = {{4, 1, 1},  {8, 1, 1},  {16, 1, 1}, {18, 1, 1}, {20, 1, 1},
                                          {24, 1, 1}, {26, 1, 1}, {28, 1, 1}, {32, 1, 1}, {8, 2, 1},
                                          {12, 2, 1}, {16, 2, 1}, {16, 1, 2}, {24, 1, 2}, {32, 1, 2}};
// tf32x3 keeps two accumulators.
inline constexpr Sm90Tile kSm90TilesSplit[] = {{8, 1, 1}, {16, 1, 1}, {8, 2, 1}, {8, 1, 2}, {16, 1, 2}};

// Instances with split: the blocks of a cluster share a work tile, each with a part of the source's channels and source
// phases. For layers with too few work tiles to fill the GPU.
constexpr bool sm90_splits(Sm90Tile tile) { return tile.groups <= 8 && tile.phases == 1 && tile.fold == 1; }
inline constexpr int kSm90MostSplit = 8;  // blocks of a cluster; every GPU accepts 8
// Bytes that a block of a cluster exchanges: its accumulators.
constexpr int sm90_sums_bytes(Sm90Tile tile) { return tile.groups * tile.phases * 4 * 4 * 256; }

// Instances with Sm90Source::kIm2col.
constexpr bool sm90_has_im2col(Sm90Tile tile) {
  return tile.phases == 1 && tile.fold == 1 && (tile.groups == 8 || tile.groups == 16 || tile.groups == 24);
}
inline constexpr int kSm90MostIm2col = 1024;  // taps x channels
inline constexpr int kSm90Im2colAhead = 32;  // places of a pixel's row that a thread loads at once
inline constexpr int kSm90Im2colEntryBytes = 8;  // of a place in the table of load_source_im2col.cuh

// Instances with rows of 64 bytes: layers with few result channels often have few source channels.
constexpr bool sm90_halves_rows(int element, Sm90Tile tile) { return element == 2 && tile.fold > 1; }

// Instances that may store whole sectors (store_rows.cuh). With one phase it costs more than it saves.
constexpr bool sm90_writes_whole_sectors(Sm90Tile tile) { return tile.phases > 1; }
// Instances with enough registers to hold rows of all phases until the last phase group.
constexpr bool sm90_joins_phases(Sm90Tile tile) { return tile.phases > 1 && tile.groups <= 12; }
// Instances that store flat lines from registers. With two phases, groups of rows fill a tile as well.
constexpr bool sm90_stores_flat(Sm90Tile tile) { return tile.phases == 1 && tile.fold == 1; }
// Block-store variants with enough registers for a lane exchange (store_blocks.cuh).
constexpr bool sm90_may_exchange(int element, Sm90Tile tile) { return element == 4 && tile.groups <= 24; }
inline constexpr int kSm90LeastFlat = 8;  // from one flat line to the next, in pixels
// Channels of a warp whose rows are stored at once (store_rows.cuh).
constexpr int sm90_row_channels(int element) { return 16 / element; }

// Which 8 pixels form a group: adjacent pixels of a halo, rows of operand B.
//   kHeight, kBatch   8 image rows, or 8 images, of one column; the next group is the next column that shares no rows
//   kWidth            8 columns; the next group is the next 8 columns
// Groups continue across a line's halo, where they compute nothing useful, into the next line: an image (kHeight) or an
// image row (kBatch, kWidth). Flat lines (kWidth) have a halo of any width, and a group may lie in two of them.
enum class Sm90Inner { kHeight, kBatch, kWidth };

// How the source is produced: by TMA; by TMA and transposed by warps; by warps; as im2col rows (load_source*.cuh).
enum class Sm90Source { kTensor, kTransposed, kWarps, kIm2col };

// Where the weights come from: packed (lowerings/pack_weight.cuh), or in place by TMA. kMajorK: source channels are
// adjacent. kMajorM: result channels are.
enum class Sm90Weights { kPacked, kMajorK, kMajorM };
// Instances with M-major weights.
constexpr bool sm90_has_major_m(int element, Sm90Tile tile, Sm90Source source) {
  return element == 2 && tile.fold == 1 && source == Sm90Source::kTensor;
}

// Instances that also exist as block stores (store_blocks.cuh). The other sizes gain too little for their build time.
constexpr bool sm90_stores_blocks(int parts, Sm90Tile tile, Sm90Source source) {
  return parts == 1 && tile.phases == 1 && tile.fold == 1 && source != Sm90Source::kIm2col &&
         (tile.groups == 8 || tile.groups == 20 || tile.groups == 26 || tile.groups == 32);
}

// True if warps write halos or their low parts. TMA alone suffices where nothing changes.
constexpr bool sm90_writes(Sm90Source source, int parts) { return source != Sm90Source::kTensor || parts == 2; }
// True if the source is loaded by TMA.
constexpr bool sm90_asks(Sm90Source source) {
  return source == Sm90Source::kTensor || source == Sm90Source::kTransposed;
}
// Two warpgroups multiply. One more produces, or two if warps write whole halos, unless an instruction's accumulators
// leave too few registers for 512 threads.
constexpr int sm90_threads(Sm90Source source, Sm90Tile tile) {
  return source != Sm90Source::kTensor && tile.groups <= 24 ? 512 : 384;
}
// Writer warps: the producing warps, without the one for weights and the one that issues TMA.
constexpr int sm90_writers(Sm90Source source, Sm90Tile tile) {
  return sm90_threads(source, tile) / 32 - (sm90_asks(source) ? 10 : 9);
}

// How results leave: stored by the lanes, or staged and stored by TMA (store_tma.cuh).
enum class Sm90Results { kStored, kCopied };
// Instances with TMA stores: channels adjacent, columns adjacent.
constexpr bool sm90_may_copy(int parts, Sm90Source source) { return parts == 1 && source == Sm90Source::kTensor; }
constexpr bool sm90_may_copy_columns(int element, Sm90Tile tile, Sm90Source source) {
  return element == 2 && tile.phases == 2 && sm90_asks(source);
}
// Columns adjacent: columns of a channel in a staged row of 64 bytes, and the groups that fill it.
inline constexpr int kSm90CopiedRun = 32, kSm90RunGroups = 2;
// Channels adjacent: bytes of a pixel that are staged at once.
constexpr int sm90_copied_bytes(int element, int fold) {
  const int bytes = kSm90TileM / fold * element;
  return bytes < kSm90RowBytes ? bytes : kSm90RowBytes;
}

// True if a sum holds products that are not its own: zeros of folded columns and merged groups, or parts of tf32x3. Inf
// then becomes NaN (lowerings/nonfinite_repair.cuh).
constexpr bool sm90_mixes(Sm90Tile tile, int parts, int merge) { return tile.fold > 1 || parts == 2 || merge > 1; }

inline constexpr int kSm90FlagBytes = 16;  // at the end of the workspace: set if a sum is not finite

// Pixels along each axis, or rows of shared memory from one pixel to the next.
struct Sm90Extent {
  int n = 1, h = 1, w = 1;
};

// Forward and grad_input (conv.cuh). Pixels are counted in q (core/taps.h): all phases have the same tiles.
struct IgemmSm90Plan {
  static constexpr const char* kFamily = "igemm_sm90";

  Sm90Tile tile{24, 1, 1};
  int parts = 1;  // 2: tf32x3
  int merge = 1;  // adjacent groups computed as one, with zero weights between them
  int row_bytes = kSm90RowBytes;  // a pixel's k_block in shared memory (sm90_halves_rows)
  bool channels_adjacent = false;  // in the result; decides the order of rows of operand A
  bool to_blocks = false;  // the result's pixels are blocks of another tensor (Problem::blocks)
  bool exchanges = false;  // to_blocks, float32: lanes exchange pixels to store short rows of blocks together
  Sm90Source source = Sm90Source::kWarps;
  bool repack = false;  // a kernel before rewrites the source channels_last in the workspace
  int slice = 1;  // images at a time; all without repacking
  Sm90Inner inner = Sm90Inner::kHeight;
  Sm90Results results = Sm90Results::kStored;
  Sm90Extent pixels;  // of a work tile: both warpgroups', in ping-pong one's
  Sm90Extent halo;  // pixels staged
  Sm90Extent row;  // rows of shared memory from one pixel to the next
  Sm90Extent second;  // first pixel of the second warpgroup; 0 if it has other channels or work tiles
  Sm90Extent tiles;
  int tile_step = 8;  // columns from one tile to the next
  bool whole_sectors = false;  // columns adjacent, groups of columns: tiles may overlap (store_rows.cuh)
  int row_phases = 1;  // whole_sectors: phases of a staged row: the tile's, or all of the width
  int row_lanes = 8;  // whole_sectors: lanes that store a row together, 4 or 8
  bool even_rows = false;  // whole_sectors: rows of an aligned result begin and end at multiples of 16 bytes
  int origin_h = 0, origin_w = 0;  // smallest source shift of any tap
  int group_rows = 1;  // rows of shared memory from one group to the next
  int line_groups = 1;  // groups from one line to the next
  // kWidth: lines are adjacent pixel by pixel, so a group may begin anywhere. Results leave by TMA, or from registers
  // if columns are adjacent (sm90_stores_flat).
  bool flat = false;
  int planes_h = 1, planes_w = 1;  // source phases with halos of their own
  int halo_planes = 1;  // source phases of the width that share a halo: 1, or all
  int plane_rows = 0;  // rows of shared memory from one of them to the next
  int phases_h = 1, phases_w = 1;
  int phase_groups = 1;  // phases_h * ceil(phases_w / tile.phases)
  Sm90Weights weights = Sm90Weights::kPacked;
  int item_groups = 1;  // phase groups of a work tile: 1; all of a row that waits for them; all with a reused halo
  bool keep_halo = false;  // reused halo: one for all phase groups of a work tile
  int chunks = 1;  // k_blocks
  // Most taps of a (phase, source phase) along each axis; with folded columns, of any of them.
  int slots_h = 1, slots_w = 1;
  int tile_m = kSm90TileM;  // result channels of a work tile: of one warpgroup or of both
  int m_tiles = 1, columns = 1;  // columns: work tiles that share pixels
  int items = 0;  // work tiles of a slice
  int split = 1;  // blocks that share a work tile
  int blocks = 0;
  bool resident_weights = false;  // weight-stationary
  int halo_slots = 2, weight_slots = 4, raw_slots = 0;
  bool in_turns = false;  // ping-pong
  int skew = 0;  // stages by which the second warpgroup starts later, so that stores alternate
  int halo_bytes = 0;  // of one part of one slot
  int stage_bytes = 0;  // weights of one tap and k_block, all channels and parts
  int staged_bytes = 0;  // of a warp's staged results; for TMA a quarter of its warpgroup's
  int staged_line_bytes = 0;  // from one staged line to the next
  int copied_lines = 0, copied_groups = 0;  // stored by TMA: lines and groups of a warpgroup
  int raw_row_bytes = kSm90RawBytes;  // of a pixel's channels in a raw box
  int raw_width = 0, raw_bytes = 0, raw_slot_bytes = 0;
  int raw_octets = 0;  // 16 bits: octets of columns of a raw box's line
  int raw_boxes = 0;  // raw boxes of a k_block; with one k_block, those that hold channels
  int table_at = 0;  // im2col
  int weights_at = 0, raw_at = 0, staging_at = 0, barriers_at = 0, shared_bytes = 0;  // byte offsets
  int64_t column_bytes = 0;  // packed weights of one (group, tile of result channels)
  int64_t packed_bytes = 0;  // packed weights of all; reserved even if TMA reads them in place
  int64_t repacked_bytes = 0;  // of a slice's source, behind the packed weights
};

// Columns of a line that a warpgroup stores by TMA.
constexpr int sm90_copied_columns(const IgemmSm90Plan& plan) {
  return plan.second.w > 0 ? plan.second.w : plan.pixels.w;
}

// True if rows of operand A are permuted (row_order.cuh).
constexpr bool sm90_permutes_rows(const IgemmSm90Plan& plan, int element) {
  return plan.channels_adjacent && element == 2 && plan.results == Sm90Results::kStored;
}

}  // namespace deconv
