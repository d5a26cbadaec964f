// Byte-pair encoding of one piece: begins with a token per byte and merges the pair of lowest rank,
// the leftmost of equals, until none is left that merges.
//
// Time     A short piece scans its pairs for each merge, n * merges; a long one keeps a heap,
//          n log n.
// Threads  const calls may run at once, each with its own scratch.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace millrace {

struct BpeMerge {
  int32_t left, right;  // ids
  int32_t result;       // the id of both together
};

// (left, right) -> rank << 32 | result, an open table.
class PairRanks {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};  // no such pair: above every rank

  explicit PairRanks(const std::vector<BpeMerge>& merges);

  uint64_t Find(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    for (uint64_t at = Place(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].value;
      if (slots_[at].key == kNone) return kNone;
    }
  }

 private:
  struct Slot {
    uint64_t key = kNone, value = kNone;
  };
  uint64_t Place(uint64_t key) const { return key * 0x9e3779b97f4a7c15u >> shift_; }

  std::vector<Slot> slots_;
  uint64_t mask_;
  int shift_;
};

// Memory that calls of BpeModel::Encode use again.
struct BpeScratch {
  struct Symbol {
    uint32_t id;
    int32_t before, behind;  // places; -1: none
    uint64_t value;          // of the pair with the symbol behind; kNone: none merges
  };
  struct Candidate {
    uint64_t value;
    int32_t place;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

class BpeModel {
 public:
  // bytes[b]: the id of byte b. A merge that is given twice has the rank of the last.
  BpeModel(const std::array<int32_t, 256>& bytes, const std::vector<BpeMerge>& merges);

  // Appends the ids of a piece that is not empty.
  void Encode(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;

  int32_t ByteId(uint8_t byte) const { return bytes_[byte]; }
  const PairRanks& ranks() const { return ranks_; }

 private:
  void EncodeShort(std::string_view piece, std::vector<int32_t>& ids) const;
  void EncodeLong(std::string_view piece, BpeScratch& scratch, std::vector<int32_t>& ids) const;
  uint64_t PairOfBytes(uint8_t a, uint8_t b) const { return pairs_of_bytes_[a << 8 | b]; }

  std::array<int32_t, 256> bytes_;
  PairRanks ranks_;
  std::vector<uint64_t> pairs_of_bytes_;  // ranks_ for two bytes, which is where each piece begins
};

}  // namespace millrace
