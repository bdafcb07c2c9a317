// The kernels that pack weights for igemm_sm90, compiled apart from the kernels that read them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "lowerings/pack_weight_launch.cuh"

namespace deconv {

template <class T, int kParts>
cudaError_t launch_packing(const Packing<T>& packing, cudaStream_t stream) {
  return launch_kernel(sm90::pack_weight_kernel<T, kParts>, packing.blocks, sm90::kPackThreads, 0, stream,
                       packing.params);
}

template <class T, int kParts>
cudaError_t launch_packing(const Packing<T>& packing, const Repack<T>& source, cudaStream_t stream) {
  const sm90::PrepareParams<T> p{packing.params, static_cast<unsigned>(packing.blocks), source.tensor};
  static_assert(sizeof(p) <= 4096, "what every driver takes as parameters");
  return launch_kernel(sm90::prepare_kernel<T, kParts>, packing.blocks + source.blocks, sm90::kPackThreads, 0, stream,
                       p);
}

#define DECONV_PACKING(T, PARTS)                                                  \
  template cudaError_t launch_packing<T, PARTS>(const Packing<T>&, cudaStream_t); \
  template cudaError_t launch_packing<T, PARTS>(const Packing<T>&, const Repack<T>&, cudaStream_t);
DECONV_PACKING(__half, 1)
DECONV_PACKING(__nv_bfloat16, 1)
DECONV_PACKING(float, 1)
DECONV_PACKING(float, 2)
#undef DECONV_PACKING

}  // namespace deconv
