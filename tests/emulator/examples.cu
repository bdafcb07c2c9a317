// Small kernels, right and wrong on purpose: what the emulator must let pass and what it must find.
#include "examples.h"

#include "device/mma_sm80.cuh"
#include "device/tma_sm90.cuh"
#include "device/wgmma_sm90.cuh"
#include "launch/kernel_launch.cuh"

namespace deconv {
namespace {

struct ExampleParams {
  Mistake mistake;
  const uint32_t* source;
  uint32_t* copy;
  float* result;
};

constexpr int kRowBytes = 128, kTileBytes = 64 * kRowBytes, kBarrierAt = 2 * kTileBytes, kAddedAt = kBarrierAt + 32;
constexpr int kSharedBytes = kAddedAt + kRowBytes;

__global__ void __launch_bounds__(32) copy_kernel(const __grid_constant__ ExampleParams p) {
  __shared__ uint32_t words[32];
  start_dependents();
  const uint32_t own = shared_address(words) + threadIdx.x * 4;
  for (int row = 0; row < 96; ++row) {
    if (p.mistake != Mistake::kUnwritten || row > 0) words[threadIdx.x] = p.source[row * 32 + threadIdx.x];
    p.copy[row * 32 + threadIdx.x] = load_shared(p.mistake == Mistake::kBehindArray ? own + 4 : own);
  }
}

// result[64 x 32] = a[64 x 32] * b[32 x 32]^T + added[32] by one warpgroup. A fifth warp brings the operands, rows of
// 32 TF32 words (one by stores, one by copies), and what is added (by a bulk copy); and, once the warpgroup says so,
// zeros.
__global__ void __launch_bounds__(160) example_kernel(const __grid_constant__ ExampleParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t base = shared_address(shared), full = base + kBarrierAt, empty = full + 8, added = full + 16;
  if (threadIdx.x == 0) {
    barrier_init(full, p.mistake == Mistake::kDeadlock ? 2 : 1);
    barrier_init(empty, 4);
    barrier_init(added, 1);
    sm90::barrier_init_fence();
  }
  if (p.mistake != Mistake::kNoSync) __syncthreads();
  if (p.mistake == Mistake::kTooManyRegisters) sm90::take_registers<256>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 4) {
    if (p.mistake != Mistake::kReadsEarly) await_predecessors();
    if (lane == 0) {
      sm90::barrier_arrive_expecting(added, p.mistake == Mistake::kExpectsTooMuch ? 2 * kRowBytes : kRowBytes);
      sm90::copy_bulk(base + kAddedAt, p.copy, kRowBytes, added);
    }
    for (int row = 0; row < 96; ++row) {
      const uint32_t at = base + sm90::swizzled(row * kRowBytes + lane * 4);
      if (row >= 64) {
        copy_4(p.mistake == Mistake::kMisaligned && row == 95 ? at + 2 : at, p.copy + row * 32 + lane);
      } else {
        store_shared(at, p.copy[row * 32 + lane]);
      }
    }
    copy_commit();
    if (p.mistake != Mistake::kNoWait) copy_wait<0>();
    if (p.mistake == Mistake::kReadsEarly) await_predecessors();
    if (p.mistake != Mistake::kNoFence) sm90::fence_to_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(full);
    if (p.mistake != Mistake::kOverwritesEarly) barrier_wait(empty, 0);
    copy_wait<0>();
    for (int row = 0; row < 96; ++row) store_shared(base + row * kRowBytes + lane * 4, 0);
    sm90::fence_to_async_proxy();
    return;
  }
  barrier_wait(full, 0);
  float sum[16] = {};
  sm90::wgmma_pin(sum);
  sm90::wgmma_fence();
  const uint32_t second = p.mistake == Mistake::kOutside ? 1 << 17 : 64 * kRowBytes;
  for (int k = 0; k < 4; ++k) {
    sm90::Wgmma<float, 32>::issue(sum, sm90::tile_descriptor(base, 8 * kRowBytes) + 2 * k,
                                  sm90::tile_descriptor(base + second, 8 * kRowBytes) + 2 * k, k > 0);
  }
  sm90::wgmma_commit();
  if (p.mistake != Mistake::kReleasesEarly) sm90::wgmma_wait<0>();
  if (lane == 0) barrier_arrive(empty);
  sm90::wgmma_wait<0>();
  sm90::wgmma_pin(sum);
  if (p.mistake != Mistake::kReadsBulkEarly) barrier_wait(added, 0);
  for (int i = 0; i < 16; ++i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    p.result[row * 32 + column] = sum[i] + __uint_as_float(load_shared(base + kAddedAt + column * 4));
  }
  barrier_wait(added, 0);  // before the block ends
#endif
}

}  // namespace

cudaError_t launch_example(Mistake mistake, const uint32_t* source, uint32_t* copy, float* result) {
  const ExampleParams params{mistake, source, copy, result};
  const cudaError_t error = launch_kernel(copy_kernel, 1, 32, 0, nullptr, params);
  if (error != cudaSuccess) return error;
  return launch_kernel(example_kernel, 1, 160, kSharedBytes, nullptr, params, Start::kEarly);
}

}  // namespace deconv
