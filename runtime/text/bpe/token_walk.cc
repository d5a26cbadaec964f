#include "runtime/text/bpe/token_walk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr uint32_t kBytes = 256;
constexpr int kTagBits = 9;
constexpr uint32_t kTagMask = (1u << kTagBits) - 1;

uint64_t PairHash(uint32_t left, uint32_t right) {
  return (uint64_t{left} << 32 | right) * 0x9e3779b97f4a7c15u;
}
uint32_t Tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 8) & kTagMask; }

// A token and the merge that makes it.
struct Made {
  uint64_t rank;
  int32_t left, right, id;
};

// The last merge of a token's bytes; none: they do not become one token.
std::optional<Made> LastMerge(const BpeModel& model, std::string_view bytes) {
  std::vector<uint32_t> ids;
  for (const char byte : bytes) ids.push_back(static_cast<uint32_t>(model.ByteId(uint8_t(byte))));
  while (ids.size() > 1) {
    uint64_t best = PairRanks::kNone;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const uint64_t value = model.ranks().Find(ids[i], ids[i + 1]);
      if (value < best) best = value, place = i;
    }
    if (best == PairRanks::kNone) return std::nullopt;
    if (ids.size() == 2)
      return Made{best >> 32, int32_t(ids[0]), int32_t(ids[1]), int32_t(uint32_t(best))};
    ids[place] = static_cast<uint32_t>(best);
    ids.erase(ids.begin() + int64_t(place) + 1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<TokenWalk> TokenWalk::Make(const BpeModel& model, const std::vector<BpeMerge>& merges,
                                         const std::vector<std::string>& bytes) {
  std::vector<bool> seen(bytes.size());
  std::vector<Made> made;
  for (const BpeMerge& merge : merges) {
    const std::string& token = bytes[size_t(merge.result)];
    if (token.size() > kMostTokenBytes) return std::nullopt;
    if (seen[size_t(merge.result)]) continue;
    seen[size_t(merge.result)] = true;
    const std::optional<Made> last = LastMerge(model, token);
    if (last && last->id == merge.result) made.push_back(*last);
  }
  if (made.size() + kBytes > ByteTrie::kMostValue) return std::nullopt;
  std::sort(made.begin(), made.end(), [](const Made& a, const Made& b) { return a.rank < b.rank; });

  std::array<char, kBytes> all_bytes;
  std::iota(all_bytes.begin(), all_bytes.end(), char(0));
  std::vector<uint32_t> symbol_of_id(bytes.size(), kNone);
  std::vector<Symbol> symbols;
  std::vector<std::string_view> texts;
  for (uint32_t byte = 0; byte < kBytes; ++byte) {
    const int32_t id = model.ByteId(uint8_t(byte));
    symbol_of_id[size_t(id)] = byte;
    symbols.push_back({byte, byte, kNone, id});
    texts.emplace_back(&all_bytes[byte], 1);
  }
  for (const Made& token : made) {
    const uint32_t left = symbol_of_id[size_t(token.left)];
    const uint32_t right = symbol_of_id[size_t(token.right)];
    if (left == kNone || right == kNone) return std::nullopt;  // made later than what it makes
    symbol_of_id[size_t(token.id)] = static_cast<uint32_t>(symbols.size());
    symbols.push_back({left, right, kNone, token.id});
    texts.emplace_back(bytes[size_t(token.id)]);
  }
  return TokenWalk(std::move(symbols), texts);
}

namespace {

ByteTrie TrieOf(const std::vector<std::string_view>& texts) {
  std::vector<ByteTrie::Entry> entries;
  for (uint32_t i = 0; i < texts.size(); ++i) entries.push_back({texts[i], i});
  return ByteTrie(std::move(entries));
}

}  // namespace

TokenWalk::TokenWalk(std::vector<Symbol> symbols, const std::vector<std::string_view>& bytes)
    : symbols_(std::move(symbols)), trie_(TrieOf(bytes)) {
  const uint64_t capacity = std::bit_ceil(symbols_.size() * 3 / 2);
  merged_.assign(capacity, kNone);
  shift_ = 64 - std::countr_zero(capacity);
  const uint64_t bits = std::bit_ceil(symbols_.size() * 8);
  maybe_.assign(bits / 64, 0);
  bit_shift_ = 64 - std::countr_zero(bits);
  if (symbols_.size() > kBytes) id_offset_ = symbols_[kBytes].id - int32_t(kBytes);
  for (uint32_t i = 0; i < symbols_.size(); ++i) {
    const std::string_view text = bytes[i];
    lengths_.push_back(static_cast<uint32_t>(text.size()));
    const auto* const begin = reinterpret_cast<const uint8_t*>(text.data());
    symbols_[i].shorter = trie_.Longest(begin, begin + text.size() - 1).value;
    if (i < kBytes) continue;
    const uint64_t hash = PairHash(symbols_[i].left, symbols_[i].right);
    uint64_t at = hash >> shift_;
    while (merged_[at] != kNone) at = (at + 1) & (capacity - 1);
    merged_[at] = i << kTagBits | Tag(hash);
    const uint64_t bit = hash >> bit_shift_;
    maybe_[bit >> 6] |= uint64_t{1} << (bit & 63);
    if (id_offset_ && symbols_[i].id != int32_t(i) + *id_offset_) id_offset_.reset();
  }
}

inline int32_t TokenWalk::IdOf(uint32_t symbol) const {
  if (symbol >= kBytes && id_offset_) return static_cast<int32_t>(symbol) + *id_offset_;
  return symbols_[symbol].id;
}

// The symbol of both; kNone: they do not merge. The bits are a part of the table's size: most
// questions end there, without a miss of the processor's cache.
inline uint32_t TokenWalk::Merged(uint32_t left, uint32_t right) const {
  const uint64_t hash = PairHash(left, right);
  const uint64_t bit = hash >> bit_shift_;
  if ((maybe_.data()[bit >> 6] >> (bit & 63) & 1) == 0) return kNone;
  const uint32_t* const table = merged_.data();
  for (uint64_t at = hash >> shift_;; at = (at + 1) & (merged_.size() - 1)) {
    if (table[at] == kNone) return kNone;
    if ((table[at] & kTagMask) != Tag(hash)) continue;
    const Symbol& symbol = symbols_.data()[table[at] >> kTagBits];
    if (symbol.left == left && symbol.right == right) return table[at] >> kTagBits;
  }
}

// Back in time from where both are whole: the later merge of the two is undone, and what stands at
// the border then must not have merged before. Of one rank the left one happened first.
inline bool TokenWalk::StayApart(uint32_t left, uint32_t right) const {
  const Symbol* const symbols = symbols_.data();
  uint32_t limit = kNone;  // a merge at the border would have happened if its symbol is below
  for (;;) {
    if (Merged(left, right) < limit) return false;
    if (left > right) {
      if (left < kBytes) return true;
      limit = left;
      left = symbols[left].right;
    } else {
      if (right < kBytes) return true;
      limit = right + 1;
      right = symbols[right].left;
    }
  }
}

// Writes the symbols of a text of `size` bytes to `path`; returns how many. dead: a bit for each
// place, all 0, of those that no path goes on from.
size_t TokenWalk::FindPath(const uint8_t* text, size_t size, ByteTrie::Match first, uint64_t* dead,
                           int32_t* path) const {
  size_t count = 0;
  size_t at = 0;
  ByteTrie::Match next = first;
  for (;;) {
    const size_t end = at + next.length;
    if ((dead[end >> 6] >> (end & 63) & 1) == 0 &&
        (count == 0 || StayApart(uint32_t(path[count - 1]), next.value))) {
      path[count++] = static_cast<int32_t>(next.value);
      if (end == size) return count;
      at = end;
      next = trie_.Longest(text + at, text + size);
      continue;
    }
    while (symbols_[next.value].shorter == kNone) {  // no way on from here: a step back
      dead[at >> 6] |= uint64_t{1} << (at & 63);
      MR_CHECK(count > 0, "{} bytes have no path of tokens", size);
      next.value = static_cast<uint32_t>(path[--count]);
      at -= lengths_[next.value];
    }
    next.value = symbols_[next.value].shorter;
    next.length = lengths_[next.value];
  }
}

size_t TokenWalk::Encode(std::string_view piece, std::vector<uint64_t>& scratch,
                         int32_t* ids) const {
  const auto* const text = reinterpret_cast<const uint8_t*>(piece.data());
  const ByteTrie::Match first = trie_.Longest(text, text + piece.size());
  if (first.length == piece.size()) {
    ids[0] = IdOf(first.value);
    return 1;
  }
  uint64_t few_dead = 0;
  uint64_t* dead = &few_dead;
  if (piece.size() > 63) {
    scratch.assign(piece.size() / 64 + 1, 0);
    dead = scratch.data();
  }
  const size_t count = FindPath(text, piece.size(), first, dead, ids);
  for (size_t i = 0; i < count; ++i) ids[i] = IdOf(static_cast<uint32_t>(ids[i]));
  return count;
}

}  // namespace millrace
