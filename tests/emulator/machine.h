// A GPU's blocks on one CPU thread: threads are fibers that change places where they wait, in an order that a seed
// decides. What the machine does behind a thread's back (copies, products of tensor cores) happens early or late, and a
// kernel that may start early does so before or after the end of the one before it. So code that looks too early or
// overwrites too early can meet wrong data; and what can never go on is an error that says who waits for what. Blocks
// run one after another, in any order, those of a cluster together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace emulator {

// ---- numbers

inline unsigned bits_of(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline float float_of(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
float float_of_half(uint16_t bits);
uint16_t half_of_float(float value);
inline float float_of_bfloat(uint16_t bits) { return float_of(unsigned{bits} << 16); }
uint16_t bfloat_of_float(float value);
unsigned round_to_tf32(unsigned bits, bool ties_to_even);

// ---- threads and blocks

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

struct Block {
  Index index, threads, grid;
  int rank = 0, cluster = 1;  // of the cluster that it belongs to, and how many blocks these are
  unsigned char* shared = nullptr;
  uint32_t shared_bytes = 0;
};

struct Thread {
  Index index;
  Block* block = nullptr;
  std::deque<std::vector<std::function<void()>>> copies;  // cp.async, by group; the last one is open
  std::deque<std::vector<std::function<void()>>> products;  // wgmma, the same
  std::vector<std::function<void()>> copies_out;  // bulk, to global memory
  std::vector<uint32_t> unfenced;  // words of shared memory that it wrote and has not fenced
};

Thread& self();

struct Launch {
  unsigned blocks, threads, cluster;
  size_t shared_bytes;
  bool early;  // may start before the ends of those before, whose results it has then to await
};
// Launches a kernel; false after an error, whose text take_error has. It runs when the next one does, or in finish.
bool launch(const Launch& launch, std::function<void()> run);
void finish();
void await_grids_before();
// setmaxnreg: registers of this thread from here on. More than a block was launched with would be waited for for ever.
void take_registers(unsigned count);
// Of launches from here on: another order of the same work. The last kernel starts early, if it may, where it is odd.
void set_seed(uint64_t seed);
std::string take_error();
[[noreturn]] void fail(const std::string& text);  // of a kernel
bool toss();  // a coin

// ---- waiting

// Lets the others go on until `ready` says yes; `what` for the error if that never comes.
void wait_until(const std::string& what, const std::function<bool()>& ready);
// bar.sync, or bar.arrive, of so many threads.
void named_barrier(int barrier, unsigned threads, bool waits);
void cluster_arrive();
void cluster_wait();

// What lanes of a warp tell each other; all 32 meet at an instruction of the same kind.
enum class Shuffle { kNone, kIndex, kXor, kBallot };
uint64_t exchange(const char* what, uint64_t value, Shuffle shuffle, int lane, int width = 32);
template <class T>
T shuffle(T value, Shuffle kind, int lane, int width) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange("shuffle", bits, kind, lane, width);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
// The same with words of all lanes at hand: `all` is called once, with what 32 lanes gave, and leaves what each gets.
struct Words {
  uint32_t word[16];
};
Words meet(const void* instruction, const Words& given, void (*all)(Words (&lanes)[32]));

// ---- shared memory

inline constexpr uint32_t kSharedBase = 1024;
unsigned char* dynamic_shared();
// Behind the declaration of a __shared__ array of fixed size, which holds NaN when the first thread of a block is
// there.
void enter_static(void* array, size_t bytes);
uint32_t shared_address(const void* pointer);
// `bytes` at a shared address of this block, or of another one of the cluster (mapa), aligned to as many.
unsigned char* at_shared(uint32_t address, unsigned bytes);
uint32_t map_address(uint32_t address, uint32_t rank);
// A write to shared memory by PTX (those by C++ are not seen). Tensor cores and the copy engine see it after a fence,
// before it they read NaN: some of what they read belongs to no result, and may be anything.
void note_written(uint32_t address, unsigned bytes);
void fence_to_async();
bool is_fenced(uint32_t address);  // 16 bytes

// ---- barriers in shared memory

void barrier_init(uint32_t barrier, unsigned arrivals);
void barrier_arrive(uint32_t barrier, unsigned expecting = 0);
bool barrier_is_past(uint32_t barrier, uint32_t parity);

// ---- what happens behind a thread's back

void commit_copies();
void wait_copies(int groups);
void arrive_with_copies(uint32_t barrier);
void copy_small(uint32_t shared, const void* global, unsigned bytes, unsigned existing);
void copy_bulk(uint32_t shared, const void* global, unsigned bytes, uint32_t barrier);
// To global memory: now, or when this thread waits for it.
void copy_out(std::function<void()> copy);
void wait_copies_out();

struct TensorMap {
  alignas(64) uint64_t size[5];
  uint64_t stride[5];  // bytes
  uint16_t box[5];
  uint8_t rank, element, swizzle, rounds;
  const unsigned char* base;
};
static_assert(sizeof(TensorMap) == 128);
// blocks: bits of the cluster's ranks, each of which gets the box; 0: this block.
void copy_tensor(uint32_t shared, const TensorMap& map, uint32_t barrier, const int* coordinates, int rank,
                 uint32_t blocks);
void copy_tensor_out(uint32_t shared, const TensorMap& map, const int* coordinates, int rank);
// Sizes and strides from the innermost dimension on; false where the driver refuses.
struct TensorMapRequest {
  void* address;
  unsigned rank, element;  // bytes
  bool rounds;  // to TF32
  const uint64_t *sizes, *strides;
  const uint32_t *box, *steps;
  unsigned swizzle;  // bytes of a row, or 0
};
bool encode_tensor_map(TensorMap& map, const TensorMapRequest& request);

// wgmma: this thread's part of acc[64 x n] (+)= a * b, by a number for the types: TF32, half, bfloat16.
enum class WgmmaType { kTf32, kHalf, kBfloat };
struct WarpgroupProduct {
  WgmmaType type;
  int n;
  bool a_in_registers, a_major, b_major, accumulate;  // major: along the rows, not along the sum
  uint64_t a, b;  // descriptors
  uint32_t a_words[2][8];  // in registers: of this thread's two rows
  std::vector<float*> sums;
};
// registers: operand A's, if it lies there.
void multiply_later(const void* instruction, WarpgroupProduct product, const uint32_t (&registers)[4]);
void commit_products();
void wait_products(int groups);
// mma.sync: 16 x 8 sums of a warp.
void multiply_now(const void* instruction, WgmmaType type, float* const (&sums)[4], const uint32_t (&a)[4],
                  const uint32_t (&b)[2]);

}  // namespace emulator
