#include "ptx.h"

#include <cctype>
#include <cstdlib>
#include <map>
#include <stdexcept>

namespace emulator {

// What one execution of an asm statement works on.
class Frame {
 public:
  static constexpr size_t kLocals = 4;

  explicit Frame(Operand* operands) : operands_(operands) {}

  uint64_t get(const Argument& a) const {
    switch (a.kind) {
      case Argument::kOperand: {
        const Operand& operand = operands_[a.number];
        if (operand.place == nullptr) return operand.value;
        uint64_t value = 0;
        std::memcpy(&value, operand.place, bytes_of(operand.kind));
        return value;
      }
      case Argument::kLocal: return locals_[a.number];
      case Argument::kNumber: return static_cast<uint64_t>(a.number);
      case Argument::kAddress: return get(a.parts[0]) + static_cast<uint64_t>(a.number);
      case Argument::kRank: return static_cast<uint64_t>(self().block->rank);
      case Argument::kCluster: return self().block->index.x / static_cast<unsigned>(self().block->cluster);
      default: return 0;
    }
  }
  uint32_t word(const Argument& a) const { return static_cast<uint32_t>(get(a)); }
  void set(const Argument& a, uint64_t value) {
    if (a.kind == Argument::kLocal) {
      locals_[a.number] = value;
    } else if (a.kind == Argument::kOperand) {
      const Operand& operand = operands_[a.number];
      std::memcpy(operand.place, &value, bytes_of(operand.kind));
    }
  }
  void* place(const Argument& a) const { return operands_[a.number].place; }
  uint64_t local(int which) const { return locals_[which]; }

  uint32_t tested_barrier = 0, tested_parity = 0;
  size_t next = 0;  // instruction

 private:
  static size_t bytes_of(char kind) { return kind == 'h' ? 2 : kind == 'l' || kind == 'd' ? 8 : 4; }

  Operand* operands_;
  uint64_t locals_[kLocals] = {};
};

namespace {

using Handler = void (*)(const Instruction&, Frame&);

const Argument& part(const Argument& a, unsigned index) { return a.kind == Argument::kList ? a.parts[index] : a; }

void load(const Instruction& i, Frame& f) {
  const unsigned bytes = i.bytes, count = i.count;
  const uint64_t address = f.get(i.arguments[1]);
  if (i.global && address % (bytes * count) != 0) fail("a load from global memory that is not aligned");
  const auto* from = i.global ? reinterpret_cast<const unsigned char*>(address)
                              : at_shared(static_cast<uint32_t>(address), bytes * count);
  for (unsigned v = 0; v < count; ++v) {
    uint64_t value = 0;
    std::memcpy(&value, from + v * bytes, bytes);
    f.set(part(i.arguments[0], v), value);
  }
}

void store(const Instruction& i, Frame& f) {
  const unsigned bytes = i.bytes, count = i.count;
  const uint64_t address = f.get(i.arguments[0]);
  if (i.global && address % (bytes * count) != 0) fail("a store to global memory that is not aligned");
  auto* to = i.global ? reinterpret_cast<unsigned char*>(address)
                      : at_shared(static_cast<uint32_t>(address), bytes * count);
  for (unsigned v = 0; v < count; ++v) {
    const uint64_t value = f.get(part(i.arguments[1], v));
    std::memcpy(to + v * bytes, &value, bytes);
  }
  if (!i.global) note_written(static_cast<uint32_t>(address), bytes * count);
}

// Matrices of 8 rows of 16 bytes, whose addresses lanes 8 j .. 8 j + 7 have.
void load_matrices(const Instruction& i, Frame& f) {
  Words words{};
  const uint32_t address = f.word(i.arguments[1]);
  std::memcpy(words.word, at_shared(address, 16), 16);
  words.word[4] = i.transposed;
  words = meet(&i, words, [](Words(&lanes)[32]) {
    uint16_t matrix[4][8][8];
    for (int lane = 0; lane < 32; ++lane) std::memcpy(matrix[lane / 8][lane % 8], lanes[lane].word, 16);
    const bool transposed = lanes[0].word[4] != 0;
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) {
        const int row = lane / 4, column = lane % 4 * 2;
        const uint16_t low = transposed ? matrix[m][column][row] : matrix[m][row][column];
        const uint16_t high = transposed ? matrix[m][column + 1][row] : matrix[m][row][column + 1];
        lanes[lane].word[m] = static_cast<uint32_t>(high) << 16 | low;
      }
    }
  });
  for (unsigned m = 0; m < (i.has("x2") ? 2 : 4); ++m) f.set(part(i.arguments[0], m), words.word[m]);
}

