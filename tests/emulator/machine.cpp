#undef _FORTIFY_SOURCE  // its longjmp takes another fiber's stack for a mistake
#include "machine.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <unordered_map>
#include <utility>

// An error leaves the fibers as they stand: longjmp out of them, and what their stacks own is lost.
namespace emulator {
namespace {

constexpr size_t kStackBytes = 1 << 20;
constexpr uint32_t kStaticBase = 0x40000, kStaticBytes = 0x10000;  // addresses of __shared__ arrays of fixed size
constexpr uint32_t kRankShift = 24;
constexpr size_t kMostShared = 232448;  // bytes of a block

struct MemoryBarrier {
  unsigned arrivals = 0, missing = 0;
  int64_t bytes = 0;  // that copies still owe
  uint32_t phase = 0;
};

struct NamedBarrier {
  unsigned arrived = 0, generation = 0;
};

struct BlockState : Block {
  unsigned alive = 0;  // threads
  std::vector<unsigned char> memory;
  std::unordered_map<uint32_t, MemoryBarrier> barriers;
  std::array<NamedBarrier, 16> named{};
  std::vector<std::function<void()>> copies, late_copies;  // that the copy engine has still to do; when all others wait
  std::vector<uint16_t> unfenced;  // by word of 4 bytes: thread + 1
};

struct WarpState {
  int arrived = 0, alive = 32;
  unsigned generation = 0;
  const void* instruction = nullptr;
  Words words[32];
};

struct Fiber : Thread {
  BlockState* state = nullptr;
  WarpState* warp = nullptr;
  int lane = 0;
  jmp_buf context;
  bool started = false, done = false;
  unsigned registers = 0;  // that it asked for
  std::string waits_for;
  const std::function<bool()>* ready = nullptr;
};

struct Stack {
  Stack() {
    memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_NONE) != 0) std::abort();
  }
  void* memory;
};

// A __shared__ array of fixed size, and the block that has it now.
struct StaticArray {
  unsigned char* begin;
  size_t bytes;
  const BlockState* owner = nullptr;
};

// A kernel that was launched, and the cluster of it that runs.
struct Grid {
  Launch launch;
  std::function<void()> run;
  std::unique_ptr<Grid> before;  // still to run, though this one may have started
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<Stack>> stacks;
  std::vector<std::unique_ptr<BlockState>> blocks;
  std::vector<std::unique_ptr<WarpState>> warps;
  NamedBarrier cluster_barrier;
  std::map<const Fiber*, unsigned> cluster_seen;
  std::vector<StaticArray> statics;
};

struct Machine {
  std::mt19937_64 random{0};
  bool starts_early = false;  // the last kernel that was launched, if it may
  std::unique_ptr<Grid> last;  // launched, not run yet: the next one may start before
  Grid* grid = nullptr;  // that runs
  Fiber* current = nullptr;
  jmp_buf scheduler;
  ucontext_t first_context;
  std::vector<std::unique_ptr<Stack>> stacks;  // of nobody
  std::string error;
};
Machine machine;

void enter_fiber() {
  Fiber* const fiber = machine.current;
  std::string text;
  try {
    machine.grid->run();
  } catch (const std::exception& exception) {
    text = exception.what();
  }
  if (!text.empty()) fail(text);
  if (!fiber->products.empty()) fail("a thread ends with products under way");
  if (!fiber->copies_out.empty()) fail("a thread ends with bulk copies under way");
  fiber->done = true;
  --fiber->state->alive;
  if (--fiber->warp->alive > 0 && fiber->warp->arrived == fiber->warp->alive) {
    fail("a lane ends where the others of its warp meet");
  }
  _longjmp(machine.scheduler, 1);
}

