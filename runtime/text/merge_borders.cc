#include "runtime/text/merge_borders.h"

#include "runtime/text/unicode.h"

namespace millrace {
namespace {

bool IsTail(uint8_t byte) { return (byte & 0xc0) == 0x80; }
bool Bit(const std::vector<uint64_t>& bits, uint64_t at) { return bits[at >> 6] >> (at & 63) & 1; }
void SetBit(std::vector<uint64_t>& bits, uint64_t at) { bits[at >> 6] |= uint64_t{1} << (at & 63); }

// Whether exactly [begin, end) is one character, by its first byte and its length.
bool IsCharacter(std::string_view bytes, size_t begin, size_t end) {
  const auto first = static_cast<uint8_t>(bytes[begin]);
  return !IsTail(first) && static_cast<size_t>(Utf8Length(first)) == end - begin;
}

}  // namespace

MergeBorders::MergeBorders() : pairs_((size_t{1} << kPairBits) / 64), cut_(65536 / 64) {}

void MergeBorders::AddToken(std::string_view bytes) {
  const auto* const p = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto next_start = [&](size_t at) {
    while (at < bytes.size() && IsTail(p[at])) ++at;
    return at;
  };
  size_t left = 0;
  for (size_t right = next_start(1); right < bytes.size();) {
    const size_t end = next_start(right + 1);
    if (IsCharacter(bytes, left, right) && IsCharacter(bytes, right, end))
      SetBit(pairs_, PairPlace(DecodeUtf8(p + left), DecodeUtf8(p + right)));
    else
      SetBit(cut_, uint64_t{p[right - 1]} << 8 | p[right]);
    left = right;
    right = end;
  }
}

const uint8_t* MergeBorders::Next(const uint8_t* begin, const uint8_t* end) const {
  uint32_t left = DecodeUtf8(begin);
  for (const uint8_t* p = begin + Utf8Length(*begin); p < end; p += Utf8Length(*p)) {
    const uint32_t right = DecodeUtf8(p);
    if (!Bit(pairs_, PairPlace(left, right)) && !Bit(cut_, uint64_t{p[-1]} << 8 | p[0])) return p;
    left = right;
  }
  return end;
}

}  // namespace millrace
