// The launchers of all families, by element type; instances.py instantiates them.
#pragma once

#include <cuda_runtime_api.h>

#include "core/operands.h"
#include "core/problem.h"
#include "families/col2im/plan.h"
#include "families/col2im/plan_sm90.h"
#include "families/col2im/plan_whole_images.h"
#include "families/depthwise/plan.h"
#include "families/igemm_sm80/plan.h"
#include "families/igemm_sm90/plan.h"
#include "families/igemm_sm90/plan_1tap.h"
#include "families/igemm_sm90/plan_all_phases.h"
#include "families/igemm_sm90/plan_stride2.h"
#include "families/simt/plan.h"
#include "families/small_channel/plan.h"
#include "families/wgrad_sm90/plan_rs_nchw.h"
#include "families/wgrad_sm90/plan_rs_nhwc.h"
#include "families/wgrad_sm90/plan_ss.h"

namespace deconv {

template <class T>
cudaError_t launch_gather_conv(const Problem& problem, const GatherConvPlan& plan, const Operands& operands,
                               cudaStream_t stream);
template <class T>
cudaError_t launch_gather_weight(const Problem& problem, const GatherWeightPlan& plan, const Operands& operands,
                                 cudaStream_t stream);

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseStripsPlan& plan, const Operands& operands,
                             cudaStream_t stream);
template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseBlocksPlan& plan, const Operands& operands,
                             cudaStream_t stream);
template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwisePacksPlan& plan, const Operands& operands,
                             cudaStream_t stream);
template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseRowsPlan& plan, const Operands& operands,
                             cudaStream_t stream);

template <class T, int kParts>  // 2: float32 split into two TF32 parts
cudaError_t launch_hopper_conv(const Problem& problem, const HopperConvPlan& plan, const Operands& operands,
                               cudaStream_t stream);

template <class T>
cudaError_t launch_hopper_planes(const Problem& problem, const HopperPlanesPlan& plan, const Operands& operands,
                                 cudaStream_t stream);

template <class T>
cudaError_t launch_hopper_folded(const Problem& problem, const HopperFoldedPlan& plan, const Operands& operands,
                                 cudaStream_t stream);

template <class T>
cudaError_t launch_hopper_pictures(const Problem& problem, const HopperPicturesPlan& plan, const Operands& operands,
                                   cudaStream_t stream);

template <class T>
cudaError_t launch_hopper_strided(const Problem& problem, const HopperStridedPlan& plan, const Operands& operands,
                                  cudaStream_t stream);

template <class T>
cudaError_t launch_hopper_weight_tensor(const Problem& problem, const HopperWeightTensorPlan& plan,
                                        const Operands& operands, cudaStream_t stream);
template <class T, int kParts>
cudaError_t launch_hopper_weight_lines(const Problem& problem, const HopperWeightLinesPlan& plan,
                                       const Operands& operands, cudaStream_t stream);
cudaError_t launch_hopper_weight_turned(const Problem& problem, const HopperWeightTurnedPlan& plan,
                                        const Operands& operands, cudaStream_t stream);
template <class T, bool kSplit>  // float32 split into two TF32 parts
cudaError_t launch_mma_conv(const Problem& problem, const MmaConvPlan& plan, const Operands& operands,
                            cudaStream_t stream);
template <class T, bool kSplit>
cudaError_t launch_mma_weight(const Problem& problem, const MmaWeightPlan& plan, const Operands& operands,
                              cudaStream_t stream);
template <class T, int kParts>  // 2: float32 split into two TF32 parts
cudaError_t launch_narrow_conv(const Problem& problem, const NarrowConvPlan& plan, const Operands& operands,
                               cudaStream_t stream);
template <class T, int kParts>
cudaError_t launch_col2im_conv(const Problem& problem, const Col2imConvPlan& plan, const Operands& operands,
                               cudaStream_t stream);
template <class T>
cudaError_t launch_col2im_hopper(const Problem& problem, const Col2imHopperPlan& plan, const Operands& operands,
                                 cudaStream_t stream);

}  // namespace deconv