void resume(Fiber& fiber, Stack& stack) {
  machine.current = &fiber;
  if (_setjmp(machine.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.context, 1);
  fiber.started = true;
  getcontext(&machine.first_context);
  machine.first_context.uc_stack.ss_sp = stack.memory;
  machine.first_context.uc_stack.ss_size = kStackBytes;
  machine.first_context.uc_link = nullptr;
  makecontext(&machine.first_context, enter_fiber, 0);
  setcontext(&machine.first_context);
}

// One of these copies; false if there is none.
bool copy_one(std::vector<std::function<void()>>& copies) {
  if (copies.empty()) return false;
  std::swap(copies[machine.random() % copies.size()], copies.back());
  const std::function<void()> copy = std::move(copies.back());
  copies.pop_back();
  copy();
  return true;
}

void copy_behind(BlockState& block, std::function<void()> copy) {
  (toss() ? block.copies : block.late_copies).push_back(std::move(copy));
}

// From the scheduler, where an error has no thread to come back from.
bool is_ready(Fiber& fiber) {
  machine.current = &fiber;  // whose block `ready` asks
  if (_setjmp(machine.scheduler) != 0) return false;
  return fiber.ready == nullptr || (*fiber.ready)();
}
bool copy_safely(std::vector<std::function<void()>>& copies) {
  if (_setjmp(machine.scheduler) != 0) return false;
  return copy_one(copies);
}

std::string describe_waiting() {
  std::ostringstream text;
  text << "no thread can go on: ";
  std::map<std::string, int> counts;
  for (const auto& fiber : machine.grid->fibers) {
    if (fiber->done) continue;
    std::ostringstream one;
    one << "block " << fiber->block->index.x << " warp " << fiber->index.x / 32 << " waits for " << fiber->waits_for;
    ++counts[one.str()];
  }
  for (const auto& [what, count] : counts) text << what << " (" << count << " lanes); ";
  return text.str();
}

void run_grid(Grid& grid);

// Runs what was launched before the present grid; false if there is nothing.
bool run_before() {
  Grid* const grid = machine.grid;
  const std::unique_ptr<Grid> before = std::move(grid->before);
  if (!before) return false;
  run_grid(*before);
  machine.grid = grid;
  return true;
}

void run_cluster() {
  std::vector<size_t> order(machine.grid->fibers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  size_t alive = order.size();
  constexpr size_t kNobody = SIZE_MAX;
  size_t asleep = kNobody;  // a warp that others may be far ahead of
  while (alive > 0) {
    if (machine.random() % 32 == 0) asleep = toss() ? machine.random() % (order.size() / 32) : kNobody;
    // Beginning with any warp; now and then in any order of all lanes.
    if (machine.random() % 4 == 0) {
      std::shuffle(order.begin(), order.end(), machine.random);
    } else {
      const size_t turn = machine.random() % order.size() / 32 * 32;
      std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(turn), order.end());
    }
    bool moved = false;
    for (const size_t i : order) {
      Fiber& fiber = *machine.grid->fibers[i];
      if (fiber.done || i / 32 == asleep || !is_ready(fiber)) continue;
      fiber.ready = nullptr;
      resume(fiber, *machine.grid->stacks[i]);
      if (!machine.error.empty()) return;
      moved = true;
      if (fiber.done) --alive;
      if (machine.random() % 64 == 0) copy_safely(fiber.state->copies);
      if (!machine.error.empty()) return;
    }
    for (const auto& block : machine.grid->blocks) moved |= copy_safely(block->copies);
    for (const auto& block : machine.grid->blocks) moved = moved || copy_safely(block->late_copies);
    if (!moved && asleep != kNobody) {  // all others wait
      asleep = kNobody;
      continue;
    }
    if (!moved && machine.error.empty() && !run_before()) machine.error = describe_waiting();
    if (!machine.error.empty()) return;
  }
  for (const auto& block : machine.grid->blocks) {
    if (!block->copies.empty() || !block->late_copies.empty())
      machine.error = "a block ends with copies to its shared memory under way";
    unsigned char* const end = block->memory.data() + block->memory.size();
    if (std::any_of(block->shared + block->shared_bytes, end, [](unsigned char byte) { return byte != 0xFF; }))
      machine.error = "memory behind a block's shared memory was written";
  }
}

void make_block(Grid& grid, unsigned index, unsigned rank) {
  auto block = std::make_unique<BlockState>();
  block->index.x = index;
  block->threads = {grid.launch.threads, 1, 1};
  block->grid = {grid.launch.blocks, 1, 1};
  block->rank = static_cast<int>(rank);
  block->alive = grid.launch.threads;
  block->cluster = static_cast<int>(grid.launch.cluster);
  block->memory.assign(grid.launch.shared_bytes + 2 * 1024, 0xFF);  // NaN, also behind it
  block->shared_bytes = static_cast<uint32_t>(grid.launch.shared_bytes);
  block->shared = block->memory.data() + (1024 - reinterpret_cast<uintptr_t>(block->memory.data()) % 1024);
  block->unfenced.assign(grid.launch.shared_bytes / 4 + 4, 0);
  for (unsigned t = 0; t < grid.launch.threads; ++t) {
    if (t % 32 == 0) grid.warps.push_back(std::make_unique<WarpState>());
    auto fiber = std::make_unique<Fiber>();
    fiber->index.x = t;
    fiber->block = fiber->state = block.get();
    fiber->warp = grid.warps.back().get();
    fiber->lane = static_cast<int>(t % 32);
    grid.fibers.push_back(std::move(fiber));
  }
  grid.blocks.push_back(std::move(block));
}

void run_grid(Grid& grid) {
  machine.grid = &grid;
  for (unsigned t = 0; t < grid.launch.threads * grid.launch.cluster; ++t) {
    if (machine.stacks.empty()) machine.stacks.push_back(std::make_unique<Stack>());
    grid.stacks.push_back(std::move(machine.stacks.back()));
    machine.stacks.pop_back();
  }
  if (grid.before) {
    if (!machine.starts_early) run_before();
    machine.starts_early = toss();  // the next one that may
  }
  std::vector<unsigned> clusters(grid.launch.blocks / grid.launch.cluster);
  for (unsigned c = 0; c < clusters.size(); ++c) clusters[c] = c * grid.launch.cluster;
  std::shuffle(clusters.begin(), clusters.end(), machine.random);
  for (const unsigned first : clusters) {
    if (!machine.error.empty()) break;
    grid.fibers.clear();
    grid.blocks.clear();
    for (StaticArray& array : grid.statics) array.owner = nullptr;
    grid.warps.clear();
    grid.cluster_seen.clear();
    grid.cluster_barrier = {};
    for (unsigned rank = 0; rank < grid.launch.cluster; ++rank) make_block(grid, first + rank, rank);
    run_cluster();
  }
  if (grid.before && machine.error.empty()) machine.error = "a grid that started early ends before those before it";
  for (auto& stack : grid.stacks) machine.stacks.push_back(std::move(stack));
}

Fiber& me() { return *machine.current; }

BlockState& block_at(uint32_t& address) {
  const uint32_t rank = address >> kRankShift;
  address &= (1u << kRankShift) - 1;
  if (rank == 0) return *me().state;
  if (rank > machine.grid->blocks.size()) fail("an address of a block that is not in the cluster");
  BlockState& block = *machine.grid->blocks[rank - 1];
  if (block.alive == 0) fail("shared memory of a block that has ended");
  return block;
}

MemoryBarrier& barrier_at(BlockState& block, uint32_t address) {
  const auto found = block.barriers.find(address);
  if (found == block.barriers.end()) fail("a barrier that was not initialized, at " + std::to_string(address));
  return found->second;
}

void complete(MemoryBarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
}

void bytes_arrived(BlockState& block, uint32_t barrier, unsigned bytes) {
  MemoryBarrier& state = barrier_at(block, barrier);
  state.bytes -= bytes;
  complete(state);
}

void run_all(std::vector<std::function<void()>>& work) {
  for (const auto& one : work) one();
  work.clear();
}

}  // namespace

