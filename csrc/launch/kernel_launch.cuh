// What every launcher does: raise the shared-memory limit where needed, launch, report.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace deconv {

inline bool is_aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

template <class Params>
cudaError_t launch_kernel(void (*kernel)(Params), int64_t blocks, int threads, int shared_bytes, cudaStream_t stream,
                          const Params& params) {
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (shared_bytes > 48 << 10) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, stream>>>(params);
  return cudaPeekAtLastError();
}

}  // namespace deconv
