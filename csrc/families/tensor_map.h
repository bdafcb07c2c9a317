// Tensor maps (TMA) for igemm_sm90 and col2im. Every encode_* is false if the driver has no tensor maps or refuses this
// tensor.
#pragma once

#include <cuda.h>

#include "core/problem.h"
#include "families/col2im/plan.h"
#include "families/col2im/plan_whole_images.h"
#include "families/igemm_sm90/plan.h"
#include "families/igemm_sm90/plan_all_phases.h"
#include "families/igemm_sm90/plan_stride2.h"

namespace deconv {

// The driver's function, found at run time because the extension does not link to libcuda; null without it.
using TensorMapEncode = decltype(&cuTensorMapEncodeTiled);
TensorMapEncode tensor_map_encode();

// One map for each source_phase of the source, which has the layout `layout` at `source`; groups lie `group_stride`
// elements apart.
bool encode_source_maps(const Problem& problem, const IgemmSm90Plan& plan, const Tensor4& layout, int64_t group_stride,
                        const void* source, CUtensorMap* maps);

// Pieces of an NCHW source (plan_1tap.h): pixels; channels of one class; group; image.
bool encode_one_tap_map(const Problem& problem, int classes, const void* source, CUtensorMap* map);

// Halos of conv_stride2.cuh (plan_stride2.h): columns, channels, rows, image, group.
bool encode_stride2_map(const Problem& problem, const Stride2Plan& plan, const void* source, CUtensorMap* map);

// Operands of col2im's whole images (plan_whole_images.h). Source: pixels of an image, channels, group, image. Weights:
// rows (a tap of a channel each), source channels, group.
bool encode_whole_images_maps(const Problem& problem, const WholeImagesPlan& plan, const void* source,
                              const void* weight, CUtensorMap* source_map, CUtensorMap* weight_map);

// Source of col2im (plan_sm90.h): columns and channels, or channels and columns, then rows, image, group.
bool encode_col2im_map(const Problem& problem, const Col2imSm90Plan& plan, const void* source, CUtensorMap* map);

// The same for conv_all_phases.cuh (plan_all_phases.h); lines have all pixels as columns. The result's map, unless
// `result` is null: columns of all channels that are adjacent, other channels, rows, image.
bool encode_all_phases_maps(const Problem& problem, const AllPhasesPlan& plan, const void* source, const void* result,
                            CUtensorMap* source_map, CUtensorMap* result_map);

// Maps of `images` images of the result, one for each phase group at sm90_result_map, for plans that store by TMA.
bool encode_result_maps(const Problem& problem, const IgemmSm90Plan& plan, const void* result, int64_t images,
                        CUtensorMap* maps);

// Weights in place. K-major: rows of adjacent source channels, all taps of a result channel in one; result channels in
// the order of operand A's rows. M-major: rows of adjacent result channels.
bool encode_weight_map(const Problem& problem, const IgemmSm90Plan& plan, const void* weight, CUtensorMap* map);

}  // namespace deconv
