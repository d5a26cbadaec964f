// Byte-pair encoding without a merge: the longest token that the text begins with, then the next,
// and a step back where two neighbours do not go together. Linear in the text, whatever its length.
//
// Why the ids are those of merging
//   1. What happens within a stretch of text that no merge has crossed yet depends on the stretch
//      alone. So a token comes about by the same merges wherever it does: those of its own bytes.
//      All other merges that would make it never happen, and a token that its own bytes do not
//      become never does.
//   2. Tokens t1 ... tn are the ids of their text if and only if each two neighbours are the ids of
//      theirs: the first merge across a border would happen in those two alone, too. So they are
//      found as any path, which is the only one.
//   3. Merges happen in order of rank where each token's ranks above those of its two parts. Then
//      whether two tokens stay apart is seen from the symbols on both sides of their border, as
//      they were at each time: two lists of a few symbols.
// A list of merges that breaks 3 has no walk; BpeModel merges.
//
// Threads  Immutable; calls may run at once, each with its own scratch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/bpe/bpe.h"
#include "runtime/text/bpe/byte_trie.h"

namespace millrace {

class TokenWalk {
 public:
  static constexpr size_t kMostTokenBytes = 1024;

  // bytes[id]: of each token that a merge makes. None: the merges are out of order, or a token is
  // longer than kMostTokenBytes.
  static std::optional<TokenWalk> Make(const BpeModel& model, const std::vector<BpeMerge>& merges,
                                       const std::vector<std::string>& bytes);

  // Writes the ids of a piece that is not empty to `ids`, which has a place for each of its bytes;
  // returns how many they are. scratch: memory to be used again.
  size_t Encode(std::string_view piece, std::vector<uint64_t>& scratch, int32_t* ids) const;

 private:
  // Symbols are numbered by rank: the 256 bytes, then what merges make.
  struct Symbol {
    uint32_t left, right;  // symbols
    uint32_t shorter;      // the longest other symbol that this one begins with; kNone
    int32_t id;
  };
  static constexpr uint32_t kNone = ByteTrie::kNone;

  TokenWalk(std::vector<Symbol> symbols, const std::vector<std::string_view>& bytes);

  bool StayApart(uint32_t left, uint32_t right) const;
  uint32_t Merged(uint32_t left, uint32_t right) const;
  int32_t IdOf(uint32_t symbol) const;
  size_t FindPath(const uint8_t* text, size_t size, ByteTrie::Match first, uint64_t* dead,
                  int32_t* path) const;

  std::vector<Symbol> symbols_;
  std::vector<uint32_t> lengths_;  // bytes of each symbol
  ByteTrie trie_;
  std::vector<uint64_t> maybe_;   // bits, by hash: pairs that merge, and others by chance
  std::vector<uint32_t> merged_;  // an open table: symbol << kTagBits | tag; kNone: free
  int bit_shift_, shift_;
  std::optional<int32_t> id_offset_;  // id - symbol of all that is merged, where they are in order
};

}  // namespace millrace