Thread& self() { return *machine.current; }
void set_seed(uint64_t seed) {
  machine.random.seed(seed);
  machine.starts_early = seed % 2 != 0;
}
std::string take_error() { return std::exchange(machine.error, {}); }
bool toss() { return machine.random() % 2 == 0; }

void fail(const std::string& text) {
  std::ostringstream whole;
  whole << "block " << me().block->index.x << ", thread " << me().index.x << ": " << text;
  machine.error = whole.str();
  _longjmp(machine.scheduler, 1);
}

bool launch(const Launch& launch, std::function<void()> run) {
  if (launch.blocks % launch.cluster != 0 || launch.threads % 32 != 0) {
    machine.error = "a launch of parts of clusters or warps";
  }
  if (launch.threads > 1024 || launch.cluster > 8 || launch.shared_bytes > kMostShared) {
    machine.error = "a launch of more than a GPU takes";
  }
  if (!launch.early) finish();
  auto grid = std::make_unique<Grid>();
  grid->launch = launch;
  grid->run = std::move(run);
  grid->before = std::move(machine.last);
  machine.last = std::move(grid);
  return machine.error.empty();
}

void finish() {
  const std::unique_ptr<Grid> last = std::move(machine.last);
  if (last && machine.error.empty()) run_grid(*last);
}

void await_grids_before() {
  const Grid* const grid = machine.grid;
  wait_until("the grids before", [=] { return grid->before == nullptr; });
}

void take_registers(unsigned count) {
  me().registers = count;
  const unsigned threads = me().block->threads.x, at_launch = std::min(255u, 65536 / threads) / 8 * 8;
  unsigned sum = 0;
  for (const auto& fiber : machine.grid->fibers) {
    if (fiber->block == me().block) sum += fiber->registers > 0 ? fiber->registers : 24;
  }
  if (sum > at_launch * threads) fail("a block wants more registers than it was launched with");
}

// ---- waiting

void wait_until(const std::string& what, const std::function<bool()>& ready) {
  if (ready()) return;
  Fiber& fiber = me();
  fiber.waits_for = what;
  fiber.ready = &ready;
  if (_setjmp(fiber.context) == 0) _longjmp(machine.scheduler, 1);
}

void named_barrier(int index, unsigned threads, bool waits) {
  if (index < 0 || index > 15) fail("there is no named barrier " + std::to_string(index));
  NamedBarrier& barrier = me().state->named[static_cast<size_t>(index)];
  const unsigned generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  } else if (waits) {
    wait_until("named barrier " + std::to_string(index), [&] { return barrier.generation != generation; });
  }
}

