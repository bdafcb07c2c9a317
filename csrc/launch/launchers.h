// The launchers of all families, by element type; launch/<family>_*.cu instantiate them.
#pragma once

#include <cuda_runtime_api.h>

#include "../col2im_hopper_plan.h"
#include "../col2im_plan.h"
#include "../depthwise_plan.h"
#include "../gather_plan.h"
#include "../hopper_folded_plan.h"
#include "../hopper_pictures_plan.h"
#include "../hopper_plan.h"
#include "../hopper_planes_plan.h"
#include "../hopper_strided_plan.h"
#include "../hopper_weight_lines_plan.h"
#include "../hopper_weight_tensor_plan.h"
#include "../hopper_weight_turned_plan.h"
#include "../mma_plan.h"
#include "../narrow_plan.h"
#include "../operands.h"
#include "../problem.h"

namespace deconv {

template <class T>
cudaError_t launch_gather_conv(const Problem& problem, const GatherConvPlan& plan, const Operands& operands,
                               cudaStream_t stream);
template <class T>
cudaError_t launch_gather_weight(const Problem& problem, const GatherWeightPlan& plan, const Operands& operands,
                                 cudaStream_t stream);

template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwisePlanesPlan& plan, const Operands& operands,
                             cudaStream_t stream);
template <class T>
cudaError_t launch_depthwise(const Problem& problem, const DepthwiseChannelsPlan& plan, const Operands& operands,
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
