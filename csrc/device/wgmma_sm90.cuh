// wgmma: acc[64 x N] += A[64 x K] * B[N x K]^T, A and B as swizzled tiles in shared memory, or A in registers.
//
//   K-major tile    a row is one m or n: 128 bytes, or 64
//   MN-major tile   a row is one k; 16-bit elements only: A, or both, or B with A in registers
//
// A tile may start at any row of a swizzled buffer, and its 8-row groups may lie any multiple of 128 bytes apart (rows
// of 64 bytes: of 64), with the descriptor's base offset 0 (measured on an H200). So one halo serves every tap.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace deconv::sm90 {

// Descriptor of a K-major tile with rows of 128 or 64 bytes at shared address `address`; groups of 8 rows lie
// `group_bytes` apart.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t group_bytes, int row_bytes = 128) {
  constexpr uint64_t kSwizzle128 = 1ull << 62, kSwizzle64 = 2ull << 62, kUnusedLeading = 1ull << 16;
  return (row_bytes == 128 ? kSwizzle128 : kSwizzle64) | kUnusedLeading |
         static_cast<uint64_t>((group_bytes >> 4) & 0x3FFF) << 32 | static_cast<uint64_t>((address & 0x3FFFF) >> 4);
}

// The same for an MN-major tile: rows of 128, 64 or 32 bytes along M or N, in blocks that lie `block_bytes` apart.
__device__ __forceinline__ uint64_t tile_descriptor_mn(uint32_t address, uint32_t block_bytes,
                                                       uint32_t group_bytes = 1024, int row_bytes = 128) {
  constexpr uint64_t kSwizzle128 = 1ull << 62, kSwizzle64 = 2ull << 62, kSwizzle32 = 3ull << 62;
  return (row_bytes == 128  ? kSwizzle128
          : row_bytes == 64 ? kSwizzle64
                            : kSwizzle32) |
         static_cast<uint64_t>((block_bytes >> 4) & 0x3FFF) << 16 |
         static_cast<uint64_t>((group_bytes >> 4) & 0x3FFF) << 32 | static_cast<uint64_t>((address & 0x3FFFF) >> 4);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading or writing the accumulators across this point.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&acc)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(acc[i])::"memory");
}

// One wgmma: K is 32 bytes of each row. `accumulate` 0 overwrites acc. Element is what the rows hold; float is read as
// TF32.
template <class Element, int kN>
struct Wgmma;

// The same for 16-bit elements with A M-major.
template <class Element, int kN>
struct WgmmaMajorM;

// The same for 16-bit elements with both tiles MN-major.
template <class Element, int kN>
struct WgmmaMajorN;

// The same with A in registers: rows 16 * warp + lane / 4 (+ 8) of 4-byte words lane % 4 (+ 4), in the order (row,
// word), (row + 8, word), (row, word + 4), (row + 8, word + 4). kMajorN: B is MN-major.
template <class Element, int kN, bool kMajorN>
struct WgmmaRs;

#define DECONV_ACC4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define DECONV_ACC8(i) DECONV_ACC4(i), DECONV_ACC4(i + 4)
#define DECONV_ACC16(i) DECONV_ACC8(i), DECONV_ACC8(i + 8)
#define DECONV_ACC32(i) DECONV_ACC16(i), DECONV_ACC16(i + 16)
#define DECONV_REG8_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define DECONV_REG16_0 DECONV_REG8_0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define DECONV_REG8_2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define DECONV_REG32_0 DECONV_REG16_0 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define DECONV_REG16_2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define DECONV_REG32_1 DECONV_REG16_2 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DECONV_REG8_8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define DECONV_REG16_4 DECONV_REG8_8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define DECONV_REG32_2 \
  DECONV_REG8_8        \
  ",%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define DECONV_REG8_12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define DECONV_REG16_6 DECONV_REG8_12 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define DECONV_REG32_3                                                                                             \
  DECONV_REG8_12                                                                                                   \
  ",%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125" \
  ",%126,%127"

