#include "runtime/text/unicode/unicode.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/text/unicode/unicode_tables.h"

namespace millrace {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

std::vector<uint8_t> ExpandFlags() {
  std::vector<uint8_t> flags(kCodePoints);
  for (int i = 0; i < kClassRangesCount; ++i) {
    const uint32_t first = kClassRanges[i] >> 4;
    const uint32_t end = i + 1 < kClassRangesCount ? kClassRanges[i + 1] >> 4 : kCodePoints;
    std::fill(flags.begin() + first, flags.begin() + end, uint8_t(kClassRanges[i] & 15));
  }
  return flags;
}

bool IsTail(uint8_t byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the well-formed character at p, or 0 (Unicode 16, table 3-7).
int WellFormed(const uint8_t* p, int64_t left) {
  if (p[0] < 0x80) return 1;
  if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
  const int length = Utf8Length(p[0]);
  if (left < length) return 0;
  for (int i = 1; i < length; ++i)
    if (!IsTail(p[i])) return 0;
  if (p[0] == 0xe0 && p[1] < 0xa0) return 0;   // overlong
  if (p[0] == 0xed && p[1] >= 0xa0) return 0;  // surrogates
  if (p[0] == 0xf0 && p[1] < 0x90) return 0;   // overlong
  if (p[0] == 0xf4 && p[1] >= 0x90) return 0;  // beyond 0x10ffff
  return length;
}

}  // namespace

const uint8_t* UnicodeFlags() {
  static const std::vector<uint8_t> flags = ExpandFlags();
  return flags.data();
}

int64_t FindInvalidUtf8(std::string_view text) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t at = 0; at < size;) {
    uint64_t word;
    if (at + 8 <= size) {
      std::memcpy(&word, begin + at, 8);
      if ((word & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    const int length = WellFormed(begin + at, size - at);
    if (length == 0) return at;
    at += length;
  }
  return -1;
}

int64_t IncompleteTail(std::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t back = 1; back <= std::min<int64_t>(3, size); ++back) {
    const auto byte = static_cast<uint8_t>(text[size - back]);
    if (!IsTail(byte)) return byte >= 0xc2 && Utf8Length(byte) > back ? back : 0;
  }
  return 0;
}

void AppendUtf8(uint32_t code, std::string& text) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12);
    } else {
      add(0xf0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3f));
    }
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

}  // namespace millrace
