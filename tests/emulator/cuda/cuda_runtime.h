// What csrc/ takes from CUDA's headers, for the emulator: qualifiers, vector types, intrinsics, launches. The other
// headers of this folder lead here.
#pragma once

#include <math.h>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../machine.h"

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// ---- types

struct int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct dim3 {
  unsigned x, y, z;
  explicit constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// 16-bit floats: their bits; conversions round to the nearest, ties to even.
struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float __half2float(__half h) { return emulator::float_of_half(h.bits); }
inline __half __float2half_rn(float f) { return {emulator::half_of_float(f)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
inline float __bfloat162float(__nv_bfloat16 b) { return emulator::float_of_bfloat(b.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return {emulator::bfloat_of_float(f)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 b) { return {__bfloat162float(b.x), __bfloat162float(b.y)}; }

// ---- intrinsics

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
inline unsigned __float_as_uint(float f) { return emulator::bits_of(f); }
inline int __float_as_int(float f) { return static_cast<int>(emulator::bits_of(f)); }
inline float __uint_as_float(unsigned u) { return emulator::float_of(u); }
inline float __int_as_float(int i) { return emulator::float_of(static_cast<unsigned>(i)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (bits & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned selector = selectors >> 4 * i & 15, byte = static_cast<unsigned>(bytes >> 8 * (selector & 7)) & 255;
    result |= (selector & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return result;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
template <class T>
T __ldg(const T* pointer) {
  return *pointer;
}
template <class T>
T __ldcs(const T* pointer) {
  return *pointer;
}
inline size_t __cvta_generic_to_shared(const void* pointer) { return emulator::shared_address(pointer); }
inline size_t __cvta_generic_to_global(const void* pointer) { return reinterpret_cast<size_t>(pointer); }

inline void __syncthreads() { emulator::named_barrier(0, emulator::self().block->threads.x, true); }
inline void __syncwarp(unsigned = ~0u) { emulator::exchange("__syncwarp", 0, emulator::Shuffle::kNone, 0); }
template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  return emulator::shuffle(value, emulator::Shuffle::kIndex, lane, width);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int lanes, int width = 32) {
  return emulator::shuffle(value, emulator::Shuffle::kXor, lanes, width);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  return static_cast<unsigned>(emulator::exchange("ballot", predicate != 0, emulator::Shuffle::kBallot, 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == ~0u; }

// ---- the host's side

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719
};
using cudaStream_t = void*;
struct cudaFuncAttributes {
  int ptxVersion;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaLaunchAttributeID {
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeClusterDimension,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
inline constexpr unsigned long long cudaEnableDefault = 0;

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return attributes->ptxVersion = 90, cudaSuccess;
}
template <class Params>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params), const Params& params) {
  emulator::Launch launch{config->gridDim.x, config->blockDim.x, 1, config->dynamicSmemBytes, false};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) launch.cluster = attribute.val.clusterDim.x;
    launch.early |= attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization;
  }
  return emulator::launch(launch, [kernel, params] { kernel(params); }) ? cudaSuccess : cudaErrorLaunchFailure;
}

// ---- the driver's tensor maps

using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
using CUtensorMap = emulator::TensorMap;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
};
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_32B = 32,
  CU_TENSOR_MAP_SWIZZLE_64B = 64,
  CU_TENSOR_MAP_SWIZZLE_128B = 128
};
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const bool is_short = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const emulator::TensorMapRequest request{address,
                                           rank,
                                           is_short ? 2u : 4u,
                                           type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
                                           sizes,
                                           strides,
                                           box,
                                           steps,
                                           static_cast<unsigned>(swizzle)};
  return emulator::encode_tensor_map(*map, request) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
