// What one thread remembers of pieces: two tables (piece_cache.h). Most text is pieces of up to 15
// bytes and 4 ids, which take half a cache line; longer words, such as Russian's and German's,
// and what falls into more ids lie in the other table, so that they do not take the room of the
// former.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/text/tokenizer/id_buffer.h"
#include "runtime/text/tokenizer/piece_cache.h"

namespace millrace {

class PieceMemory {
  using Narrow = PieceCache<2>;
  using Wide = PieceCache<4>;

 public:
  static constexpr int kMostBytes = Wide::kMostBytes;
  static constexpr int kMostShortBytes = Narrow::kMostBytes;
  static constexpr int kMostIds = Wide::kMostIds;

  // Of a piece of 1 to kMostBytes bytes.
  class Key {
   public:
    // `end`: of the text that the piece lies in, up to which may be read.
    void Set(const uint8_t* piece, int64_t length, const uint8_t* end) {
      is_wide_ = length > Narrow::kMostBytes;
      if (is_wide_)
        wide_ = Wide::MakeKey(piece, length, end);
      else
        narrow_ = Narrow::MakeKey(piece, length, end);
    }
    // The key of the same bytes as a part of a piece, whose ids may be others.
    void SetPart(const uint8_t* piece, int64_t length, const uint8_t* end) {
      Set(piece, length, end);
      if (is_wide_)
        wide_ = Wide::OfPart(wide_);
      else
        narrow_ = Narrow::OfPart(narrow_);
    }

   private:
    friend class PieceMemory;
    static constexpr uint64_t kLengthByte = uint64_t{0xff} << 56;
    Wide::Key Widened() const {
      if (is_wide_) return wide_;
      return {narrow_[0], narrow_[1] & ~kLengthByte, 0, narrow_[1] & kLengthByte};
    }
    bool is_wide_;
    union {
      Narrow::Key narrow_;
      Wide::Key wide_;
    };
  };

  explicit PieceMemory(int64_t bytes_each) : narrow_(bytes_each), wide_(bytes_each) {}

  void Prefetch(const Key& key) const {
    if (key.is_wide_)
      wide_.Prefetch(key.wide_);
    else
      narrow_.Prefetch(key.narrow_);
  }

  // Whether the piece is known; its ids then go to `out`.
  bool Take(const Key& key, IdBuffer& out) const {
    if (key.is_wide_) return TakeWide(key.wide_, out);
    const Narrow::Entry* const entry = narrow_.Find(key.narrow_);
    if (entry == nullptr) return false;
    if (entry->ids[0] == kElsewhere) return TakeWide(key.Widened(), out);
    out.Take(entry->ids);
    return true;
  }

  // Of more than kMostIds ids none are kept; kFew: nor of more than the narrow table has room for.
  // count: at least 1.
  enum class Kept { kAll, kFew };
  void Insert(const Key& key, Kept kept, const int32_t* ids, int64_t count) {
    if (!key.is_wide_ && count <= Narrow::kMostIds) return narrow_.Insert(key.narrow_, ids, count);
    if (count > kMostIds || kept == Kept::kFew) return;
    if (!key.is_wide_) narrow_.Insert(key.narrow_, &kElsewhere, 1);
    wide_.Insert(key.Widened(), ids, count);
  }

 private:
  // In the narrow table: the wide one has the piece, or had it. What is in neither is looked for
  // once.
  static constexpr int32_t kElsewhere = IdBuffer::kNoId;

  bool TakeWide(const Wide::Key& key, IdBuffer& out) const {
    const Wide::Entry* const entry = wide_.Find(key);
    if (entry != nullptr) out.Take(entry->ids);
    return entry != nullptr;
  }

  Narrow narrow_;
  Wide wide_;
};

}  // namespace millrace
