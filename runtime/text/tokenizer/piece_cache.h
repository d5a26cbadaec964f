// Pieces that were encoded before, with their ids: a table of fixed size, of one thread. Two
// entries share a bucket; a new one takes the place of the older. An entry has kWords words of key
// and as many bytes of ids, so that a bucket is a cache line (2 words: nearly all pieces of Latin
// text) or two lines that lie side by side (4 words: long words, short clauses, what has many ids).
#pragma once

#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace millrace {

template <int kWords>
class PieceCache {
 public:
  static constexpr int kMostBytes = 8 * kWords - 1;
  static constexpr int kMostIds = 2 * kWords;

  // A piece of 1 to kMostBytes bytes, then zeros; the last byte says how many they are.
  using Key = std::array<uint64_t, kWords>;
  struct alignas(16 * kWords) Entry {
    Key key = {};                            // of an empty entry: no piece has length 0
    std::array<int32_t, kMostIds> ids = {};  // IdBuffer::kNoId behind the last
  };

  // bytes: of the table, rounded down to a power of two, at least 4096.
  explicit PieceCache(int64_t bytes)
      : count_(std::bit_floor(static_cast<uint64_t>(bytes < 4096 ? 4096 : bytes)) / sizeof(Bucket)),
        shift_(64 - std::countr_zero(count_)),
        buckets_(Zeros(count_ * sizeof(Bucket)), &std::free) {}

  // `end`: of the text that the piece lies in, up to which may be read.
  static Key MakeKey(const uint8_t* piece, int64_t length, const uint8_t* end) {
    Key key = {};
    if (end - piece >= int64_t{sizeof(Key)}) {
      Key mask;
      std::memcpy(&mask, kMask.data() + sizeof(Key) - length, sizeof(Key));
      std::memcpy(&key, piece, sizeof(Key));
      for (int i = 0; i < kWords; ++i) key[i] &= mask[i];
    } else {
      std::memcpy(&key, piece, static_cast<size_t>(length));
    }
    key.back() |= static_cast<uint64_t>(length) << 56;
    return key;
  }

  // The key of the same bytes as a part of a piece, whose ids may be others.
  static Key OfPart(Key key) {
    key.back() |= uint64_t{1} << 63;
    return key;
  }

  void Prefetch(const Key& key) const {
    const auto* const line = reinterpret_cast<const char*>(&buckets_[Place(key)]);
    for (size_t at = 0; at < sizeof(Bucket); at += 64) __builtin_prefetch(line + at);
  }

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
    entry.key = key;
    entry.ids.fill(-1);
    std::memcpy(entry.ids.data(), ids, static_cast<size_t>(count) * sizeof(ids[0]));
  }

 private:
  struct alignas(32 * kWords) Bucket {
    Entry entries[2];
  };
  // From kMask[sizeof(Key) - n] on: n bytes that stay, then bytes that go.
  static constexpr std::array<uint8_t, 2 * sizeof(Key)> kMask = [] {
    std::array<uint8_t, 2 * sizeof(Key)> mask = {};
    for (size_t i = 0; i < sizeof(Key); ++i) mask[i] = 0xff;
    return mask;
  }();

  uint64_t Place(const Key& key) const {
    uint64_t hash = key[0];
    for (int i = 1; i < kWords; ++i) hash = (hash ^ key[i] * 0xd6e8feb86659fd93u) * kOdd[i - 1];
    return (hash * 0x9e3779b97f4a7c15u) >> shift_;
  }
  // 1 before the last word: with two words the hash is one product shorter.
  static constexpr std::array<uint64_t, kWords - 1> kOdd = [] {
    std::array<uint64_t, kWords - 1> odd;
    odd.fill(0x9fb21c651e98df25u);
    odd.back() = 1;
    return odd;
  }();

  // Empty entries. A large table lies in large pages, where the machine has them: it is asked at
  // random, and each small page would be a miss of its own.
  static Bucket* Zeros(size_t bytes) {
    constexpr size_t kLargePage = size_t{2} << 20;
    void* const memory =
        std::aligned_alloc(bytes < kLargePage ? alignof(Bucket) : kLargePage, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (bytes >= kLargePage) ::madvise(memory, bytes, MADV_HUGEPAGE);  // if not, not
    std::memset(memory, 0, bytes);
    return static_cast<Bucket*>(memory);
  }

  uint64_t count_;  // of buckets
  int shift_;
  std::unique_ptr<Bucket[], decltype(&std::free)> buckets_;
};

}  // namespace millrace
