// Pieces that were encoded before, with their ids: a table of fixed size, of one thread. A bucket
// is a cache line of two entries; a new one takes the place of the older. Only short pieces that
// have few ids are kept, which is nearly all there are.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace millrace {

class PieceCache {
 public:
  static constexpr int kMostBytes = 15;
  static constexpr int kMostIds = 4;

  // A piece of 1 to kMostBytes bytes, and how many they are, in two words.
  struct Key {
    uint64_t low, high;
    bool operator==(const Key&) const = default;
  };
  struct alignas(32) Entry {
    Key key = {0, 0};  // of an empty entry: no piece has length 0
    std::array<int32_t, kMostIds> ids = {-1, -1, -1, -1};  // IdBuffer::kNoId behind the last
  };

  // bytes: of the table, rounded down to a power of two, at least 4096.
  explicit PieceCache(int64_t bytes)
      : buckets_(std::bit_floor(static_cast<uint64_t>(bytes < 4096 ? 4096 : bytes)) /
                 sizeof(Bucket)),
        shift_(64 - std::countr_zero(buckets_.size())) {}

  // `end`: of the text that the piece lies in, up to which may be read.
  static Key MakeKey(const uint8_t* piece, int64_t length, const uint8_t* end) {
    Key key = {0, 0};
    if (end - piece >= 16) {
      std::memcpy(&key, piece, 16);
      const int low_bits = length >= 8 ? 0 : int(8 * (8 - length));
      const int high_bits = length <= 8 ? 64 : int(8 * (16 - length));
      key.low = key.low << low_bits >> low_bits;
      key.high = high_bits == 64 ? 0 : key.high << high_bits >> high_bits;
    } else {
      std::memcpy(&key, piece, static_cast<size_t>(length));
    }
    key.high |= static_cast<uint64_t>(length) << 56;
    return key;
  }

  // The key of the same bytes as a part of a piece, whose ids may be others.
  static Key OfPart(Key key) {
    key.high |= uint64_t{1} << 63;
    return key;
  }

  void Prefetch(const Key& key) const { __builtin_prefetch(&buckets_[Place(key)]); }

  const Entry* Find(const Key& key) const {
    const Bucket& bucket = buckets_[Place(key)];
    if (bucket.entries[0].key == key) return &bucket.entries[0];
    return bucket.entries[1].key == key ? &bucket.entries[1] : nullptr;
  }

  // count: 1 to kMostIds.
  void Insert(const Key& key, const int32_t* ids, int64_t count) {
    Bucket& bucket = buckets_[Place(key)];
    bucket.entries[1] = bucket.entries[0];
    Entry& entry = bucket.entries[0];
    entry = Entry{.key = key};
    std::memcpy(entry.ids.data(), ids, static_cast<size_t>(count) * sizeof(ids[0]));
  }

 private:
  struct alignas(64) Bucket {
    Entry entries[2];
  };
  uint64_t Place(const Key& key) const {
    return ((key.low ^ key.high * 0xd6e8feb86659fd93u) * 0x9e3779b97f4a7c15u) >> shift_;
  }

  std::vector<Bucket> buckets_;
  int shift_;
};

}  // namespace millrace
