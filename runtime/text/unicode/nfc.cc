#include "runtime/text/unicode/nfc.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "runtime/text/unicode/unicode.h"
#include "runtime/text/unicode/unicode_tables.h"

namespace millrace {
namespace {

// Hangul by arithmetic (The Unicode Standard, 3.12).
constexpr uint32_t kSyllable = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11a7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

uint64_t PairKey(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

struct NfcTables {
  std::unordered_map<uint32_t, uint64_t> parts;     // first << 32 | second; second 0: a single
  std::unordered_map<uint64_t, uint32_t> composed;  // by first << 32 | second

  NfcTables() {
    for (int i = 0; i < kNfcSinglesCount; i += 2)
      parts[kNfcSingles[i]] = PairKey(kNfcSingles[i + 1], 0);
    for (int i = 0; i < kNfcPairsCount; i += 3) {
      const uint32_t first = kNfcPairs[i + 1] & 0x7fffffffu;
      parts[kNfcPairs[i]] = PairKey(first, kNfcPairs[i + 2]);
      if (first == kNfcPairs[i + 1]) composed[PairKey(first, kNfcPairs[i + 2])] = kNfcPairs[i];
    }
  }
};

const NfcTables& Tables() {
  static const NfcTables tables;
  return tables;
}

uint8_t CombiningClass(uint32_t code) {
  const uint32_t* const end = kNfcMarks + kNfcMarksCount;
  const uint32_t* const above = std::upper_bound(kNfcMarks, end, code << 8 | 0xff);
  return above == kNfcMarks ? 0 : static_cast<uint8_t>(above[-1] & 0xff);
}

struct Mark {
  uint32_t code;
  uint8_t combining;
};

void Decompose(uint32_t code, std::vector<Mark>& out) {
  if (code - kSyllable < kSyllables) {
    const uint32_t index = code - kSyllable;
    out.push_back({kLead + index / (kVowels * kTails), 0});
    out.push_back({kVowel + index / kTails % kVowels, 0});
    if (index % kTails != 0) out.push_back({kTail + index % kTails, 0});
    return;
  }
  const auto found = Tables().parts.find(code);
  if (found == Tables().parts.end()) return out.push_back({code, CombiningClass(code)});
  Decompose(static_cast<uint32_t>(found->second >> 32), out);
  if (const auto second = static_cast<uint32_t>(found->second)) Decompose(second, out);
}

// The primary composite of both, or 0.
uint32_t Compose(uint32_t first, uint32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels)
    return kSyllable + ((first - kLead) * kVowels + second - kVowel) * kTails;
  if (first - kSyllable < kSyllables && (first - kSyllable) % kTails == 0 && second > kTail &&
      second < kTail + kTails)
    return first + second - kTail;
  const auto found = Tables().composed.find(PairKey(first, second));
  return found == Tables().composed.end() ? 0 : found->second;
}

// Sorts runs of marks by class, equal ones in their order.
void Order(std::vector<Mark>& marks) {
  for (size_t i = 0; i < marks.size();) {
    if (marks[i].combining == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < marks.size() && marks[end].combining != 0) ++end;
    std::stable_sort(marks.begin() + i, marks.begin() + end,
                     [](const Mark& a, const Mark& b) { return a.combining < b.combining; });
    i = end;
  }
}

// A mark composes with the last starter unless something of its class or above, or another
// starter, stands between.
void AppendComposed(const std::vector<Mark>& marks, std::vector<uint32_t>& composed,
                    std::string& out) {
  composed.clear();
  size_t starter = SIZE_MAX;
  int last_class = -1;  // of what stands behind the starter; -1: nothing
  for (const Mark& mark : marks) {
    if (starter != SIZE_MAX && last_class < mark.combining) {
      if (const uint32_t both = Compose(composed[starter], mark.code)) {
        composed[starter] = both;
        continue;
      }
    }
    if (mark.combining == 0) {
      starter = composed.size();
      last_class = -1;
    } else {
      last_class = mark.combining;
    }
    composed.push_back(mark.code);
  }
  for (const uint32_t code : composed) AppendUtf8(code, out);
}

// The first character from p on that may change, or `end`.
const uint8_t* FirstUnstable(const uint8_t* p, const uint8_t* end) {
  const uint8_t* const flags = UnicodeFlags();
  while (p < end) {
    uint64_t word;
    if (end - p >= 8 && (std::memcpy(&word, p, 8), (word & 0x8080808080808080u) == 0)) {
      p += 8;  // ASCII
      continue;
    }
    if (*p >= 0x80 && (flags[DecodeUtf8(p)] & kUnstableFlag) != 0) return p;
    p += Utf8Length(*p);
  }
  return end;
}

}  // namespace

bool IsSurelyNfc(std::string_view text) {
  const auto* const end = reinterpret_cast<const uint8_t*>(text.data()) + text.size();
  return FirstUnstable(end - text.size(), end) == end;
}

std::string ToNfc(std::string_view text) {
  const uint8_t* const flags = UnicodeFlags();
  const auto* done = reinterpret_cast<const uint8_t*>(text.data());  // up to here it is in `out`
  const uint8_t* const end = done + text.size();
  std::string out;
  out.reserve(text.size());
  std::vector<Mark> marks;
  std::vector<uint32_t> composed;
  const auto copy = [&](const uint8_t* until) {
    out.append(reinterpret_cast<const char*>(done), static_cast<size_t>(until - done));
    done = until;
  };
  for (;;) {
    const uint8_t* p = FirstUnstable(done, end);
    if (p == end) break;
    // From the stable character before it to the next one, which composes with nothing before it.
    if (p > done) {
      const uint8_t* start = p - 1;
      while ((*start & 0xc0) == 0x80) --start;
      copy(start);
    }
    while (p < end && (flags[DecodeUtf8(p)] & kUnstableFlag) != 0) p += Utf8Length(*p);
    marks.clear();
    for (; done < p; done += Utf8Length(*done)) Decompose(DecodeUtf8(done), marks);
    Order(marks);
    AppendComposed(marks, composed, out);
  }
  copy(end);
  return out;
}

}  // namespace millrace
