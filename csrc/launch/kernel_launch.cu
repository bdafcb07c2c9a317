#include "launch/kernel_launch.cuh"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "launch/capability.h"

namespace deconv {
namespace {

__global__ void probe() {}

}  // namespace

int kernels_capability() {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe));
  (void)cudaGetLastError();  // a missing image is an answer, not an error to keep
  return error == cudaSuccess ? attributes.ptxVersion : 0;
}

cudaError_t allow_shared_bytes(const void* kernel, int bytes) {
  constexpr int kAlwaysAllowed = 32 << 10;  // below the default of 48 KiB, which static shared memory shares
  if (bytes <= kAlwaysAllowed) return cudaSuccess;
  static std::mutex mutex;  // keeps a thread from lowering what another raised
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

bool can_start_early() {
  constexpr int kMostDevices = 64;
  static std::atomic<int> capability_of[kMostDevices];  // 0: not asked yet
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMostDevices) return false;
  int capability = capability_of[device].load(std::memory_order_relaxed);
  if (capability == 0) {
    capability = kernels_capability();
    capability_of[device].store(capability, std::memory_order_relaxed);
  }
  return capability >= 90;
}

}  // namespace deconv