void cluster_arrive() {
  machine.grid->cluster_seen[&me()] = machine.grid->cluster_barrier.generation;
  size_t alive = 0;
  for (const auto& fiber : machine.grid->fibers) alive += fiber->done ? 0 : 1;
  if (++machine.grid->cluster_barrier.arrived == alive) {
    machine.grid->cluster_barrier.arrived = 0;
    ++machine.grid->cluster_barrier.generation;
  }
}
void cluster_wait() {
  const unsigned generation = machine.grid->cluster_seen[&me()];
  wait_until("the cluster", [=] {
    // Threads that ended since count as arrived.
    size_t alive = 0;
    for (const auto& fiber : machine.grid->fibers) alive += fiber->done ? 0 : 1;
    NamedBarrier& barrier = machine.grid->cluster_barrier;
    if (barrier.generation == generation && barrier.arrived == alive) {
      barrier.arrived = 0;
      ++barrier.generation;
    }
    return barrier.generation != generation;
  });
}

Words meet(const void* instruction, const Words& given, void (*all)(Words (&lanes)[32])) {
  Fiber& fiber = me();
  WarpState& warp = *fiber.warp;
  if (warp.arrived == 0) warp.instruction = instruction;
  if (warp.instruction != instruction) fail("lanes of a warp meet at different instructions");
  warp.words[fiber.lane] = given;
  const unsigned generation = warp.generation;
  if (++warp.arrived == warp.alive) {
    if (all != nullptr) all(warp.words);
    warp.arrived = 0;
    ++warp.generation;
  } else {
    wait_until("the other lanes of the warp", [&] { return warp.generation != generation; });
  }
  return warp.words[fiber.lane];
}

uint64_t exchange(const char* what, uint64_t value, Shuffle shuffle, int lane, int width) {
  Words words{};
  std::memcpy(words.word, &value, 8);
  words.word[2] = static_cast<uint32_t>(shuffle);
  words.word[3] = static_cast<uint32_t>(lane);
  words.word[4] = static_cast<uint32_t>(width);
  words = meet(what, words, [](Words(&lanes)[32]) {
    Words old[32];
    std::memcpy(old, lanes, sizeof(old));
    uint32_t ballot = 0;
    for (int i = 0; i < 32; ++i) ballot |= (old[i].word[0] & 1) << i;
    for (int i = 0; i < 32; ++i) {
      const auto kind = static_cast<Shuffle>(old[i].word[2]);
      const int argument = static_cast<int>(old[i].word[3]), across = static_cast<int>(old[i].word[4]);
      const int first = i / across * across;
      int from = i;
      if (kind == Shuffle::kIndex) from = first + (argument & (across - 1));
      if (kind == Shuffle::kXor && (i ^ argument) < first + across) from = i ^ argument;
      lanes[i].word[0] = old[from].word[0];
      lanes[i].word[1] = old[from].word[1];
      if (kind == Shuffle::kBallot) lanes[i].word[0] = ballot, lanes[i].word[1] = 0;
    }
  });
  uint64_t result;
  std::memcpy(&result, words.word, 8);
  return result;
}

// ---- shared memory

unsigned char* dynamic_shared() { return me().block->shared; }

void enter_static(void* array, size_t bytes) {
  Grid& grid = *machine.grid;
  const BlockState* block = me().state;
  const auto is_it = [array](const StaticArray& one) { return one.begin == array; };
  auto found = std::find_if(grid.statics.begin(), grid.statics.end(), is_it);
  if (found == grid.statics.end()) {
    if (bytes > kStaticBytes) fail("a __shared__ array of " + std::to_string(bytes) + " bytes");
    found = grid.statics.insert(grid.statics.end(), {static_cast<unsigned char*>(array), bytes});
  }
  if (found->owner == block) return;
  if (grid.blocks.size() > 1) fail("a __shared__ array of fixed size in a cluster, whose blocks would share it here");
  found->owner = block;
  std::memset(array, 0xFF, bytes);
}

uint32_t shared_address(const void* pointer) {
  const auto* p = static_cast<const unsigned char*>(pointer);
  const Block& block = *me().block;
  if (p >= block.shared && p <= block.shared + block.shared_bytes) {
    return kSharedBase + static_cast<uint32_t>(p - block.shared);
  }
  const std::vector<StaticArray>& statics = machine.grid->statics;
  for (const size_t past : {0, 1}) {  // one past its end only if it is in no other
    for (size_t i = 0; i < statics.size(); ++i) {
      if (p >= statics[i].begin && p < statics[i].begin + statics[i].bytes + past) {
        return kStaticBase + static_cast<uint32_t>(i * kStaticBytes + (p - statics[i].begin));
      }
    }
  }
  fail("a pointer that is none to shared memory, as one");
}

