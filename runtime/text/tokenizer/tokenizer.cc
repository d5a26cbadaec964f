#include "runtime/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/data/input_file.h"
#include "runtime/text/bpe/byte_alphabet.h"
#include "runtime/text/unicode/nfc.h"

namespace millrace {
namespace {

std::vector<AddedToken> Select(const TokenizerFile& file, bool normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : file.added_tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && file.nfc) token.content = ToNfc(token.content);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

Tokenizer Tokenizer::Load(const std::string& path) {
  return Tokenizer(ReadWholeFile(path, kMostFileBytes, ErrorCode::kData), path);
}

Tokenizer::Tokenizer(std::string_view json, std::string name)
    : name_(std::move(name)),
      json_(json),
      hash_(Hash128(json)),
      file_(ParseTokenizerFile(json, name_)),
      model_(file_.byte_ids, file_.merges),
      raw_added_(Select(file_, false)),
      normalized_added_(Select(file_, true)) {
  int64_t size = 0;
  for (const auto& [symbols, id] : file_.vocab) size = std::max<int64_t>(size, id + 1);
  for (const AddedToken& token : file_.added_tokens) size = std::max<int64_t>(size, token.id + 1);
  bytes_.resize(size);
  special_.resize(size);
  for (const auto& [symbols, id] : file_.vocab) {
    const std::optional<std::string> bytes = BytesOfSymbols(symbols);
    bytes_[id] = bytes.value_or(symbols);
    if (file_.ignore_merges && bytes) whole_pieces_.emplace(bytes_[id], id);
  }
  // An added token's text is decoded as any token's: a content of byte symbols stands for bytes.
  for (const AddedToken& token : file_.added_tokens) {
    special_[token.id] = token.special;
    if (bytes_[token.id].empty())
      bytes_[token.id] = BytesOfSymbols(token.content).value_or(token.content);
  }
  std::vector<std::string_view> merged;
  for (const BpeMerge& merge : file_.merges) merged.push_back(bytes_[merge.result]);
  borders_.emplace(merged);
  walk_ = TokenWalk::Make(model_, file_.merges, bytes_);
  file_.vocab = {};
  file_.merges = {};
}

std::string_view Tokenizer::Bytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(bytes_[id]) : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < vocab_size() && special_[id]; }

std::optional<int32_t> Tokenizer::AddedTokenId(std::string_view content) const {
  for (const AddedToken& token : file_.added_tokens)
    if (token.content == content) return token.id;
  return std::nullopt;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, SpecialTokens special) const {
  std::string text;
  for (const int32_t id : ids)
    if (special == SpecialTokens::kKeep || !IsSpecial(id)) text += Bytes(id);
  return text;
}

int32_t Tokenizer::WholePiece(std::string_view piece) const {
  const auto found = whole_pieces_.find(piece);
  return found == whole_pieces_.end() ? -1 : found->second;
}

}  // namespace millrace