void store_matrices(const Instruction& i, Frame& f) {
  Words words{};
  for (unsigned m = 0; m < 4; ++m) words.word[m] = f.word(part(i.arguments[1], m));
  words.word[4] = i.transposed;
  words = meet(&i, words, [](Words(&lanes)[32]) {
    uint16_t matrix[4][8][8];
    const bool transposed = lanes[0].word[4] != 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      for (int m = 0; m < 4; ++m) {
        (transposed ? matrix[m][column][row] : matrix[m][row][column]) = static_cast<uint16_t>(lanes[lane].word[m]);
        (transposed ? matrix[m][column + 1][row]
                    : matrix[m][row][column + 1]) = static_cast<uint16_t>(lanes[lane].word[m] >> 16);
      }
    }
    for (int lane = 0; lane < 32; ++lane) std::memcpy(lanes[lane].word, matrix[lane / 8][lane % 8], 16);
  });
  const uint32_t address = f.word(i.arguments[0]);
  std::memcpy(at_shared(address, 16), words.word, 16);
  note_written(address, 16);
}

void move_matrix(const Instruction& i, Frame& f) {
  Words words{};
  words.word[0] = f.word(i.arguments[1]);
  words = meet(&i, words, [](Words(&lanes)[32]) {
    uint16_t matrix[8][8];
    for (int lane = 0; lane < 32; ++lane) std::memcpy(&matrix[lane / 4][lane % 4 * 2], lanes[lane].word, 4);
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      lanes[lane].word[0] = static_cast<uint32_t>(matrix[column + 1][row]) << 16 | matrix[column][row];
    }
  });
  f.set(i.arguments[0], words.word[0]);
}

void multiply_warp(const Instruction& i, Frame& f) {
  float* sums[4];
  uint32_t a[4], b[2];
  for (unsigned v = 0; v < 4; ++v) {
    sums[v] = static_cast<float*>(f.place(i.arguments[0].parts[v]));
    a[v] = f.word(i.arguments[1].parts[v]);
  }
  for (unsigned v = 0; v < 2; ++v) b[v] = f.word(i.arguments[2].parts[v]);
  multiply_now(&i, i.type, sums, a, b);
}

// wgmma.mma_async....m64nNkK.f32.x.x {sums}, A, B, accumulate, 1, 1 (, A along rows) (, B along rows)
void multiply_warpgroup(const Instruction& i, Frame& f) {
  WarpgroupProduct product{};
  product.type = i.type;
  product.n = i.columns;
  const std::vector<Argument>& a = i.arguments;
  product.a_in_registers = a[1].kind == Argument::kList;
  uint32_t registers[4] = {};
  if (product.a_in_registers) {
    for (unsigned v = 0; v < 4; ++v) registers[v] = f.word(a[1].parts[v]);
  } else {
    product.a = f.get(a[1]);
  }
  product.b = f.get(a[2]);
  product.accumulate = f.get(a[3]) != 0;
  product.b_major = a.size() > 6 && f.get(a.back()) != 0;
  product.a_major = a.size() > 7 && f.get(a[6]) != 0;
  product.sums.reserve(a[0].parts.size());
  for (const Argument& sum : a[0].parts) product.sums.push_back(static_cast<float*>(f.place(sum)));
  if (static_cast<int>(product.sums.size()) != product.n / 2) fail("wgmma with another number of sums than its shape");
  multiply_later(&i, std::move(product), registers);
}

void copy_async(const Instruction& i, Frame& f) {
  const auto bytes = static_cast<unsigned>(f.get(i.arguments[2]));
  const unsigned existing = i.arguments.size() > 3 ? f.word(i.arguments[3]) : bytes;
  copy_small(f.word(i.arguments[0]), reinterpret_cast<const void*>(f.get(i.arguments[1])), bytes, existing);
}