unsigned char* at_shared(uint32_t address, unsigned bytes) {
  const uint32_t whole = address;
  BlockState& block = block_at(address);
  if (address % bytes != 0) {
    fail(std::to_string(bytes) + " bytes of shared memory at " + std::to_string(address) + ", which is not aligned");
  }
  if (address >= kStaticBase) {
    const size_t index = (address - kStaticBase) / kStaticBytes, offset = (address - kStaticBase) % kStaticBytes;
    if (index < machine.grid->statics.size() && offset + bytes <= machine.grid->statics[index].bytes) {
      return machine.grid->statics[index].begin + offset;
    }
  } else if (address >= kSharedBase && address - kSharedBase + bytes <= block.shared_bytes) {
    return block.shared + (address - kSharedBase);
  }
  fail("outside shared memory: " + std::to_string(bytes) + " bytes at " + std::to_string(whole));
}

uint32_t map_address(uint32_t address, uint32_t rank) { return address | (rank + 1) << kRankShift; }

void note_written(uint32_t address, unsigned bytes) {
  if (address >= kStaticBase) return;  // or another block's
  for (uint32_t word = (address - kSharedBase) / 4; word <= (address - kSharedBase + bytes - 1) / 4; ++word) {
    me().state->unfenced[word] = static_cast<uint16_t>(me().index.x + 1);
    me().unfenced.push_back(word);
  }
}

void fence_to_async() {
  for (const uint32_t word : me().unfenced) {
    uint16_t& writer = me().state->unfenced[word];
    if (writer == me().index.x + 1) writer = 0;
  }
  me().unfenced.clear();
}

bool is_fenced(uint32_t address) {
  if (address >= kStaticBase) return true;
  const uint16_t* const words = &me().state->unfenced[(address - kSharedBase) / 4];
  return words[0] == 0 && words[1] == 0 && words[2] == 0 && words[3] == 0;
}

// ---- barriers in shared memory

void barrier_init(uint32_t address, unsigned arrivals) {
  at_shared(address, 8);
  MemoryBarrier& barrier = me().state->barriers[address];
  barrier = {};
  barrier.arrivals = barrier.missing = arrivals;
}

void barrier_arrive(uint32_t address, unsigned expecting) {
  BlockState& block = block_at(address);
  MemoryBarrier& barrier = barrier_at(block, address);
  if (barrier.missing == 0) fail("more arrive at a barrier than it was made for");
  barrier.bytes += expecting;
  --barrier.missing;
  complete(barrier);
}

bool barrier_is_past(uint32_t address, uint32_t parity) {
  BlockState& block = block_at(address);
  return (barrier_at(block, address).phase & 1) != parity;
}

// ---- copies

void copy_small(uint32_t shared, const void* global, unsigned bytes, unsigned existing) {
  if (existing > 0 && reinterpret_cast<uintptr_t>(global) % bytes != 0)
    fail("cp.async from an address that is not aligned");
  if (existing > bytes) fail("cp.async of more bytes than it copies");
  unsigned char* const to = at_shared(shared, bytes);
  Fiber& fiber = me();
  if (fiber.copies.empty()) fiber.copies.emplace_back();
  const auto copy = [=, &fiber] {
    Fiber* const before = std::exchange(machine.current, &fiber);
    std::memset(to, 0, bytes);
    std::memcpy(to, global, existing);
    note_written(shared, bytes);
    machine.current = before;
  };
  if (toss()) {
    copy();
  } else {
    fiber.copies.back().push_back(copy);
  }
}

void commit_copies() { me().copies.emplace_back(); }

void wait_copies(int groups) {
  Fiber& fiber = me();
  while (static_cast<int>(fiber.copies.size()) > groups + 1) {
    run_all(fiber.copies.front());
    fiber.copies.pop_front();
  }
  if (groups < 0) {  // of any group
    for (auto& group : fiber.copies) run_all(group);
    fiber.copies.clear();
  }
}

void arrive_with_copies(uint32_t barrier) {
  Fiber& fiber = me();
  auto work = std::make_shared<std::vector<std::function<void()>>>();
  for (auto& group : fiber.copies) {
    for (auto& copy : group) work->push_back(std::move(copy));
    group.clear();
  }
  copy_behind(*fiber.state, [=, &fiber] {
    run_all(*work);
    Fiber* const before = std::exchange(machine.current, &fiber);
    barrier_arrive(barrier);
    machine.current = before;
  });
}

