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
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

class MergeBorders {
 public:
  MergeBorders();

  // Tells of a token's bytes. Those of all merges must be told before the first question.
  void AddToken(std::string_view bytes);

  // The first such place behind `begin` in valid UTF-8, or `end`.
  const uint8_t* Next(const uint8_t* begin, const uint8_t* end) const;

 private:
  static constexpr int kPairBits = 22;  // 512 KiB; known vocabularies have up to 200,000 pairs
  static uint64_t PairPlace(uint32_t left, uint32_t right) {
    return (uint64_t{left} << 21 | right) * 0x9e3779b97f4a7c15u >> (64 - kPairBits);
  }

  std::vector<uint64_t> pairs_;  // bits, by PairPlace: characters that stand so in a token
  std::vector<uint64_t> cut_;    // bits, by last byte << 8 | first byte: in a token that cuts one
};

}  // namespace millrace
