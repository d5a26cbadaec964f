#include "runtime/text/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "runtime/base/error.h"
#include "runtime/data/strict_json.h"
#include "runtime/text/bpe/byte_alphabet.h"
#include "runtime/text/tokenizer/json_path.h"
#include "runtime/text/tokenizer/tokenizer_pipeline.h"

namespace millrace {
namespace {

using nlohmann::json;
using IdOfSymbols = std::unordered_map<std::string_view, int32_t>;

// Ids beyond this are damage: a table with a row per id would fill the memory.
constexpr int64_t kMostId = (int64_t{1} << 24) - 1;
constexpr int kMostDepth = 16;

void ReadVocab(const JsonPath& at, TokenizerFile& file, IdOfSymbols& ids) {
  const json& vocab = at.ObjectAt();
  file.vocab.reserve(vocab.size());
  std::vector<bool> taken;
  for (const auto& [symbols, value] : vocab.items()) {
    const int64_t id = at[symbols].Count(kMostId);
    if (id >= int64_t(taken.size())) taken.resize(id + 1);
    MR_REQUIRE(ErrorCode::kData, !taken[id], "{}: id {} is another token's, too",
               at[symbols].name(), id);
    taken[id] = true;
    file.vocab.emplace_back(symbols, static_cast<int32_t>(id));
  }
  for (const auto& [symbols, id] : file.vocab) ids.emplace(symbols, id);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string symbol = SymbolsOfBytes(std::string(1, static_cast<char>(byte)));
    const auto found = ids.find(symbol);
    MR_REQUIRE(ErrorCode::kData, found != ids.end(),
               "{}: no token \"{}\" for byte {}; byte-level BPE needs one for each byte", at.name(),
               symbol, byte);
    file.byte_ids[byte] = found->second;
  }
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> Halves(const JsonPath& at) {
  if (at.value().is_array()) {
    MR_REQUIRE(ErrorCode::kData, at.value().size() == 2, "{}: two tokens are expected, not {}",
               at.name(), at.value().size());
    return {at[size_t{0}].Text(), at[size_t{1}].Text()};
  }
  const std::string text = at.Text();
  const size_t blank = text.find(' ');
  MR_REQUIRE(ErrorCode::kData,
             blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos,
             "{}: two tokens with a blank between are expected, not \"{}\"", at.name(), text);
  return {text.substr(0, blank), text.substr(blank + 1)};
}

void ReadMerges(const JsonPath& at, const IdOfSymbols& ids, TokenizerFile& file) {
  const size_t count = at.ArrayAt().size();
  file.merges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonPath merge = at[i];
    const auto [left, right] = Halves(merge);
    const auto id_of = [&](const std::string& symbols) {
      const auto found = ids.find(symbols);
      MR_REQUIRE(ErrorCode::kData, found != ids.end(), "{}: \"{}\" is not in model.vocab",
                 merge.name(), symbols);
      return found->second;
    };
    file.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  }
}

void ReadModel(const JsonPath& at, TokenizerFile& file, IdOfSymbols& ids) {
  at.AllowKeys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (at.Has("type"))  // files of old versions have none
    MR_REQUIRE(ErrorCode::kData, at["type"].Text() == "BPE", "{}: {} is not supported; BPE is",
               at["type"].name(), at["type"].Text());
  if (at.Has("dropout")) at["dropout"].RequireZeroOrNull();
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (at.Has(affix)) at[affix].RequireEmptyOrNull();
  if (at.Has("byte_fallback")) at["byte_fallback"].RequireFalse();
  if (at.Has("ignore_merges")) file.ignore_merges = at["ignore_merges"].Bool();
  ReadVocab(at["vocab"], file, ids);
  ReadMerges(at["merges"], ids, file);
}

// Ids are given by rule, not by the file (tokenizers warns where they differ; here it is an error):
// that of the vocabulary, else the next free one.
void ReadAddedTokens(const JsonPath& at, const IdOfSymbols& ids, TokenizerFile& file) {
  std::unordered_map<std::string, int32_t> added;
  int64_t most = -1;
  for (size_t i = 0; i < at.ArrayAt().size(); ++i) {
    const JsonPath token = at[i];
    token.AllowKeys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const auto entries = static_cast<int64_t>(file.vocab.size());
    const std::string content = token["content"].Text();
    MR_REQUIRE(ErrorCode::kData, !content.empty(), "{}: empty", token["content"].name());
    const auto known = ids.find(content);
    const int64_t id = known != ids.end() ? known->second : std::max(most + 1, entries);
    MR_REQUIRE(ErrorCode::kData, added.emplace(content, id).second, "{}: \"{}\" is given twice",
               token["content"].name(), content);
    most = std::max(most, id);
    MR_REQUIRE(ErrorCode::kData, token["id"].Count(kMostId) == id,
               "{}: {} is expected for \"{}\", not {}: added tokens follow the {} of model.vocab",
               token["id"].name(), id, content, token["id"].Count(kMostId), entries);
    file.added_tokens.push_back({.content = content,
                                 .id = static_cast<int32_t>(id),
                                 .single_word = token["single_word"].Bool(),
                                 .lstrip = token["lstrip"].Bool(),
                                 .rstrip = token["rstrip"].Bool(),
                                 .normalized = token["normalized"].Bool(),
                                 .special = token["special"].Bool()});
  }
}

}  // namespace

TokenizerFile ParseTokenizerFile(std::string_view text, const std::string& name) {
  const json document = ParseStrictJson(text, kMostDepth, {name, ErrorCode::kData});
  const JsonPath root(document, name);
  root.AllowKeys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  MR_REQUIRE(ErrorCode::kData, root["version"].Text() == "1.0", "{}: \"{}\" is not known; 1.0 is",
             root["version"].name(), root["version"].Text());
  for (const char* key : {"truncation", "padding"})
    if (root.Has(key)) root[key].RequireNull();
  TokenizerFile file;
  IdOfSymbols ids;  // views into file.vocab, which has all its entries by then
  ReadModel(root["model"], file, ids);
  if (root.Has("added_tokens")) ReadAddedTokens(root["added_tokens"], ids, file);
  if (root.Has("normalizer")) ReadNormalizer(root["normalizer"], file);
  ReadPreTokenizer(root["pre_tokenizer"], file);
  if (root.Has("post_processor")) ReadPostProcessor(root["post_processor"], file);
  ReadDecoder(root["decoder"]);
  return file;
}

}  // namespace millrace
