// Code points of UTF-8 text and the classes that tokenizers split by, of Unicode 16 (PyPI's
// tokenizers, tiktoken and regex have the same; tests/runtime/text compares counts).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// One of four, in the two low bits of a code point's flags.
enum class CharClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

inline constexpr uint8_t kClassBits = 3;
inline constexpr uint8_t kWordFlag = 4;      // \w: alphabetic, mark, digit, connector, joiner
inline constexpr uint8_t kUnstableFlag = 8;  // may change under NFC, or compose with what precedes

// flags[code point], for all 0x110000 of them. Built at the first call; from then on constant.
const uint8_t* UnicodeFlags();

// The byte offset of the first byte that is not well-formed UTF-8 (overlong forms, surrogates and
// what is cut off at the end are not), or -1.
int64_t FindInvalidUtf8(std::string_view text);

// How many bytes at the end begin a character that is not complete; 0 to 3, of valid text so far.
int64_t IncompleteTail(std::string_view text);

// Bytes of the character that begins with this byte, of valid UTF-8.
inline int Utf8Length(uint8_t first) {
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// The code point at p, of valid UTF-8.
inline uint32_t DecodeUtf8(const uint8_t* p) {
  if (p[0] < 0x80) return p[0];
  if (p[0] < 0xe0) return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
  if (p[0] < 0xf0) return (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
  return (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

void AppendUtf8(uint32_t code_point, std::string& text);

}  // namespace millrace
