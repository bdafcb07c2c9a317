#include "kernel_launch.cuh"

#include <map>
#include <mutex>
#include <utility>

namespace deconv {

cudaError_t allow_shared_bytes(const void* kernel, int bytes) {
  constexpr int kAlwaysAllowed = 48 << 10;
  if (bytes <= kAlwaysAllowed) return cudaSuccess;
  static std::mutex mutex;  // so that no thread lowers what another one raised
  static std::map<std::pair<const void*, int>, int> allowed;  // by kernel and device
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  int& known = allowed[{kernel, device}];
  if (bytes <= known) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) known = bytes;
  return error;
}

}  // namespace deconv