#define DECONV_SM80(NAME, ELEMENT, TYPES, N, K, TAIL, REGISTERS, A, B, FLAG, ...)                               \
  template <>                                                                                                   \
  struct NAME<ELEMENT, N> {                                                                                     \
    static __device__ __forceinline__ void issue(float (&acc)[N / 2], uint64_t a, uint64_t b, int accumulate) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " FLAG ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k" #K \
                   ".f32." TYPES " {" REGISTERS "}, " A ", " B ", p, 1, 1" TAIL ";\n}\n"                        \
                   : __VA_ARGS__                                                                                \
                   : "l"(a), "l"(b), "r"(accumulate));                                                          \
    }                                                                                                           \
  };
#define DECONV_SM80_REGISTERS(ELEMENT, MAJOR_N, TYPES, N, K, TAIL, REGISTERS, A0, A1, A2, A3, B, FLAG, ...)      \
  template <>                                                                                                    \
  struct WgmmaRs<ELEMENT, N, MAJOR_N> {                                                                          \
    static __device__ __forceinline__ void issue(float (&acc)[N / 2], const uint32_t (&a)[4], uint64_t b,        \
                                                 int accumulate) {                                               \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " FLAG ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k" #K  \
                   ".f32." TYPES " {" REGISTERS "}, {" A0 "," A1 "," A2 "," A3 "}, " B ", p, 1, 1" TAIL ";\n}\n" \
                   : __VA_ARGS__                                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                       \
    }                                                                                                            \
  };
#define DECONV_SM80_REGISTERS_TYPES(N, ...)                                           \
  DECONV_SM80_REGISTERS(__nv_bfloat16, false, "bf16.bf16", N, 16, ", 0", __VA_ARGS__) \
  DECONV_SM80_REGISTERS(__nv_bfloat16, true, "bf16.bf16", N, 16, ", 1", __VA_ARGS__)  \
  DECONV_SM80_REGISTERS(__half, false, "f16.f16", N, 16, ", 0", __VA_ARGS__)          \
  DECONV_SM80_REGISTERS(__half, true, "f16.f16", N, 16, ", 1", __VA_ARGS__)           \
  DECONV_SM80_REGISTERS(float, false, "tf32.tf32", N, 8, "", __VA_ARGS__)
#define DECONV_SM80_TYPES(N, ...)                                                    \
  DECONV_SM80(Wgmma, __nv_bfloat16, "bf16.bf16", N, 16, ", 0, 0", __VA_ARGS__)       \
  DECONV_SM80(Wgmma, __half, "f16.f16", N, 16, ", 0, 0", __VA_ARGS__)                \
  DECONV_SM80(WgmmaMajorM, __nv_bfloat16, "bf16.bf16", N, 16, ", 1, 0", __VA_ARGS__) \
  DECONV_SM80(WgmmaMajorM, __half, "f16.f16", N, 16, ", 1, 0", __VA_ARGS__)          \
  DECONV_SM80(WgmmaMajorN, __nv_bfloat16, "bf16.bf16", N, 16, ", 1, 1", __VA_ARGS__) \
  DECONV_SM80(WgmmaMajorN, __half, "f16.f16", N, 16, ", 1, 1", __VA_ARGS__)          \
  DECONV_SM80(Wgmma, float, "tf32.tf32", N, 8, "", __VA_ARGS__)

DECONV_SM80_TYPES(16, DECONV_REG8_0, "%8", "%9", "%10", DECONV_ACC8(0))
DECONV_SM80_TYPES(32, DECONV_REG16_0, "%16", "%17", "%18", DECONV_ACC16(0))
DECONV_SM80_TYPES(48, DECONV_REG16_0 "," DECONV_REG8_2, "%24", "%25", "%26", DECONV_ACC16(0), DECONV_ACC8(16))
DECONV_SM80_TYPES(64, DECONV_REG32_0, "%32", "%33", "%34", DECONV_ACC32(0))
DECONV_SM80_TYPES(96, DECONV_REG32_0 "," DECONV_REG16_2, "%48", "%49", "%50", DECONV_ACC32(0), DECONV_ACC16(32))
DECONV_SM80_TYPES(128, DECONV_REG32_0 "," DECONV_REG32_1, "%64", "%65", "%66", DECONV_ACC32(0), DECONV_ACC32(32))
DECONV_SM80_TYPES(144, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG8_8, "%72", "%73", "%74", DECONV_ACC32(0),
                  DECONV_ACC32(32), DECONV_ACC8(64))
