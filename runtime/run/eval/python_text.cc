#include "runtime/run/eval/python_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr uint32_t kNone = 0xffffffff;

// The character at text[at], and how many bytes it has; kNone: no UTF-8.
std::pair<uint32_t, size_t> Decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || at + size > text.size()) return {kNone, 1};
  uint32_t c = first & (0xff >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {kNone, 1};
    c = c << 6 | (byte(i) & 0x3f);
  }
  const uint32_t least = size == 4 ? 0x10000 : size == 3 ? 0x800 : 0x80;
  const bool surrogate = c >= 0xd800 && c < 0xe000;
  return c < least || c > 0x10ffff || surrogate ? std::pair{kNone, size_t{1}} : std::pair{c, size};
}

void Append(uint32_t c, std::string& text) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xc0 | c >> 6), tail(0)};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xe0 | c >> 12), tail(6), tail(0)};
  } else {
    text += {static_cast<char>(0xf0 | c >> 18), tail(12), tail(6), tail(0)};
  }
}

bool IsSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool Within(uint32_t c, uint32_t first, uint32_t last) { return c >= first && c <= last; }

// Ranges without letters that have a case, beyond Latin-1: marks, scripts, signs, pictures.
bool IsCaseless(uint32_t c) {
  constexpr std::array<std::pair<uint32_t, uint32_t>, 16> kRanges = {{{0x300, 0x344},
                                                                      {0x346, 0x36f},
                                                                      {0x590, 0x8ff},
                                                                      {0x900, 0x109f},
                                                                      {0xe00, 0xeff},
                                                                      {0x1100, 0x11ff},
                                                                      {0x2000, 0x20ff},
                                                                      {0x2190, 0x245f},
                                                                      {0x2500, 0x2bff},
                                                                      {0x3000, 0x9fff},
                                                                      {0xac00, 0xd7a3},
                                                                      {0xf900, 0xfaff},
                                                                      {0xfe00, 0xfe0f},
                                                                      {0xff00, 0xff20},
                                                                      {0x1f000, 0x1f0ff},
                                                                      {0x1f300, 0x1faff}}};
  return std::any_of(kRanges.begin(), kRanges.end(),
                     [c](const auto& range) { return Within(c, range.first, range.second); });
}

// Beyond Latin-1; kNone where it is not known, or depends on what stands beside it.
uint32_t SmallBeyondLatin1(uint32_t c) {
  const bool even_pairs =
      Within(c, 0x100, 0x12f) || Within(c, 0x132, 0x137) || Within(c, 0x14a, 0x177);
  if (even_pairs) return c | 1;
  const bool odd_pairs = Within(c, 0x139, 0x148) || Within(c, 0x179, 0x17e);
  if (odd_pairs) return c % 2 == 1 ? c + 1 : c;
  if (c == 0x138 || c == 0x149 || c == 0x17f) return c;
  if (c == 0x178) return 0xff;
  if (Within(c, 0x391, 0x3ab) && c != 0x3a2 && c != 0x3a3) return c + 0x20;  // not the sigma
  if (Within(c, 0x3ac, 0x3ce) || Within(c, 0x430, 0x45f)) return c;
  if (Within(c, 0x410, 0x42f)) return c + 0x20;
  if (Within(c, 0x400, 0x40f)) return c + 0x50;
  return IsCaseless(c) ? c : kNone;
}

uint32_t Small(uint32_t c) {
  if (c > 0xff) return SmallBeyondLatin1(c);
  const bool capital = Within(c, 'A', 'Z') || (Within(c, 0xc0, 0xde) && c != 0xd7);
  return capital ? c + 0x20 : c;
}

// Of the first character.
uint32_t Capital(uint32_t c) {
  if (c > 0xff) return IsCaseless(c) ? c : kNone;
  if (c == 0xff) return 0x178;
  if (c == 0xb5) return 0x39c;
  const bool small = Within(c, 'a', 'z') || (Within(c, 0xe0, 0xfe) && c != 0xf7);
  return small ? c - 0x20 : c;
}

template <typename F>
void ForEachCharacter(std::string_view text, F&& fn) {
  for (size_t at = 0; at < text.size();) {
    const auto [c, size] = Decode(text, at);
    fn(at, c);
    at += size;
  }
}

}  // namespace

void RequireUtf8(std::string_view text, std::string_view what) {
  ForEachCharacter(text, [&](size_t at, uint32_t c) {
    MR_REQUIRE(ErrorCode::kData, c != kNone, "{}: byte offset {} is not UTF-8", what, at);
  });
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string_view StrippedRight(std::string_view text) {
  size_t end = 0;
  ForEachCharacter(text, [&](size_t at, uint32_t c) {
    if (!IsSpace(c)) end = at + Decode(text, at).second;
  });
  return text.substr(0, end);
}

std::string_view Stripped(std::string_view text) {
  text = StrippedRight(text);
  size_t begin = 0;
  while (begin < text.size()) {
    const auto [c, size] = Decode(text, begin);
    if (!IsSpace(c)) break;
    begin += size;
  }
  return text.substr(begin);
}

int64_t CountWords(std::string_view text) {
  int64_t runs = 0;
  bool in_run = false;
  ForEachCharacter(text, [&](size_t, uint32_t c) {
    if (IsSpace(c) && !in_run) ++runs;
    in_run = IsSpace(c);
  });
  return runs + 1;
}

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (size_t found; (found = text.find(from)) != text.npos;) {
    result.append(text.substr(0, found)).append(to);
    text.remove_prefix(found + from.size());
  }
  return result.append(text);
}

std::string WithoutBrackets(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '[' ? text.find_first_of("]\n", at + 1) : text.npos;
    if (end != text.npos && text[end] == ']') {
      at = end + 1;
    } else {
      result += text[at++];
    }
  }
  return result;
}

std::string Capitalized(std::string_view text) {
  std::string result;
  ForEachCharacter(text, [&](size_t at, uint32_t c) {
    if (at == 0 && c == 0xdf) {  // sharp s
      result += "Ss";
      return;
    }
    const uint32_t changed = at == 0 ? Capital(c) : Small(c);
    MR_REQUIRE(ErrorCode::kData, changed != kNone,
               "the capital or small form of character U+{:04X} is not known, at byte offset {} of "
               "\"{}\"",
               c, at, text);
    Append(changed, result);
  });
  return result;
}

}  // namespace millrace
