// Bytes that were merged before and that piece_cache.h does not keep, for their length or their
// ids: identifiers, runs of blanks. One entry per place; a new one takes the place of the old.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace millrace {

class LongPieceCache {
 public:
  static constexpr int64_t kMostBytes = 44;
  static constexpr int64_t kMostIds = 18;

  struct alignas(64) Entry {
    uint64_t hash = 0;
    uint8_t length = 0, count = 0;  // length 0: empty
    char text[kMostBytes] = {};
    int32_t ids[kMostIds] = {};
  };

  LongPieceCache() : entries_(size_t{1} << kBits) {}

  // The ids of 1 to kMostBytes bytes, or null.
  const Entry* Find(std::string_view text) const {
    const uint64_t hash = Hash(text);
    const Entry& entry = entries_[hash >> (64 - kBits)];
    const bool same = entry.hash == hash && entry.length == text.size() &&
                      std::memcmp(entry.text, text.data(), text.size()) == 0;
    return same ? &entry : nullptr;
  }

  void Insert(std::string_view text, const int32_t* ids, int64_t count) {
    const uint64_t hash = Hash(text);
    Entry& entry = entries_[hash >> (64 - kBits)];
    entry.hash = hash;
    entry.length = static_cast<uint8_t>(text.size());
    entry.count = static_cast<uint8_t>(count);
    std::memcpy(entry.text, text.data(), text.size());
    std::memcpy(entry.ids, ids, static_cast<size_t>(count) * sizeof(ids[0]));
  }

 private:
  static constexpr int kBits = 13;  // 1 MiB

  static uint64_t Hash(std::string_view text) {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;
    uint64_t hash = text.size() * kFactor;
    for (size_t at = 0; at < text.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, text.size() - at < 8 ? text.size() - at : 8);
      hash = (hash ^ word) * kFactor;
      hash ^= hash >> 29;
    }
    return hash * kFactor;
  }

  std::vector<Entry> entries_;
};

}  // namespace millrace
