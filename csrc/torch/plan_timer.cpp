#ifdef DECONV_WITH_CUDA
#include "torch/plan_timer.h"

namespace deconv {
namespace {

constexpr int kCachesFull = 2;  // scratch memory, in L2 caches
constexpr int kSweeps = 2;  // writes over it before a run: some 50 µs, in which the host launches

}  // namespace

PlanTimer::PlanTimer(const Tensor& like, DType dtype, cudaStream_t stream) : stream_(stream) {
  int cache = 0;
  if (cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, like.get_device_index()) == cudaSuccess) {
    scratch_bytes_ = static_cast<int64_t>(kCachesFull) * cache;
  }
  try {
    scratch_ = empty_strided({scratch_bytes_ / element_size(dtype)}, {1}, like);
  } catch (const std::runtime_error&) {  // no memory: the operands may stay in the cache
    scratch_bytes_ = 0;
  }
  if (cudaEventCreate(&begin_) != cudaSuccess || cudaEventCreate(&end_) != cudaSuccess) (void)cudaGetLastError();
}

PlanTimer::~PlanTimer() {
  if (begin_) (void)cudaEventDestroy(begin_);
  if (end_) (void)cudaEventDestroy(end_);
}

std::optional<double> PlanTimer::time(const std::function<cudaError_t()>& run) {
  if (!begin_ || !end_) return std::nullopt;
  cudaError_t error = cudaSuccess;
  const auto then = [&error](cudaError_t next) { error = error == cudaSuccess ? next : error; };
  for (int sweep = 0; sweep < kSweeps && scratch_bytes_ > 0; ++sweep) {
    then(cudaMemsetAsync(scratch_->data_ptr(), 0, scratch_bytes_, stream_));
  }
  then(cudaEventRecord(begin_, stream_));
  if (error == cudaSuccess) then(run());
  then(cudaEventRecord(end_, stream_));
  then(cudaEventSynchronize(end_));
  float ms = 0;
  if (error == cudaSuccess) then(cudaEventElapsedTime(&ms, begin_, end_));
  if (error == cudaSuccess) return ms;
  (void)cudaGetLastError();
  return std::nullopt;
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone;
}

}  // namespace deconv
#endif
