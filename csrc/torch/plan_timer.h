// Times single runs on a stream, for families/autotune.h.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "torch/torch_glue.h"

namespace deconv {

class PlanTimer {
 public:
  // Overwrites the L2 cache of `like`'s device before each timed run, so that no run finds its operands there. The host
  // gets ahead of the GPU meanwhile, so its launches do not count.
  PlanTimer(const Tensor& like, DType dtype, cudaStream_t stream);
  ~PlanTimer();
  PlanTimer(const PlanTimer&) = delete;
  PlanTimer& operator=(const PlanTimer&) = delete;

  // Milliseconds on the GPU; none if the run fails, which leaves no error behind.
  std::optional<double> time(const std::function<cudaError_t()>& run);

 private:
  cudaStream_t stream_;
  int64_t scratch_bytes_ = 0;
  std::optional<Tensor> scratch_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// True if the stream records a CUDA graph: nothing may wait for it then.
bool is_capturing(cudaStream_t stream);

}  // namespace deconv
