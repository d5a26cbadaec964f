#include "runtime/text/text_encoder.h"

#include <algorithm>
#include <array>

#include "runtime/base/error.h"
#include "runtime/text/nfc.h"
#include "runtime/text/unicode.h"

namespace millrace {
namespace {

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// Ids on their way into a vector, many at once: to append them one by one costs as much as to
// find them.
class IdBuffer {
 public:
  explicit IdBuffer(std::vector<int32_t>& ids) : ids_(ids) {}

  // Writes all of the entry's places, which is quicker than to ask, and keeps its ids.
  void Take(const PieceCache::Entry& entry) {
    if (filled_ + PieceCache::kMostIds > int(buffer_.size())) Flush();
    int count = 1;
    for (int i = 0; i < PieceCache::kMostIds; ++i) buffer_[filled_ + i] = entry.ids[i];
    for (int i = 1; i < PieceCache::kMostIds; ++i) count += entry.ids[i] != PieceCache::kNoId;
    filled_ += count;
  }

  void Flush() {
    ids_.insert(ids_.end(), buffer_.begin(), buffer_.begin() + filled_);
    filled_ = 0;
  }

 private:
  std::vector<int32_t>& ids_;
  std::array<int32_t, 512> buffer_;
  int filled_ = 0;
};

}  // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer, int64_t cache_bytes)
    : tokenizer_(tokenizer), cache_(cache_bytes) {}

std::vector<int32_t> TextEncoder::Encode(std::string_view text, const EncodeOptions& options) {
  std::vector<int32_t> ids;
  Encode(text, options, ids);
  return ids;
}

void TextEncoder::Encode(std::string_view text, const EncodeOptions& options,
                         std::vector<int32_t>& ids) {
  const int64_t invalid = FindInvalidUtf8(text);
  MR_REQUIRE(ErrorCode::kData, invalid < 0, "byte {} (0x{:02x}) of the text is not UTF-8", invalid,
             static_cast<uint8_t>(text[invalid]));
  const bool around = options.around == AroundText::kTemplate;
  if (around) ids.insert(ids.end(), tokenizer_.prefix().begin(), tokenizer_.prefix().end());
  if (!text.empty()) EncodeText(text, options.special, ids);
  if (around) ids.insert(ids.end(), tokenizer_.suffix().begin(), tokenizer_.suffix().end());
}

void TextEncoder::EncodeText(std::string_view text, SpecialText special,
                             std::vector<int32_t>& ids) {
  tokenizer_.raw_added().Split(text, special, raw_parts_);
  for (const auto& part : raw_parts_) {
    if (part.id != AddedTokenSplitter::kText)
      ids.push_back(part.id);
    else if (!tokenizer_.nfc() || IsSurelyNfc(part.text))
      EncodeNormalized(part.text, special, ids);
    else
      EncodeNormalized(ToNfc(part.text), special, ids);
  }
}

void TextEncoder::EncodeNormalized(std::string_view text, SpecialText special,
                                   std::vector<int32_t>& ids) {
  tokenizer_.normalized_added().Split(text, special, normalized_parts_);
  for (const auto& part : normalized_parts_) {
    if (part.id != AddedTokenSplitter::kText)
      ids.push_back(part.id);
    else
      EncodeSegment(part.text, 0, ids);
  }
}

// Cuts by the splits from `stage` on; what the last of them leaves is ByteLevel's.
void TextEncoder::EncodeSegment(std::string_view text, size_t stage, std::vector<int32_t>& ids) {
  const auto splits = tokenizer_.splits();
  const bool prefix = tokenizer_.add_prefix_space();
  if (stage == splits.size()) {
    if (prefix && text[0] != ' ')
      EncodePieces(tokenizer_.byte_level_split(), ' ' + std::string(text), ids);
    else
      EncodePieces(tokenizer_.byte_level_split(), text, ids);
    return;
  }
  const bool last = stage + 1 == splits.size();
  if (last && !prefix && tokenizer_.byte_level_split() == SplitPattern::kWhole)
    return EncodePieces(splits[stage], text, ids);
  ForEachPiece(splits[stage], text,
               [&](std::string_view piece) { EncodeSegment(piece, stage + 1, ids); });
}

// A batch at a time: while keys are made, the cache's lines are on their way.
void TextEncoder::EncodePieces(SplitPattern pattern, std::string_view text,
                               std::vector<int32_t>& ids) {
  constexpr int kBatch = 32;
  std::array<const uint8_t*, kBatch> ends;
  std::array<PieceCache::Key, kBatch> keys;
  IdBuffer buffer(ids);
  const uint8_t* const end = BytesOf(text) + text.size();
  for (const uint8_t* p = BytesOf(text); p < end;) {
    const int count = PieceEnds(pattern, p, end, kBatch, ends.data());
    const uint8_t* begin = p;
    for (int i = 0; i < count; begin = ends[i++]) {
      if (ends[i] - begin > PieceCache::kMostBytes) continue;
      keys[i] = PieceCache::MakeKey(begin, ends[i] - begin, end);
      cache_.Prefetch(keys[i]);
    }
    for (int i = 0; i < count; p = ends[i++]) {
      const std::string_view piece(reinterpret_cast<const char*>(p), size_t(ends[i] - p));
      const bool cached = std::ssize(piece) <= PieceCache::kMostBytes;
      const PieceCache::Entry* const entry = cached ? cache_.Find(keys[i]) : nullptr;
      if (entry != nullptr) {
        buffer.Take(*entry);
        continue;
      }
      buffer.Flush();
      const size_t before = ids.size();
      EncodePiece(piece, ids);
      if (cached) Remember(keys[i], before, ids);
    }
  }
  buffer.Flush();
}

void TextEncoder::Remember(const PieceCache::Key& key, size_t first,
                           const std::vector<int32_t>& ids) {
  const auto count = static_cast<int64_t>(ids.size() - first);
  if (count <= PieceCache::kMostIds) cache_.Insert(key, &ids[first], count);
}

// A piece that the cache of short ones does not have.
void TextEncoder::EncodePiece(std::string_view piece, std::vector<int32_t>& ids) {
  const int32_t whole = tokenizer_.WholePiece(piece);
  if (whole >= 0)
    ids.push_back(whole);
  else if (std::ssize(piece) > PieceCache::kMostBytes)
    EncodeParts(piece, ids);
  else
    Merge(piece, ids);
}

void TextEncoder::EncodeParts(std::string_view piece, std::vector<int32_t>& ids) {
  const uint8_t* const end = BytesOf(piece) + piece.size();
  for (const uint8_t* p = BytesOf(piece); p < end;) {
    const uint8_t* const next = tokenizer_.borders().Next(p, end);
    const std::string_view part(reinterpret_cast<const char*>(p), static_cast<size_t>(next - p));
    p = next;
    if (std::ssize(part) > PieceCache::kMostBytes) {
      Merge(part, ids);
      continue;
    }
    const auto key = PieceCache::OfPart(PieceCache::MakeKey(BytesOf(part), std::ssize(part), end));
    if (const PieceCache::Entry* const entry = cache_.Find(key)) {
      for (const int32_t id : entry->ids)
        if (id != PieceCache::kNoId) ids.push_back(id);
      continue;
    }
    const size_t before = ids.size();
    Merge(part, ids);
    Remember(key, before, ids);
  }
}

// Byte-pair encoding, by the cache of long ones.
void TextEncoder::Merge(std::string_view text, std::vector<int32_t>& ids) {
  const auto size = std::ssize(text);
  if (size > LongPieceCache::kMostBytes) return tokenizer_.model().Encode(text, scratch_, ids);
  if (const LongPieceCache::Entry* const entry = long_cache_.Find(text)) {
    ids.insert(ids.end(), entry->ids, entry->ids + entry->count);
    return;
  }
  const size_t before = ids.size();
  tokenizer_.model().Encode(text, scratch_, ids);
  const auto count = static_cast<int64_t>(ids.size() - before);
  const bool in_short_cache = size <= PieceCache::kMostBytes && count <= PieceCache::kMostIds;
  if (!in_short_cache && count <= LongPieceCache::kMostIds)
    long_cache_.Insert(text, &ids[before], count);
}

}  // namespace millrace
