// Cutting text into the pieces that byte-level BPE merges within. Each pattern is a regular
// expression that files of tokenizers spell out; here it is a scanner of its own, chosen by that
// exact text. All of them match every character, so pieces lie end to end.
//
// Source: the expressions themselves; \p{L}, \p{N} and \s are unicode/unicode.h's classes, and
// (?i:'s) also matches 's with a long s (U+017F), as both oniguruma and Rust's regex have it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

enum class SplitPattern {
  kWhole,   // one piece
  kGpt2,    // GPT-2's
  kLlama3,  // cl100k's, which Llama 3 has, too: numbers by three digits
  kQwen2,   // the same, but numbers digit by digit
  kDigits,  // each number character alone, what is between them together
};

// The pattern of this regular expression; none: not known.
std::optional<SplitPattern> PatternOfRegex(std::string_view regex);
std::string_view RegexOfPattern(SplitPattern pattern);  // of those that PatternOfRegex knows

// The ends of the first pieces of valid UTF-8 that is not empty, at most `most` of them, which is
// at least 1; returns how many.
int PieceEnds(SplitPattern pattern, const uint8_t* begin, const uint8_t* end, int most,
              const uint8_t** ends);

// Calls back with each piece.
template <typename Use>
void ForEachPiece(SplitPattern pattern, std::string_view text, const Use& use) {
  constexpr int kMost = 64;
  const uint8_t* ends[kMost];
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* const end = p + text.size();
  while (p < end) {
    const int count = PieceEnds(pattern, p, end, kMost, ends);
    for (int i = 0; i < count; ++i) {
      use(std::string_view(reinterpret_cast<const char*>(p), static_cast<size_t>(ends[i] - p)));
      p = ends[i];
    }
  }
}

}  // namespace millrace
