// Shared by all launchers: raises the shared-memory limit if needed, launches a kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace deconv {

inline bool is_aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// Raises the limit of dynamic shared memory if needed. Asks the driver only for more than before.
cudaError_t allow_shared_bytes(const void* kernel, int bytes);
// True if the code for the current device supports kEarly.
bool can_start_early();

// kEarly: programmatic dependent launch. The kernel starts once all blocks of the kernel before have called
// start_dependents or ended; it calls await_predecessors where it needs their results. The same as kAfter in code for
// less than compute capability 9.0.
enum class Start { kAfter, kEarly };

// cluster: blocks that run at once and see each other's shared memory (compute capability 9.0).
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
