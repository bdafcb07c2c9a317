// Tensor maps (TMA) of the Hopper family's operands and results.
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "families/col2im/plan.h"
#include "families/col2im/plan_whole_images.h"
#include "families/igemm_sm90/plan.h"
#include "families/igemm_sm90/plan_all_phases.h"
#include "families/igemm_sm90/plan_stride2.h"

namespace deconv {

// The driver's function, found at run time (the extension does not link to libcuda); null without it.
using TensorMapEncode = decltype(&cuTensorMapEncodeTiled);
TensorMapEncode tensor_map_encode();

// One map a plane of the source, which lies as `layout` says at `source`, groups `group_stride` elements apart. False
// if the driver has no tensor maps or refuses this tensor.
bool encode_source_maps(const Problem& problem, const HopperConvPlan& plan, const Tensor4& layout, int64_t group_stride,
                        const void* source, CUtensorMap* maps);

// The map of a contiguous source's pieces (hopper_planes_plan.h): pixels of neighbouring channels, one of each class,
// such channels, group, image. False as above.
bool encode_planes_map(const Problem& problem, int classes, const void* source, CUtensorMap* map);

// The map of the halos of strided planes (hopper_strided_plan.h): columns, channels, rows, image, group. False as
// above.
bool encode_strided_map(const Problem& problem, const HopperStridedPlan& plan, const void* source, CUtensorMap* map);

// The maps of folded products (hopper_folded_plan.h): pixels of an image, channels, group, image; and of weights rows,
// each a tap of a channel, source channels, group. False as above.
bool encode_folded_maps(const Problem& problem, const HopperFoldedPlan& plan, const void* source, const void* weight,
                        CUtensorMap* source_map, CUtensorMap* weight_map);

// The map of a source that the col2im family's kernel for Hopper takes (col2im_hopper_plan.h): columns and channels, or
// channels and columns, rows, image, group. False as above.
bool encode_col2im_map(const Problem& problem, const Col2imHopperPlan& plan, const void* source, CUtensorMap* map);

// The same for the Hopper family's kernel for few result channels (hopper_pictures_plan.h); lines have all pixels for
// columns. And of the result, if it leaves by copies (else null): columns of all channels that are adjacent,
// other channels, rows, image. False as above.
bool encode_pictures_maps(const Problem& problem, const HopperPicturesPlan& plan, const void* source,
                          const void* result, CUtensorMap* source_map, CUtensorMap* result_map);

// The maps of the result, so many images of it, one for each phase group, for plans that copy a tile's lines to it; at
// hopper_result_map. False as above.
bool encode_result_maps(const Problem& problem, const HopperConvPlan& plan, const void* result, int64_t images,
                        CUtensorMap* maps);

// The map of weights in place: rows of adjacent source channels, all taps of a result channel in one; result channels
// in the order of operand A's rows. False as above.
bool encode_weight_map(const Problem& problem, const HopperConvPlan& plan, const void* weight, CUtensorMap* map);

}  // namespace deconv