DECONV_SM80_TYPES(160, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG16_4, "%80", "%81", "%82", DECONV_ACC32(0),
                  DECONV_ACC32(32), DECONV_ACC16(64))
DECONV_SM80_TYPES(192, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG32_2, "%96", "%97", "%98", DECONV_ACC32(0),
                  DECONV_ACC32(32), DECONV_ACC32(64))
DECONV_SM80_TYPES(208, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG32_2 "," DECONV_REG8_12, "%104", "%105", "%106",
                  DECONV_ACC32(0), DECONV_ACC32(32), DECONV_ACC32(64), DECONV_ACC8(96))
DECONV_SM80_TYPES(224, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG32_2 "," DECONV_REG16_6, "%112", "%113", "%114",
                  DECONV_ACC32(0), DECONV_ACC32(32), DECONV_ACC32(64), DECONV_ACC16(96))
DECONV_SM80_TYPES(256, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG32_2 "," DECONV_REG32_3, "%128", "%129", "%130",
                  DECONV_ACC32(0), DECONV_ACC32(32), DECONV_ACC32(64), DECONV_ACC32(96))

DECONV_SM80_REGISTERS_TYPES(16, DECONV_REG8_0, "%8", "%9", "%10", "%11", "%12", "%13", DECONV_ACC8(0))
DECONV_SM80_REGISTERS_TYPES(32, DECONV_REG16_0, "%16", "%17", "%18", "%19", "%20", "%21", DECONV_ACC16(0))
DECONV_SM80_REGISTERS_TYPES(48, DECONV_REG16_0 "," DECONV_REG8_2, "%24", "%25", "%26", "%27", "%28", "%29",
                            DECONV_ACC16(0), DECONV_ACC8(16))
DECONV_SM80_REGISTERS_TYPES(64, DECONV_REG32_0, "%32", "%33", "%34", "%35", "%36", "%37", DECONV_ACC32(0))
DECONV_SM80_REGISTERS_TYPES(96, DECONV_REG32_0 "," DECONV_REG16_2, "%48", "%49", "%50", "%51", "%52", "%53",
                            DECONV_ACC32(0), DECONV_ACC16(32))
DECONV_SM80_REGISTERS_TYPES(128, DECONV_REG32_0 "," DECONV_REG32_1, "%64", "%65", "%66", "%67", "%68", "%69",
                            DECONV_ACC32(0), DECONV_ACC32(32))
DECONV_SM80_REGISTERS_TYPES(192, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG32_2, "%96", "%97", "%98", "%99",
                            "%100", "%101", DECONV_ACC32(0), DECONV_ACC32(32), DECONV_ACC32(64))
DECONV_SM80_REGISTERS_TYPES(256, DECONV_REG32_0 "," DECONV_REG32_1 "," DECONV_REG32_2 "," DECONV_REG32_3, "%128",
                            "%129", "%130", "%131", "%132", "%133", DECONV_ACC32(0), DECONV_ACC32(32), DECONV_ACC32(64),
                            DECONV_ACC32(96))

#undef DECONV_SM80_REGISTERS_TYPES
#undef DECONV_SM80_REGISTERS
#undef DECONV_SM80_TYPES
#undef DECONV_SM80
#undef DECONV_REG16_2
#undef DECONV_REG16_6
#undef DECONV_REG16_4
#undef DECONV_REG8_12
#undef DECONV_REG8_8
#undef DECONV_REG8_2
#undef DECONV_REG16_0
#undef DECONV_REG8_0
#undef DECONV_REG32_3
#undef DECONV_REG32_2
#undef DECONV_REG32_1
#undef DECONV_REG32_0
#undef DECONV_ACC32
#undef DECONV_ACC16
#undef DECONV_ACC8
#undef DECONV_ACC4

}  // namespace deconv::sm90
