// A byte-level BPE tokenizer of a Hugging Face tokenizer.json (GPT-2, Llama 3, Qwen and the like):
// the same ids as PyPI's tokenizers. tokenizer_file.h says what a file may hold.
//
//   text -> ids   text_encoder.h, one per thread; token_stream.h for text that comes in pieces
//   ids -> text   Decode here; token_stream.h for ids that come one by one
//
// Threads  Immutable. Encoders refer to it and must not outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/bpe/bpe.h"
#include "runtime/text/bpe/merge_borders.h"
#include "runtime/text/bpe/token_walk.h"
#include "runtime/text/tokenizer/added_tokens.h"
#include "runtime/text/tokenizer/tokenizer_file.h"

namespace millrace {

enum class SpecialTokens { kKeep, kSkip };

class Tokenizer {
 public:
  static constexpr int64_t kMostFileBytes = int64_t{256} << 20;  // the largest known have 20 MB

  // Errors: kData, naming the file and the place in it.
  static Tokenizer Load(const std::string& path);
  Tokenizer(std::string_view json, std::string name);

  const std::string& name() const { return name_; }  // the path, for messages
  const std::string& hash() const { return hash_; }  // Hash128 of the file
  const std::string& json() const { return json_; }  // the file, byte for byte

  // Ids are below it. At most a model's `vocab`; a model may have more rows, which no text uses.
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }

  // The bytes that an id stands for; none for ids that no token has.
  std::string_view Bytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  // The id of an added token ("<|endoftext|>").
  std::optional<int32_t> AddedTokenId(std::string_view content) const;

  // The bytes of all ids, end to end. A text cut between two ids of a character is not UTF-8.
  std::string Decode(std::span<const int32_t> ids, SpecialTokens special) const;

  // What encoders need.
  const BpeModel& model() const { return model_; }
  const TokenWalk* walk() const { return walk_ ? &*walk_ : nullptr; }  // null: there is none
  const AddedTokenSplitter& raw_added() const { return raw_added_; }
  const AddedTokenSplitter& normalized_added() const { return normalized_added_; }
  bool nfc() const { return file_.nfc; }
  bool add_prefix_space() const { return file_.add_prefix_space; }
  std::span<const SplitPattern> splits() const { return file_.splits; }
  SplitPattern byte_level_split() const { return file_.byte_level_split; }
  std::span<const int32_t> prefix() const { return file_.prefix; }
  std::span<const int32_t> suffix() const { return file_.suffix; }
  const MergeBorders& borders() const { return *borders_; }
  // The token that a whole piece is, where merges are not asked; -1: none.
  int32_t WholePiece(std::string_view piece) const;

 private:
  std::string name_, json_, hash_;
  TokenizerFile file_;  // without vocabulary and merges
  BpeModel model_;
  std::optional<TokenWalk> walk_;
  std::optional<MergeBorders> borders_;
  AddedTokenSplitter raw_added_, normalized_added_;
  std::vector<std::string> bytes_;                              // by id
  std::vector<bool> special_;                                   // by id
  std::unordered_map<std::string_view, int32_t> whole_pieces_;  // views into bytes_
};

}  // namespace millrace