void copy_in_bulk(const Instruction& i, Frame& f) {
  if (i.has("tensor")) {
    const bool out = i.opcode[5] == "global";
    const Argument& tensor = i.arguments[out ? 0 : 1];
    int coordinates[5] = {};
    const std::vector<Argument>& list = tensor.parts[1].parts;
    for (size_t c = 0; c < list.size(); ++c) coordinates[c] = static_cast<int>(f.get(list[c]));
    const auto& map = *reinterpret_cast<const TensorMap*>(f.get(tensor.parts[0]));
    const int rank = static_cast<int>(list.size());
    if (out) {
      copy_tensor_out(f.word(i.arguments[1]), map, coordinates, rank);
    } else {
      copy_tensor(f.word(i.arguments[0]), map, f.word(i.arguments[2]), coordinates, rank,
                  i.has("multicast::cluster") ? f.word(i.arguments[3]) : 0);
    }
  } else if (i.opcode[3] == "global") {
    const uint32_t shared = f.word(i.arguments[1]), bytes = f.word(i.arguments[2]);
    auto* const to = reinterpret_cast<unsigned char*>(f.get(i.arguments[0]));
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || bytes % 16 != 0) fail("a bulk copy that is not aligned");
    for (uint32_t b = 0; b < bytes; b += 16) {
      if (!is_fenced(shared + b)) fail("a bulk copy out of shared memory that was written and not fenced");
    }
    copy_out([=] {
      for (uint32_t b = 0; b < bytes; b += 16) std::memcpy(to + b, at_shared(shared + b, 16), 16);
    });
  } else {
    copy_bulk(f.word(i.arguments[0]), reinterpret_cast<const void*>(f.get(i.arguments[1])), f.word(i.arguments[2]),
              f.word(i.arguments[3]));
  }
}

void test_barrier(const Instruction& i, Frame& f) {
  f.tested_barrier = f.word(i.arguments[1]);
  f.tested_parity = f.word(i.arguments[2]);
  f.set(i.arguments[0], barrier_is_past(f.tested_barrier, f.tested_parity));
}

void nothing(const Instruction&, Frame&) {}