void copy_bulk(uint32_t shared, const void* global, unsigned bytes, uint32_t barrier) {
  if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0) fail("a bulk copy that is not aligned");
  at_shared(shared, 16);
  at_shared(shared + bytes - 16, 16);
  BlockState* const block = me().state;
  copy_behind(*block, [=] {
    std::memcpy(block->shared + (shared - kSharedBase), global, bytes);
    bytes_arrived(*block, barrier, bytes);
  });
}

void copy_out(std::function<void()> copy) {
  if (toss()) {
    copy();
  } else {
    me().copies_out.push_back(std::move(copy));
  }
}
void wait_copies_out() {
  run_all(me().copies_out);
  me().copies_out.clear();
}

bool encode_tensor_map(TensorMap& map, const TensorMapRequest& r) {
  map = {};
  if (reinterpret_cast<uintptr_t>(r.address) % 16 != 0 || r.rank < 3 || r.rank > 5) return false;
  for (unsigned i = 0; i < r.rank; ++i) {
    const uint64_t stride = i > 0 ? r.strides[i - 1] : r.element;
    if (r.sizes[i] == 0 || r.sizes[i] > uint64_t{1} << 32 || r.box[i] == 0 || r.box[i] > 256) return false;
    if (r.steps[i] != 1 || (i > 0 && (stride % 16 != 0 || stride >= uint64_t{1} << 40))) return false;
    map.size[i] = r.sizes[i];
    map.stride[i] = stride;
    map.box[i] = static_cast<uint16_t>(r.box[i]);
  }
  const unsigned row = r.box[0] * r.element;
  // An H200 lets shorter rows begin as far apart as the swizzle is wide; no kernel wants that.
  if (row % 16 != 0 || (r.swizzle > 0 && row != r.swizzle)) return false;
  map.rank = static_cast<uint8_t>(r.rank);
  map.element = static_cast<uint8_t>(r.element);
  map.swizzle = static_cast<uint8_t>(r.swizzle);
  map.rounds = r.rounds;
  map.base = static_cast<const unsigned char*>(r.address);
  return true;
}

namespace {

struct Box {
  TensorMap map;
  uint32_t shared;
  std::array<int, 5> at{};

  Box(const TensorMap& of, uint32_t in_shared, const int* coordinates, int rank) : map(of), shared(in_shared) {
    if (rank != map.rank) fail("a tensor copy of another rank than its map");
    if (shared % 128 != 0) fail("a tensor copy of shared memory that is not aligned");
    at_shared(shared, 16);
    at_shared(shared + bytes() / 16 * 16 - 16, 16);
    std::copy(coordinates, coordinates + rank, at.begin());
    // An H200 ends such a copy with an illegal instruction.
    if (at[0] * map.element % 16 != 0) fail("a tensor copy that begins at no multiple of 16 bytes");
  }
  unsigned bytes() const {
    unsigned bytes = map.element;
    for (int i = 0; i < map.rank; ++i) bytes *= map.box[i];
    return bytes;
  }
  // Of each element: where it lies in the tensor (outside it null), and its address in shared memory.
  template <class With>
  void walk(const With& with) const {
    std::array<unsigned, 5> in_box{};
    for (uint32_t linear = shared;; linear += map.element) {
      bool inside = true;
      const unsigned char* place = map.base;
      for (size_t i = 0; i < map.rank; ++i) {
        const int64_t c = int64_t{at[i]} + in_box[i];
        inside &= c >= 0 && c < static_cast<int64_t>(map.size[i]);
        place += c * static_cast<int64_t>(map.stride[i]);
      }
      with(inside ? place : nullptr, map.swizzle > 0 ? linear ^ ((linear >> 3) & (map.swizzle - 16u)) : linear);
      size_t i = 0;
      while (i < map.rank && ++in_box[i] == map.box[i]) in_box[i++] = 0;
      if (i == map.rank) break;
    }
  }
};

}  // namespace

void copy_tensor(uint32_t shared, const TensorMap& map, uint32_t barrier, const int* coordinates, int rank,
                 uint32_t blocks) {
  const Box box(map, shared, coordinates, rank);
  if (blocks >> machine.grid->blocks.size() != 0) fail("a tensor copy to a block that is not in the cluster");
  for (const auto& one : machine.grid->blocks) {
    BlockState* const block = one.get();
    if (blocks == 0 ? block != me().state : (blocks >> block->rank & 1) == 0) continue;
    if (block->alive == 0) fail("a tensor copy to a block that has ended");
    copy_behind(*block, [=] {
      box.walk([&](const unsigned char* from, uint32_t address) {
        unsigned char* const to = block->shared + (address - kSharedBase);
        std::memset(to, 0, box.map.element);
        if (from != nullptr) std::memcpy(to, from, box.map.element);
        if (box.map.rounds) {
          uint32_t bits;
          std::memcpy(&bits, to, 4);
          bits = round_to_tf32(bits, true);
          std::memcpy(to, &bits, 4);
        }
      });
      bytes_arrived(*block, barrier, box.bytes());
    });
  }
}

