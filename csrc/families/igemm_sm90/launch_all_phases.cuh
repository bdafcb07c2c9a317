// Launcher of conv_all_phases.cuh.
#pragma once

#include "families/igemm_sm90/conv_all_phases.cuh"
#include "families/igemm_sm90/planner.h"
#include "families/tensor_map.h"
#include "launch/correlation.cuh"
#include "launch/kernel_launch.cuh"

// instances: launch_all_phases<T>(AllPhasesPlan): float16, bfloat16, tf32
namespace deconv {

template <class T>
sm90::AllPhasesParams<T> all_phases_params(const Problem& problem, const AllPhasesPlan& plan,
                                           const Operands& operands) {
  sm90::AllPhasesParams<T> p{};
  set_images<T>(p.layer, problem, operands);
  set_weight<T>(p.layer, problem, operands);
  p.layer.groups = static_cast<int>(problem.groups);
  p.tiles_w = divide_by(plan.tiles_w);
  p.tiles_h = divide_by(plan.tiles_h);
  const int kernel = p.layer.axis[0].kernel * p.layer.axis[1].kernel;
  p.taps = divide_by(kernel * p.layer.result_channels);
  p.kernel = divide_by(kernel);
  p.kernel_w = divide_by(p.layer.axis[1].kernel);
  p.pairs = all_phases_pairs(problem) && is_aligned(p.layer.result, 2 * sizeof(T));
  p.copied = plan.copied && is_aligned(p.layer.result, 16);
  p.plan = plan;
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  return p;
}

template <class T, int kN, AllPhasesSource kSource>
cudaError_t launch_all_phases_instance(const sm90::AllPhasesParams<T>& p, cudaStream_t stream) {
  const auto launch_with = [&](auto* kernel) {
    return launch_kernel(kernel, p.plan.blocks, kAllPhasesThreads, p.plan.shared_bytes, stream, p);
  };
  static_assert(std::size(kAllPhasesShifts) == 2);
  return p.plan.shifts == 2 ? launch_with(sm90::all_phases_kernel<T, kN, 2, kSource>)
                            : launch_with(sm90::all_phases_kernel<T, kN, 3, kSource>);
}

template <class T, AllPhasesSource kSource>
cudaError_t launch_all_phases_instance(const sm90::AllPhasesParams<T>& p, cudaStream_t stream) {
  switch (p.plan.operand_rows) {
    case 16: return launch_all_phases_instance<T, 16, kSource>(p, stream);
    case 32: return launch_all_phases_instance<T, 32, kSource>(p, stream);
    default: return launch_all_phases_instance<T, 64, kSource>(p, stream);
  }
}

template <class T>
cudaError_t launch_all_phases(const Problem& problem, const AllPhasesPlan& plan, const Operands& operands,
                              cudaStream_t stream) {
  sm90::AllPhasesParams<T> p = all_phases_params<T>(problem, plan, operands);
  if (!encode_all_phases_maps(problem, plan, p.layer.source, p.copied ? p.layer.result : nullptr, &p.source_map,
                              &p.result_map)) {
    return cudaErrorInvalidValue;
  }
  switch (plan.source) {
    case AllPhasesSource::kPixels: return launch_all_phases_instance<T, AllPhasesSource::kPixels>(p, stream);
    case AllPhasesSource::kPlanes: return launch_all_phases_instance<T, AllPhasesSource::kPlanes>(p, stream);
    default: return launch_all_phases_instance<T, AllPhasesSource::kLines>(p, stream);
  }
}

}  // namespace deconv
