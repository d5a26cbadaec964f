// Text to ids, by a tokenizer: added tokens are cut out, the rest is normalized, split into pieces,
// and each piece merged. An encoder remembers pieces; it belongs to one thread.
//
// Errors  kData: text that is not UTF-8, with the offset of the byte. Nothing is appended then.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer/id_buffer.h"
#include "runtime/text/tokenizer/piece_memory.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {

enum class AroundText { kTemplate, kNothing };  // the post-processor's special tokens, or none

struct EncodeOptions {
  SpecialText special = SpecialText::kToken;
  AroundText around = AroundText::kTemplate;
};

class TextEncoder {
 public:
  // Of each of PieceMemory's tables. For much text the larger ones: German and Chinese are then
  // encoded in two thirds of the time, English is not.
  static constexpr int64_t kCacheBytes = int64_t{4} << 20;
  static constexpr int64_t kLargeCacheBytes = int64_t{16} << 20;

  explicit TextEncoder(const Tokenizer& tokenizer, int64_t cache_bytes = kCacheBytes);

  // Appends the ids of `text`.
  void Encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids);
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {});

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  static constexpr int kCharacterBits = 14;  // 256 KiB; most Chinese has places of its own
  static constexpr int kCharacterBytes = 3;  // of those that are remembered, at most
  using CharacterIds = std::array<int32_t, kCharacterBytes>;  // IdBuffer::kNoId behind the last
  struct KnownCharacter {
    uint32_t code = ~0u;
    CharacterIds ids;
  };
  static bool IsKnownKind(const uint8_t* begin, const uint8_t* end) {
    return end - begin <= kCharacterBytes && Utf8Length(*begin) == end - begin;
  }

  void EncodeText(std::string_view text, SpecialText special, std::vector<int32_t>& ids);
  void EncodeNormalized(std::string_view text, SpecialText special, std::vector<int32_t>& ids);
  void EncodeSegment(std::string_view text, size_t stage, std::vector<int32_t>& ids);
  void EncodePieces(SplitPattern pattern, std::string_view text, std::vector<int32_t>& ids);
  void EncodeShort(std::string_view piece, const PieceMemory::Key& key, IdBuffer& out);
  void EncodeLong(std::string_view piece, IdBuffer& out);
  void EncodeParts(std::string_view piece, IdBuffer& out);
  void MergeNew(std::string_view text, const PieceMemory::Key& key, PieceMemory::Kept kept,
                IdBuffer& out);
  const CharacterIds& IdsOfCharacter(std::string_view character);
  size_t Merge(std::string_view text, int32_t* ids);

  const Tokenizer& tokenizer_;
  PieceMemory known_;
  std::vector<KnownCharacter> characters_;  // that are parts: one per place, a new one instead
  std::vector<uint64_t> dead_;              // of TokenWalk
  BpeScratch scratch_;
  std::vector<int32_t> merged_;
  std::vector<AddedTokenSplitter::Part> raw_parts_, normalized_parts_;
};

}  // namespace millrace
