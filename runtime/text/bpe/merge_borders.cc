#include "runtime/text/bpe/merge_borders.h"

#include <algorithm>
#include <bit>

#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

bool IsTail(uint8_t byte) { return (byte & 0xc0) == 0x80; }
void SetBit(std::vector<uint64_t>& bits, uint64_t at) { bits[at >> 6] |= uint64_t{1} << (at & 63); }

// Whether exactly [begin, end) is one character, by its first byte and its length.
bool IsCharacter(std::string_view bytes, size_t begin, size_t end) {
  const auto first = static_cast<uint8_t>(bytes[begin]);
  return !IsTail(first) && static_cast<size_t>(Utf8Length(first)) == end - begin;
}

}  // namespace

MergeBorders::MergeBorders(std::span<const std::string_view> tokens) : cut_(65536 / 64) {
  std::vector<uint64_t> hashes;
  for (const std::string_view token : tokens) AddToken(token, hashes);
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  const uint64_t bits = std::bit_ceil(std::max<uint64_t>(hashes.size() * 8, 4096));
  shift_ = 64 - std::countr_zero(bits);
  pairs_.resize(bits / 64);
  for (const uint64_t hash : hashes) SetBit(pairs_, hash >> shift_);
}

void MergeBorders::AddToken(std::string_view bytes, std::vector<uint64_t>& hashes) {
  const auto* const p = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto next_start = [&](size_t at) {
    while (at < bytes.size() && IsTail(p[at])) ++at;
    return at;
  };
  size_t left = 0;
  for (size_t right = next_start(1); right < bytes.size();) {
    const size_t end = next_start(right + 1);
    if (IsCharacter(bytes, left, right) && IsCharacter(bytes, right, end))
      hashes.push_back(PairHash(DecodeUtf8(p + left), DecodeUtf8(p + right)));
    else
      SetBit(cut_, uint64_t{p[right - 1]} << 8 | p[right]);
    left = right;
    right = end;
  }
}

// Without a branch on the answer, which nobody foretells.
int MergeBorders::PartEnds(const uint8_t* begin, const uint8_t* end, int most,
                           const uint8_t** ends) const {
  const uint64_t* const pairs = pairs_.data();
  const uint64_t* const cut = cut_.data();
  int count = 0;
  uint32_t left = DecodeUtf8(begin);
  const uint8_t* p = begin + Utf8Length(*begin);
  while (p < end && count < most) {
    const uint32_t right = DecodeUtf8(p);
    const uint64_t pair = PairHash(left, right) >> shift_;
    const uint64_t bytes = uint64_t{p[-1]} << 8 | p[0];
    const uint64_t spanned = pairs[pair >> 6] >> (pair & 63) | cut[bytes >> 6] >> (bytes & 63);
    ends[count] = p;
    count += (spanned & 1) == 0;
    left = right;
    p += Utf8Length(*p);
  }
  if (count < most) ends[count++] = end;
  return count;
}

}  // namespace millrace