// By the first words of the opcode; the longest match counts.
const std::map<std::string, Handler>& handlers() {
  static const std::map<std::string, Handler> all = {
      {"ld", load},
      {"st", store},
      {"ldmatrix", load_matrices},
      {"stmatrix", store_matrices},
      {"movmatrix", move_matrix},
      {"mma.sync", multiply_warp},
      {"wgmma.mma_async", multiply_warpgroup},
      {"wgmma.fence", [](const Instruction& i, Frame&) { meet(&i, {}, nullptr); }},
      {"wgmma.commit_group", [](const Instruction&, Frame&) { commit_products(); }},
      {"wgmma.wait_group",
       [](const Instruction& i, Frame& f) {
         wait_products(static_cast<int>(f.get(i.arguments[0])));
         meet(&i, {}, nullptr);  // the products are the warp's
       }},
      {"cp.async.ca", copy_async},
      {"cp.async.cg", copy_async},
      {"cp.async.commit_group", [](const Instruction&, Frame&) { commit_copies(); }},
      {"cp.async.wait_group",
       [](const Instruction& i, Frame& f) { wait_copies(static_cast<int>(f.get(i.arguments[0]))); }},
      {"cp.async.wait_all", [](const Instruction&, Frame&) { wait_copies(-1); }},
      {"cp.async.mbarrier.arrive.noinc",
       [](const Instruction& i, Frame& f) { arrive_with_copies(f.word(i.arguments[0])); }},
      {"cp.async.bulk", copy_in_bulk},
      {"cp.async.bulk.commit_group", nothing},
      {"cp.async.bulk.wait_group", [](const Instruction&, Frame&) { wait_copies_out(); }},
      {"mbarrier.init",
       [](const Instruction& i, Frame& f) { barrier_init(f.word(i.arguments[0]), f.word(i.arguments[1])); }},
      {"mbarrier.arrive", [](const Instruction& i, Frame& f) { barrier_arrive(f.word(i.arguments[1])); }},
      {"mbarrier.arrive.expect_tx",
       [](const Instruction& i, Frame& f) { barrier_arrive(f.word(i.arguments[1]), f.word(i.arguments[2])); }},
      {"mbarrier.test_wait", test_barrier},
      {"mbarrier.try_wait", test_barrier},
      {"bar.sync",
       [](const Instruction& i, Frame& f) {
         named_barrier(static_cast<int>(f.get(i.arguments[0])), f.word(i.arguments[1]), true);
       }},
      {"bar.arrive",
       [](const Instruction& i, Frame& f) {
         named_barrier(static_cast<int>(f.get(i.arguments[0])), f.word(i.arguments[1]), false);
       }},
      {"bra",
       [](const Instruction& i, Frame& f) {
         if (i.target < f.next) {  // back to a test of a barrier
           const std::string what = "the barrier at " + std::to_string(f.tested_barrier) + ", parity " +
                                    std::to_string(f.tested_parity);
           wait_until(what, [&] { return barrier_is_past(f.tested_barrier, f.tested_parity); });
         }
         f.next = i.target;
       }},
      {"barrier.cluster.arrive", [](const Instruction&, Frame&) { cluster_arrive(); }},
      {"barrier.cluster.wait", [](const Instruction&, Frame&) { cluster_wait(); }},
      {"mapa", [](const Instruction& i,
                  Frame& f) { f.set(i.arguments[0], map_address(f.word(i.arguments[1]), f.word(i.arguments[2]))); }},
      {"fence.proxy.async", [](const Instruction&, Frame&) { fence_to_async(); }},
      {"fence.mbarrier_init", nothing},
      {"griddepcontrol.launch_dependents", nothing},
      {"griddepcontrol.wait", [](const Instruction&, Frame&) { await_grids_before(); }},
      {"setmaxnreg.inc", [](const Instruction& i, Frame& f) { take_registers(f.word(i.arguments[0])); }},
      {"setmaxnreg.dec", [](const Instruction& i, Frame& f) { take_registers(f.word(i.arguments[0])); }},
      {".reg", nothing},
      {"mov", [](const Instruction& i, Frame& f) { f.set(i.arguments[0], f.get(i.arguments[1])); }},
      {"setp.ne",
       [](const Instruction& i, Frame& f) { f.set(i.arguments[0], f.word(i.arguments[1]) != f.word(i.arguments[2])); }},
      {"selp",
       [](const Instruction& i, Frame& f) {
         f.set(i.arguments[0], f.get(f.get(i.arguments[3]) != 0 ? i.arguments[1] : i.arguments[2]));
       }},
      {"cvt.rn.tf32",
       [](const Instruction& i, Frame& f) { f.set(i.arguments[0], round_to_tf32(f.word(i.arguments[1]), true)); }},
      {"cvt.rna.tf32",
       [](const Instruction& i, Frame& f) { f.set(i.arguments[0], round_to_tf32(f.word(i.arguments[1]), false)); }},
  };
  return all;
}
void read_opcode(Instruction& i) {
  const std::string& last = i.opcode.back();
  if (std::strchr("bufs", last[0]) != nullptr && std::isdigit(static_cast<unsigned char>(last[1]))) {
    i.bytes = static_cast<unsigned>(std::stoi(last.substr(1))) / 8;
  }
  i.count = i.has("v4") ? 4 : i.has("v2") ? 2 : 1;
  i.global = i.has("global");
  i.transposed = i.has("trans");
  i.type = i.has("tf32") ? WgmmaType::kTf32 : i.has("bf16") ? WgmmaType::kBfloat : WgmmaType::kHalf;
  for (const std::string& word : i.opcode) {
    if (word.compare(0, 4, "m64n") == 0) i.columns = std::atoi(word.c_str() + 4);
  }
}

Handler handler_of(const std::vector<std::string>& opcode, const std::string& text) {
  std::string name;
  Handler best = nullptr;
  for (const std::string& word : opcode) {
    name += (name.empty() ? "" : ".") + word;
    const auto found = handlers().find(name);
    if (found != handlers().end()) best = found->second;
  }
  if (best == nullptr) throw std::runtime_error("the emulator does not know the instruction " + text);
  return best;
}

// One statement's arguments.
class Parser {
 public:
  Parser(const std::string& text, std::map<std::string, int>& locals) : text_(text), locals_(locals) {}

