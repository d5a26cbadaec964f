// Text to ids, by a tokenizer: added tokens are cut out, the rest is normalized, split into pieces,
// and each piece merged. An encoder remembers pieces; it belongs to one thread.
//
// Errors  kData: text that is not UTF-8, with the offset of the byte. Nothing is appended then.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/long_piece_cache.h"
#include "runtime/text/piece_cache.h"
#include "runtime/text/tokenizer.h"

namespace millrace {

enum class AroundText { kTemplate, kNothing };  // the post-processor's special tokens, or none

struct EncodeOptions {
  SpecialText special = SpecialText::kToken;
  AroundText around = AroundText::kTemplate;
};

class TextEncoder {
 public:
  static constexpr int64_t kCacheBytes = int64_t{4} << 20;

  explicit TextEncoder(const Tokenizer& tokenizer, int64_t cache_bytes = kCacheBytes);

  // Appends the ids of `text`.
  void Encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids);
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {});

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  void EncodeText(std::string_view text, SpecialText special, std::vector<int32_t>& ids);
  void EncodeNormalized(std::string_view text, SpecialText special, std::vector<int32_t>& ids);
  void EncodeSegment(std::string_view text, size_t stage, std::vector<int32_t>& ids);
  void EncodePieces(SplitPattern pattern, std::string_view text, std::vector<int32_t>& ids);
  void EncodePiece(std::string_view piece, std::vector<int32_t>& ids);
  void Remember(const PieceCache::Key& key, size_t first, const std::vector<int32_t>& ids);
  void Merge(std::string_view text, std::vector<int32_t>& ids);
  void EncodeParts(std::string_view piece, std::vector<int32_t>& ids);

  const Tokenizer& tokenizer_;
  PieceCache cache_;
  LongPieceCache long_cache_;
  BpeScratch scratch_;
  std::vector<AddedTokenSplitter::Part> raw_parts_, normalized_parts_;
};

}  // namespace millrace
