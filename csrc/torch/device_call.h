// Runs calls on this project's kernels: which calls they serve, a plan on the caller's device and stream.
#pragma once

#include "planner/plan.h"
#include "torch/torch_glue.h"

namespace deconv {

// Pointers to the operands of one call, null where a direction takes none.
struct Inputs {
  const void* x;
  const void* w;
  const void* y;
  const void* bias;
};

bool has_kernels(int64_t device);  // true if this build holds code for CUDA device `device`
bool kernels_serve(DType dtype, const Tensor& operand);  // warns of the first CUDA call that they do not serve
Tensor run(Problem problem, const Tensor& operand, const Inputs& inputs);
// The same as kernels_serve, without a warning; meta tensors count as GPU 0's.
bool plans_for(DType dtype, const Tensor& operand);
std::string explain_on(Problem problem, const Tensor& operand, const Tensor& other, bool json);
// Sets how many candidates autotuning times, 0: none; returns the previous number.
int64_t set_autotune_candidates(int64_t candidates);
std::string build_info();

}  // namespace deconv