  std::vector<Argument> list(char end) {
    std::vector<Argument> all;
    skip();
    while (at_ < text_.size() && text_[at_] != end) {
      all.push_back(one());
      skip();
      if (at_ < text_.size() && text_[at_] == ',') ++at_;
      skip();
    }
    ++at_;
    return all;
  }

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  Argument one() {
    skip();
    Argument a;
    if (text_[at_] == '{' || text_[at_] == '[') {
      const char end = text_[at_] == '{' ? '}' : ']';
      a.kind = end == '}' ? Argument::kList : Argument::kAddress;
      ++at_;
      a.parts = list(end);
      return a;
    }
    std::string token;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || std::strchr("%_-", text_[at_]))) {
      token += text_[at_++];
    }
    if (token.empty()) throw std::runtime_error("the emulator cannot read the arguments " + text_);
    if (token == "_") return a;
    if (token == "%%cluster_ctarank") return a.kind = Argument::kRank, a;
    if (token == "%%clusterid") {
      at_ += 2;  // .x
      return a.kind = Argument::kCluster, a;
    }
    if (token[0] == '%') {
      a.kind = Argument::kOperand;
      a.number = std::stoi(token.substr(1));
    } else if (std::isdigit(static_cast<unsigned char>(token[0])) || token[0] == '-') {
      a.kind = Argument::kNumber;
      a.number = std::stoll(token);
    } else {
      a.kind = Argument::kLocal;
      a.number = locals_.emplace(token, static_cast<int>(locals_.size())).first->second;
    }
    return a;
  }

  const std::string& text_;
  std::map<std::string, int>& locals_;
  size_t at_ = 0;
};

std::vector<std::string> statements_of(const std::string& text) {
  std::vector<std::string> all;
  std::string one;
  for (const char c : text + ";") {
    if (c != ';' && c != '\n') {
      one += c;
      continue;
    }
    const size_t first = one.find_first_not_of(" \t{}");
    if (first != std::string::npos) all.push_back(one.substr(first));
    one.clear();
  }
  return all;
}

}  // namespace

Code::Code(const char* text) {
  std::map<std::string, int> locals;
  std::map<std::string, size_t> labels;
  std::vector<std::string> branches;
  for (std::string statement : statements_of(text)) {
    if (statement.back() == ':') {
      labels[statement.substr(0, statement.size() - 1)] = instructions_.size();
      continue;
    }
    Instruction i;
    if (statement[0] == '@') {
      const size_t space = statement.find(' ');
      i.guard_negated = statement[1] == '!';
      const std::string name = statement.substr(i.guard_negated ? 2 : 1, space - (i.guard_negated ? 2 : 1));
      i.guard = locals.emplace(name, static_cast<int>(locals.size())).first->second;
      statement = statement.substr(space + 1);
    }
    const size_t space = statement.find(' ');
    const std::string opcode = statement.substr(0, space);
    std::string rest = space == std::string::npos ? "" : statement.substr(space + 1);
    std::string word;
    for (const char c : opcode + ".") {
      if (c == '.' && !word.empty() && word != ".") {
        i.opcode.push_back(word);
        word.clear();
        continue;
      }
      if (c != '.' || i.opcode.empty()) word += c;
    }
    i.run = handler_of(i.opcode, statement);
    read_opcode(i);
    const bool branches_off = i.opcode[0] == "bra";
    branches.push_back(branches_off ? rest : "");
    if (!branches_off && opcode != ".reg") i.arguments = Parser(rest, locals).list('\0');
    instructions_.push_back(std::move(i));
  }
  if (locals.size() > Frame::kLocals) throw std::runtime_error("the emulator has too few registers for one statement");
  for (size_t i = 0; i < branches.size(); ++i) {
    if (!branches[i].empty()) instructions_[i].target = labels.at(branches[i]);
  }
}

void Code::run(Operand* operands) const {
  Frame frame(operands);
  while (frame.next < instructions_.size()) {
    const Instruction& i = instructions_[frame.next++];
    if (i.guard >= 0 && (frame.local(i.guard) != 0) == i.guard_negated) continue;
    i.run(i, frame);
  }
}

}  // namespace emulator
