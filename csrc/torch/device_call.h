// The way to this project's kernels: whether they serve a call, and running a plan on the caller's device and stream.
#pragma once

#include "planner/plan.h"
#include "torch/torch_glue.h"

namespace deconv {

// Pointers to the operands of one call; those that a direction does not take are null.
struct Inputs {
  const void* x;
  const void* w;
  const void* y;
  const void* bias;
};

bool has_kernels(int64_t device);  // this build holds code that CUDA device `device` can run
bool kernels_serve(DType dtype, const Tensor& operand);  // warns of the first CUDA call that they do not serve
Tensor run(Problem problem, const Tensor& operand, const Inputs& inputs);
// As kernels_serve, without a warning; meta tensors stand for those of GPU 0.
bool plans_for(DType dtype, const Tensor& operand);
std::string explain_on(Problem problem, const Tensor& operand, const Tensor& other, bool json);
// How many candidates are timed to choose a plan, 0: none; returns the number before.
int64_t set_autotune_candidates(int64_t candidates);
std::string build_info();

}  // namespace deconv
