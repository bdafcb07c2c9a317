// What every launcher does: raise the shared-memory limit where needed, launch, report.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace deconv {

inline bool is_aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Before a launch with so much dynamic shared memory. Asks the driver only for more than was asked for before.
cudaError_t allow_shared_bytes(const void* kernel, int bytes);
// Whether the code for the current device knows kEarly.
bool can_start_early();

// kEarly: beside the last blocks of the kernel before, as soon as all of those have called start_dependents
// or ended; the kernel calls await_predecessors where it needs their results. As kAfter in code for less than compute
// capability 9.0.
enum class Start { kAfter, kEarly };

// cluster: so many blocks run at once and see each other's shared memory (compute capability 9.0).
template <class Params>
cudaError_t launch_kernel(void (*kernel)(Params), int64_t blocks, int threads, int shared_bytes, cudaStream_t stream,
                          const Params& params, Start start = Start::kAfter, int cluster = 1) {
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const cudaError_t allowed = allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes);
  if (allowed != cudaSuccess) return allowed;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (start == Start::kEarly && can_start_early()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace deconv
