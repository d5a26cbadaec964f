#include "runtime/text/bpe/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace millrace {
namespace {

// Up to here a scan of all pairs costs less than a heap.
constexpr int kShort = 64;

// A heap's order: lowest rank on top, then the leftmost. Pairs of one rank are one pair, so that
// the result in a value's low half changes nothing.
bool ComesLater(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.place > b.place;
}

}  // namespace

PairRanks::PairRanks(const std::vector<BpeMerge>& merges) {
  const uint64_t capacity = std::bit_ceil(std::max<uint64_t>(16, merges.size() * 3 / 2));
  slots_.resize(capacity);
  mask_ = capacity - 1;
  shift_ = 64 - std::countr_zero(capacity);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto [left, right, result] = merges[rank];
    const uint64_t key = uint64_t{uint32_t(left)} << 32 | uint32_t(right);
    uint64_t at = Place(key);
    while (slots_[at].key != kNone && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, uint64_t{rank} << 32 | uint32_t(result)};
  }
}

BpeModel::BpeModel(const std::array<int32_t, 256>& bytes, const std::vector<BpeMerge>& merges)
    : bytes_(bytes), ranks_(merges), pairs_of_bytes_(65536) {
  for (int pair = 0; pair < 65536; ++pair)
    pairs_of_bytes_[pair] = ranks_.Find(uint32_t(bytes[pair >> 8]), uint32_t(bytes[pair & 255]));
}

void BpeModel::Encode(std::string_view piece, BpeScratch& scratch,
                      std::vector<int32_t>& ids) const {
  if (piece.size() <= kShort)
    EncodeShort(piece, ids);
  else
    EncodeLong(piece, scratch, ids);
}

void BpeModel::EncodeShort(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<uint32_t, kShort> id;
  std::array<uint64_t, kShort> value;  // value[i]: of the pair (i, i + 1)
  int n = static_cast<int>(piece.size());
  for (int i = 0; i < n; ++i) id[i] = static_cast<uint32_t>(bytes_[uint8_t(piece[i])]);
  for (int i = 0; i + 1 < n; ++i) value[i] = PairOfBytes(uint8_t(piece[i]), uint8_t(piece[i + 1]));
  while (n > 1) {
    int best = 0;
    for (int i = 1; i + 1 < n; ++i)
      if (value[i] < value[best]) best = i;
    if (value[best] == PairRanks::kNone) break;
    id[best] = static_cast<uint32_t>(value[best]);
    const int moved = n - best - 2;  // symbols behind the pair
    std::memmove(&id[best + 1], &id[best + 1] + 1, moved * sizeof(id[0]));
    std::memmove(&value[best], &value[best] + 1, moved * sizeof(value[0]));
    --n;
    if (best + 1 < n) value[best] = ranks_.Find(id[best], id[best + 1]);
    if (best > 0) value[best - 1] = ranks_.Find(id[best - 1], id[best]);
  }
  for (int i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(id[i]));
}

void BpeModel::EncodeLong(std::string_view piece, BpeScratch& scratch,
                          std::vector<int32_t>& ids) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto n = static_cast<int32_t>(piece.size());
  symbols.resize(n);
  heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    symbols[i] = {static_cast<uint32_t>(bytes_[uint8_t(piece[i])]), i - 1, last ? -1 : i + 1,
                  last ? PairRanks::kNone : PairOfBytes(uint8_t(piece[i]), uint8_t(piece[i + 1]))};
    if (symbols[i].value != PairRanks::kNone) heap.push_back({symbols[i].value, i});
  }
  std::make_heap(heap.begin(), heap.end(), ComesLater);
  const auto rank_again = [&](int32_t place) {
    auto& symbol = symbols[place];
    symbol.value =
        symbol.behind < 0 ? PairRanks::kNone : ranks_.Find(symbol.id, symbols[symbol.behind].id);
    if (symbol.value == PairRanks::kNone) return;
    heap.push_back({symbol.value, place});
    std::push_heap(heap.begin(), heap.end(), ComesLater);
  };
  while (!heap.empty()) {
    const auto [value, place] = heap.front();
    std::pop_heap(heap.begin(), heap.end(), ComesLater);
    heap.pop_back();
    if (symbols[place].value != value) continue;  // another merge took one of the two
    auto& symbol = symbols[place];
    auto& taken = symbols[symbol.behind];
    symbol.id = static_cast<uint32_t>(value);
    taken.value = PairRanks::kNone;
    symbol.behind = taken.behind;
    if (taken.behind >= 0) symbols[taken.behind].before = place;
    rank_again(place);
    if (symbol.before >= 0) rank_again(symbol.before);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].behind)
    ids.push_back(static_cast<int32_t>(symbols[i].id));
}

}  // namespace millrace
