#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/text/bpe/bpe_trainer.h"
#include "runtime/text/bpe/byte_alphabet.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

Json PreTokenizer(SplitPattern pattern) {
  if (pattern == SplitPattern::kGpt2) return ByteLevel(true);
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", std::string(RegexOfPattern(pattern))}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, ByteLevel(false)})}};
}

}  // namespace

std::string TokenizerJson(const TrainedBpe& trained, SplitPattern pattern) {
  Json added = Json::array(), vocab = Json::object(), merges = Json::array();
  const auto symbols = [&](int32_t id) { return SymbolsOfBytes(trained.tokens[id]); };
  const auto count = static_cast<int32_t>(trained.tokens.size());
  for (int32_t id = 0; id < count; ++id) {
    if (id >= trained.specials) {
      vocab.push_back({symbols(id), id});
      continue;
    }
    vocab.push_back({trained.tokens[id], id});
    added.push_back({{"id", id},
                     {"content", trained.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  for (const BpeMerge& merge : trained.merges)
    merges.push_back({symbols(merge.left), symbols(merge.right)});
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", std::move(vocab)},
                      {"merges", std::move(merges)}};
  const Json document = {{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", std::move(added)},
                         {"normalizer", nullptr},
                         {"pre_tokenizer", PreTokenizer(pattern)},
                         {"post_processor", ByteLevel(true)},
                         {"decoder", ByteLevel(true)},
                         {"model", std::move(model)}};
  return DumpJson(document, {.indent = 1}) + "\n";
}

}  // namespace millrace