void copy_tensor_out(uint32_t shared, const TensorMap& map, const int* coordinates, int rank) {
  const Box box(map, shared, coordinates, rank);
  for (uint32_t b = 0; b < box.bytes(); b += 16) {
    if (!is_fenced(shared + b)) fail("a tensor copy out of shared memory that was written and not fenced");
  }
  BlockState* const block = me().state;
  copy_out([=] {
    box.walk([&](const unsigned char* to, uint32_t address) {
      if (to == nullptr) return;
      std::memcpy(const_cast<unsigned char*>(to), block->shared + (address - kSharedBase), box.map.element);
    });
  });
}

// ---- tensor cores

namespace {

struct Tile {
  uint32_t address, group_bytes, leading_bytes, swizzle;
};
Tile tile_of(uint64_t descriptor) {
  const uint64_t mode = descriptor >> 62;
  if (mode == 0 || (descriptor >> 49 & 7) != 0) fail("wgmma with a descriptor that is not emulated");
  return {static_cast<uint32_t>(descriptor & 0x3FFF) << 4, static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4,
          static_cast<uint32_t>(descriptor >> 16 & 0x3FFF) << 4, (128u >> (mode - 1)) - 16};
}

// The elements in 16 bytes.
void widen(WgmmaType type, const unsigned char* from, float* values) {
  static const std::vector<float> halves = [] {
    std::vector<float> all(1 << 16);
    for (uint32_t bits = 0; bits < all.size(); ++bits) all[bits] = float_of_half(static_cast<uint16_t>(bits));
    return all;
  }();
  if (type == WgmmaType::kTf32) {
    uint32_t bits[4];
    std::memcpy(bits, from, 16);
    for (int i = 0; i < 4; ++i) values[i] = float_of(bits[i] & 0xFFFFE000u);
    return;
  }
  uint16_t bits[8];
  std::memcpy(bits, from, 16);
  for (int i = 0; i < 8; ++i) values[i] = type == WgmmaType::kHalf ? halves[bits[i]] : float_of_bfloat(bits[i]);
}
int piece_elements(WgmmaType type) { return type == WgmmaType::kTf32 ? 4 : 8; }

// The 16 bytes of a tile in which byte `linear` lies, widened; NaN if they were not fenced.
void load_piece(const Tile& tile, WgmmaType type, uint32_t linear, float* values) {
  const uint32_t place = (linear ^ ((linear >> 3) & tile.swizzle)) & ~15u;
  const unsigned char* const at = at_shared(place, 16);
  if (is_fenced(place)) {
    widen(type, at, values);
  } else {
    std::fill(values, values + piece_elements(type), NAN);
  }
}

// 32 bytes of the sum's dimension of row `row`.
void row_of(const Tile& tile, WgmmaType type, bool major, int row, float (&values)[16]) {
  const uint32_t at = static_cast<uint32_t>(row);
  if (!major) {
    const uint32_t linear = tile.address + at / 8 * tile.group_bytes + at % 8 * (tile.swizzle + 16);
    load_piece(tile, type, linear, values);
    load_piece(tile, type, linear + 16, values + piece_elements(type));
    return;
  }
  if (type == WgmmaType::kTf32) fail("wgmma along rows of TF32");
  const uint32_t row_bytes = tile.swizzle + 16, elements = row_bytes / 2;
  const uint32_t first = tile.address + at / elements * tile.leading_bytes + at % elements * 2;
  for (uint32_t k = 0; k < 16; ++k) {
    float piece[8];
    load_piece(tile, type, first + k / 8 * tile.group_bytes + k % 8 * row_bytes, piece);
    values[k] = piece[at % 8];
  }
}

// 32 bytes of registers.
void elements_of(WgmmaType type, const uint32_t (&words)[8], float (&values)[16]) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(words);
  widen(type, bytes, values);
  widen(type, bytes + 16, values + piece_elements(type));
}

void multiply(const WarpgroupProduct& p) {
  const int count = 2 * piece_elements(p.type);
  const int lane = static_cast<int>(me().index.x % 32), warp = static_cast<int>(me().index.x / 32 % 4);
  float a[2][16], b[16];
  for (int half = 0; half < 2; ++half) {
    if (p.a_in_registers) {
      elements_of(p.type, p.a_words[half], a[half]);
    } else {
      row_of(tile_of(p.a), p.type, p.a_major, 16 * warp + lane / 4 + 8 * half, a[half]);
    }
  }
  for (int j = 0; j < p.n / 8; ++j) {
    for (int c = 0; c < 2; ++c) {
      row_of(tile_of(p.b), p.type, p.b_major, 8 * j + 2 * (lane % 4) + c, b);
      for (int half = 0; half < 2; ++half) {
        float& sum = *p.sums[static_cast<size_t>(4 * j + 2 * half + c)];
        double exact = p.accumulate ? sum : 0;
        for (int k = 0; k < count; ++k) exact += static_cast<double>(a[half][k]) * b[k];
        sum = static_cast<float>(exact);
      }
    }
  }
}

}  // namespace

