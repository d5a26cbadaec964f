#include "runtime/text/tokenizer/text_encoder.h"

#include <algorithm>
#include <array>

#include "runtime/base/error.h"
#include "runtime/text/unicode/nfc.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

constexpr int kBatch = 32;

// Han and kana (lead bytes e3 to e9) are written without blanks: of them a piece is a clause. A
// long one seldom comes again, but its parts do.
bool IsClause(const uint8_t* begin, const uint8_t* end) {
  return end - begin >= 3 && uint8_t(end[-3] - 0xe3) <= 0xe9 - 0xe3;
}

// Whether a piece is looked for as a whole.
bool IsRemembered(const uint8_t* begin, const uint8_t* end) {
  return end - begin <= PieceMemory::kMostShortBytes ||
         (end - begin <= PieceMemory::kMostBytes && !IsClause(begin, end));
}

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

}  // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer, int64_t cache_bytes)
    : tokenizer_(tokenizer), known_(cache_bytes), characters_(size_t{1} << kCharacterBits) {}

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

// A batch at a time: while keys are made, the tables' lines are on their way.
void TextEncoder::EncodePieces(SplitPattern pattern, std::string_view text,
                               std::vector<int32_t>& ids) {
  std::array<const uint8_t*, kBatch> ends;
  std::array<PieceMemory::Key, kBatch> keys;
  IdBuffer out(ids);
  const uint8_t* const end = BytesOf(text) + text.size();
  for (const uint8_t* p = BytesOf(text); p < end;) {
    const int count = PieceEnds(pattern, p, end, kBatch, ends.data());
    const uint8_t* begin = p;
    for (int i = 0; i < count; begin = ends[i++]) {
      if (!IsRemembered(begin, ends[i])) continue;
      keys[i].Set(begin, ends[i] - begin, end);
      known_.Prefetch(keys[i]);
    }
    for (int i = 0; i < count; p = ends[i++]) {
      const std::string_view piece(reinterpret_cast<const char*>(p), size_t(ends[i] - p));
      if (IsRemembered(p, ends[i]))
        EncodeShort(piece, keys[i], out);
      else
        EncodeLong(piece, out);
    }
  }
  out.Flush();
}

inline void TextEncoder::EncodeShort(std::string_view piece, const PieceMemory::Key& key,
                                     IdBuffer& out) {
  if (known_.Take(key, out)) return;
  const int32_t whole = tokenizer_.WholePiece(piece);
  if (whole < 0) {
    const bool clause = IsClause(BytesOf(piece), BytesOf(piece) + piece.size());
    return MergeNew(piece, key, clause ? PieceMemory::Kept::kFew : PieceMemory::Kept::kAll, out);
  }
  known_.Insert(key, PieceMemory::Kept::kAll, &whole, 1);
  out.Take(IdBuffer::One(whole));
}

void TextEncoder::EncodeLong(std::string_view piece, IdBuffer& out) {
  const int32_t whole = tokenizer_.WholePiece(piece);
  if (whole >= 0)
    out.Take(IdBuffer::One(whole));
  else if (tokenizer_.walk() == nullptr)
    out.Append(piece.size(), [&](int32_t* places) { return Merge(piece, places); });
  else
    EncodeParts(piece, out);
}

// As EncodePieces, but that most parts of one character are known without the tables.
void TextEncoder::EncodeParts(std::string_view piece, IdBuffer& out) {
  std::array<const uint8_t*, kBatch> ends;
  std::array<PieceMemory::Key, kBatch> keys;
  const uint8_t* const end = BytesOf(piece) + piece.size();
  for (const uint8_t* p = BytesOf(piece); p < end;) {
    const int count = tokenizer_.borders().PartEnds(p, end, kBatch, ends.data());
    const uint8_t* begin = p;
    for (int i = 0; i < count; begin = ends[i++]) {
      if (ends[i] - begin > PieceMemory::kMostBytes || IsKnownKind(begin, ends[i])) continue;
      keys[i].SetPart(begin, ends[i] - begin, end);
      known_.Prefetch(keys[i]);
    }
    for (int i = 0; i < count; p = ends[i++]) {
      const std::string_view part(reinterpret_cast<const char*>(p), size_t(ends[i] - p));
      if (IsKnownKind(p, ends[i]))
        out.Take(IdsOfCharacter(part));
      else if (std::ssize(part) > PieceMemory::kMostBytes)
        out.Append(part.size(), [&](int32_t* places) { return Merge(part, places); });
      else if (!known_.Take(keys[i], out))
        MergeNew(part, keys[i], PieceMemory::Kept::kAll, out);
    }
  }
}

const TextEncoder::CharacterIds& TextEncoder::IdsOfCharacter(std::string_view character) {
  const uint32_t code = DecodeUtf8(BytesOf(character));
  KnownCharacter& known = characters_[code & ((1u << kCharacterBits) - 1)];
  if (known.code != code) {
    known.code = code;
    known.ids.fill(IdBuffer::kNoId);
    Merge(character, known.ids.data());
  }
  return known.ids;
}

void TextEncoder::MergeNew(std::string_view text, const PieceMemory::Key& key,
                           PieceMemory::Kept kept, IdBuffer& out) {
  out.Append(PieceMemory::kMostBytes, [&](int32_t* places) {
    const size_t count = Merge(text, places);
    known_.Insert(key, kept, places, int64_t(count));
    return count;
  });
}

// Byte-pair encoding. `ids` has a place for each byte of the text.
size_t TextEncoder::Merge(std::string_view text, int32_t* ids) {
  if (const TokenWalk* const walk = tokenizer_.walk()) return walk->Encode(text, dead_, ids);
  merged_.clear();
  tokenizer_.model().Encode(text, scratch_, merged_);
  std::copy(merged_.begin(), merged_.end(), ids);
  return merged_.size();
}

}  // namespace millrace
