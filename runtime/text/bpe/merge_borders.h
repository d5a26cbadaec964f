// Places in a piece that no token spans: what lies on their two sides is merged apart, with the
// same result. So a long piece, such as a clause of Chinese, falls into short ones, which are seen
// again and again.
//
// A place lies between two characters. A token that spans it has both of them in it, next to each
// other, or ends within one of them; so it is enough to know which pairs of characters stand in
// tokens, and for tokens that cut characters the two bytes at the place. A set of pairs that
// sometimes says yes for no costs time and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace millrace {

class MergeBorders {
 public:
  // tokens: the bytes of all that merges make.
  explicit MergeBorders(std::span<const std::string_view> tokens);

  // The ends of the first parts of valid UTF-8 that is not empty: such places, then `end`. At most
  // `most` of them, which is at least 1; returns how many.
  int PartEnds(const uint8_t* begin, const uint8_t* end, int most, const uint8_t** ends) const;

 private:
  static uint64_t PairHash(uint32_t left, uint32_t right) {
    return (uint64_t{left} << 21 | right) * 0x9e3779b97f4a7c15u;
  }
  void AddToken(std::string_view bytes, std::vector<uint64_t>& hashes);

  // Bits, by the hash's upper ones: characters that stand so in a token. Some eight for each pair,
  // of which known vocabularies have up to 30,000: it is asked for each character, and stays in the
  // processor's first cache.
  std::vector<uint64_t> pairs_;
  int shift_;
  std::vector<uint64_t> cut_;  // bits, by last byte << 8 | first byte: in a token that cuts one
};

}  // namespace millrace
