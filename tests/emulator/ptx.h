// PTX as csrc/ writes it, for the emulator: rewrite.py turns each asm statement into a Code and its operands.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "machine.h"

namespace emulator {

struct Operand {
  void* place;  // of an output
  uint64_t value;
  char kind;  // the letter of the constraint
};
template <char kKind, class T>
Operand out(T& place) {
  static_assert(sizeof(T) == (kKind == 'h' ? 2 : kKind == 'l' || kKind == 'd' ? 8 : 4), "the register's size");
  return {&place, 0, kKind};
}
template <char kKind, class T>
Operand in(const T& value) {
  Operand operand{nullptr, 0, kKind};
  if constexpr (std::is_pointer_v<T>) {
    operand.value = reinterpret_cast<uint64_t>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    std::memcpy(&operand.value, &value, sizeof(T));
  } else {
    operand.value = static_cast<uint64_t>(value);
    if (kKind == 'r' || kKind == 'n') operand.value = static_cast<uint32_t>(operand.value);
  }
  return operand;
}

struct Argument {
  enum Kind { kOperand, kLocal, kNumber, kList, kAddress, kNothing, kRank, kCluster } kind = kNothing;
  int64_t number = 0;  // or which operand or local register
  std::vector<Argument> parts;  // of a list; of an address and its coordinates
};

class Frame;
struct Instruction {
  std::vector<std::string> opcode;  // its words
  std::vector<Argument> arguments;
  int guard = -1;  // local register
  bool guard_negated = false;
  size_t target = 0;  // of a branch
  void (*run)(const Instruction&, Frame&) = nullptr;
  // What the opcode says: bytes of an element and how many; global memory; transposed; columns of wgmma.
  unsigned bytes = 0, count = 1;
  bool global = false, transposed = false;
  int columns = 0;
  WgmmaType type = WgmmaType::kHalf;

  bool has(const char* word) const {
    for (const std::string& one : opcode) {
      if (one == word) return true;
    }
    return false;
  }
};

class Code {
 public:
  explicit Code(const char* text);
  void run(Operand* operands) const;

 private:
  std::vector<Instruction> instructions_;
};

}  // namespace emulator
