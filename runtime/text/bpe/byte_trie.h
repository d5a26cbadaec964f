// Strings of bytes with a number each, as a double array: the longest that a text begins with, for
// one load per byte.
//
// A node's child by byte b lies in slot base ^ b, so that children share a block of 256 slots. A
// slot keeps the byte that leads to it, which tells a child from another node's: no two nodes have
// one base. Nodes are placed depth first; what is walked together lies together.
//
// Threads  Immutable.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace {

class ByteTrie {
 public:
  static constexpr uint32_t kMostValue = (1u << 23) - 2;
  static constexpr uint32_t kNone = ~0u;

  struct Entry {
    std::string_view bytes;  // not empty
    uint32_t value;          // up to kMostValue
  };
  struct Match {
    uint32_t value;  // kNone: no entry
    size_t length;
  };

  explicit ByteTrie(std::vector<Entry> entries);  // in any order, no bytes twice

  // The longest entry that [begin, end) begins with.
  Match Longest(const uint8_t* begin, const uint8_t* end) const {
    const Slot* const slots = slots_.data();
    Match match = {kNone, 0};
    uint32_t base = root_base_;
    for (const uint8_t* p = begin; p < end; ++p) {
      const Slot& slot = slots[base ^ *p];
      if ((slot.value_byte & kByteMask) != *p) break;
      if (slot.value_byte > kByteMask)
        match = {(slot.value_byte >> kByteBits) - 1, size_t(p + 1 - begin)};
      base = slot.base;
    }
    return match;
  }

 private:
  static constexpr int kByteBits = 9;
  static constexpr uint32_t kByteMask = (1u << kByteBits) - 1;
  static constexpr uint32_t kFree = 256;  // no byte

  struct Slot {
    uint32_t base = 0;  // 0: a leaf, whose children would lie in block 0, where all slots are free
    uint32_t value_byte = kFree;  // value + 1, or 0 if no entry ends here; and the byte
  };
  friend class ByteTrieBuilder;

  std::vector<Slot> slots_;
  uint32_t root_base_ = 0;
};

}  // namespace millrace