void multiply_later(const void* instruction, WarpgroupProduct product, const uint32_t (&registers)[4]) {
  if (product.a_in_registers) {
    Words words{};
    std::copy(registers, registers + 4, words.word);
    words = meet(instruction, words, [](Words(&lanes)[32]) {
      Words old[32];
      std::memcpy(old, lanes, sizeof(old));
      for (int i = 0; i < 32; ++i) {
        for (int word = 0; word < 16; ++word) {  // row + 8 from the ninth on
          lanes[i].word[word] = old[i / 4 * 4 + word % 4].word[word / 8 + word / 4 % 2 * 2];
        }
      }
    });
    std::memcpy(product.a_words, words.word, sizeof(product.a_words));
  }
  Fiber& fiber = me();
  if (fiber.products.empty()) fiber.products.emplace_back();
  fiber.products.back().push_back([product = std::move(product)] { multiply(product); });
  if (machine.random() % 4 == 0) {  // in order, so all until this one
    for (auto& group : fiber.products) run_all(group);
  }
}

void multiply_now(const void* instruction, WgmmaType type, float* const (&sums)[4], const uint32_t (&a)[4],
                  const uint32_t (&b)[2]) {
  Words words{};
  std::copy(a, a + 4, words.word);
  std::copy(b, b + 2, words.word + 4);
  for (int i = 0; i < 4; ++i) words.word[6 + i] = bits_of(*sums[i]);
  words.word[10] = static_cast<uint32_t>(type);
  words = meet(instruction, words, [](Words(&lanes)[32]) {
    const auto of_type = static_cast<WgmmaType>(lanes[0].word[10]);
    const auto row = [&](int lane, int first, int second, float (&values)[16]) {  // of a quad's words
      uint32_t quad[8];
      for (int t = 0; t < 4; ++t) {
        quad[t] = lanes[lane / 4 * 4 + t].word[first];
        quad[4 + t] = lanes[lane / 4 * 4 + t].word[second];
      }
      elements_of(of_type, quad, values);
    };
    float rows[2][8][16], columns[8][16];
    for (int g = 0; g < 8; ++g) {
      row(4 * g, 0, 2, rows[0][g]);
      row(4 * g, 1, 3, rows[1][g]);
      row(4 * g, 4, 5, columns[g]);
    }
    const int count = 2 * piece_elements(of_type);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        double sum = float_of(lanes[lane].word[6 + i]);
        for (int k = 0; k < count; ++k) {
          sum += static_cast<double>(rows[i / 2][lane / 4][k]) * columns[2 * (lane % 4) + i % 2][k];
        }
        lanes[lane].word[6 + i] = bits_of(static_cast<float>(sum));
      }
    }
  });
  for (int i = 0; i < 4; ++i) *sums[i] = float_of(words.word[6 + i]);
}

void commit_products() {
  if (me().products.empty()) me().products.emplace_back();
  me().products.emplace_back();
}

void wait_products(int groups) {
  Fiber& fiber = me();
  while (static_cast<int>(fiber.products.size()) > groups + 1) {
    run_all(fiber.products.front());
    fiber.products.pop_front();
  }
  if (fiber.products.size() == 1 && fiber.products.front().empty()) fiber.products.clear();
}

// ---- numbers

float float_of_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return float_of(static_cast<uint32_t>(bits & 0x8000) << 16 | 0x7F800000u | fraction << 13);
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                               : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25));
}

uint16_t half_of_float(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7FFF);
  if (value == 0) return static_cast<uint16_t>(sign);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int shift = std::max(exponent - 11, -24);  // of the last place
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -shift)));
  // 1024 units of the smallest shift are the smallest normal number, and so on upwards.
  return static_cast<uint16_t>(sign | (units + (static_cast<uint32_t>(shift + 24) << 10)));
}

uint16_t bfloat_of_float(float value) {
  const uint32_t bits = bits_of(value);
  if (std::isnan(value)) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

unsigned round_to_tf32(unsigned bits, bool ties_to_even) {
  if ((bits & 0x7F800000u) == 0x7F800000u) return (bits & 0x7FFFFFu) != 0 ? 0x7FFFFFFFu : bits;
  return (bits + (ties_to_even ? 0xFFFu + (bits >> 13 & 1) : 0x1000u)) & 0xFFFFE000u;
}

}  // namespace emulator
