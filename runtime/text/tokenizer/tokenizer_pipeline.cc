#include "runtime/text/tokenizer/tokenizer_pipeline.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/error.h"

namespace millrace {
namespace {

[[noreturn]] void RefuseType(const JsonPath& at, const char* allowed) {
  throw Error(ErrorCode::kData, fmt::format("{}: {} is not supported; {} is", at["type"].name(),
                                            at["type"].Text(), allowed));
}

// The elements of a Sequence under `key`, nested ones in their places; else the value itself.
std::vector<JsonPath> Flatten(const JsonPath& at, const char* key) {
  if (at["type"].Text() != "Sequence") return {at};
  at.AllowKeys({"type", key});
  std::vector<JsonPath> flat;
  for (size_t i = 0; i < at[key].ArrayAt().size(); ++i)
    for (const JsonPath& inner : Flatten(at[key][i], key)) flat.push_back(inner);
  return flat;
}

// A Split whose pieces are the pattern's matches. All patterns that we know match every character:
// with nothing between matches, to isolate them and to remove all else is the same.
SplitPattern ReadSplit(const JsonPath& at) {
  at.AllowKeys({"type", "pattern", "behavior", "invert"});
  at["pattern"].AllowKeys({"Regex", "String"});
  MR_REQUIRE(ErrorCode::kData, at["pattern"].Has("Regex"),
             "{}: a String is not supported; a Regex is", at["pattern"].name());
  const JsonPath regex = at["pattern"]["Regex"];
  const std::optional<SplitPattern> pattern = PatternOfRegex(regex.Text());
  MR_REQUIRE(ErrorCode::kData, pattern.has_value(),
             "{}: \"{}\" is not supported; the patterns of GPT-2, Llama 3 and Qwen2 are",
             regex.name(), regex.Text());
  const std::string behavior = at["behavior"].Text();
  const bool invert = at["invert"].Bool();
  MR_REQUIRE(ErrorCode::kData, behavior == "Isolated" || (behavior == "Removed" && invert),
             "{}: {} with invert {} is not supported; Isolated, and Removed with invert true are",
             at["behavior"].name(), behavior, invert);
  return *pattern;
}

void CheckByteLevel(const JsonPath& at) {
  at.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  at["trim_offsets"].Bool();
}

// Takes one element of a TemplateProcessing's "single"; true if it is the text.
bool ReadTemplatePiece(const JsonPath& at, const JsonPath& special_tokens,
                       std::vector<int32_t>& ids) {
  at.AllowKeys({"SpecialToken", "Sequence"});
  if (at.Has("Sequence")) {
    const JsonPath id = at["Sequence"]["id"];
    MR_REQUIRE(ErrorCode::kData, id.Text() == "A", "{}: {} is not supported in \"single\"; A is",
               id.name(), id.Text());
    return true;
  }
  const JsonPath token = special_tokens[at["SpecialToken"]["id"].Text()];
  for (size_t i = 0; i < token["ids"].ArrayAt().size(); ++i)
    ids.push_back(static_cast<int32_t>(token["ids"][i].Count(INT32_MAX)));
  return false;
}

void ReadTemplate(const JsonPath& at, TokenizerFile& file) {
  at.AllowKeys({"type", "single", "pair", "special_tokens"});
  const JsonPath single = at["single"];
  std::vector<int32_t> before, behind;
  int texts = 0;
  for (size_t i = 0; i < single.ArrayAt().size(); ++i)
    texts += ReadTemplatePiece(single[i], at["special_tokens"], texts == 0 ? before : behind);
  MR_REQUIRE(ErrorCode::kData, texts == 1, "{}: one Sequence A is expected, not {}", single.name(),
             texts);
  const auto known = [&](int32_t id) {
    const auto is_id = [&](const auto& token) { return token.second == id; };
    const auto is_added = [&](const AddedToken& token) { return token.id == id; };
    return std::any_of(file.added_tokens.begin(), file.added_tokens.end(), is_added) ||
           std::any_of(file.vocab.begin(), file.vocab.end(), is_id);
  };
  for (const auto* ids : {&before, &behind})
    for (const int32_t id : *ids)
      MR_REQUIRE(ErrorCode::kData, known(id), "{}: no token has id {}", at["special_tokens"].name(),
                 id);
  file.prefix.insert(file.prefix.begin(), before.begin(), before.end());
  file.suffix.insert(file.suffix.end(), behind.begin(), behind.end());
}

}  // namespace

void ReadNormalizer(const JsonPath& at, TokenizerFile& file) {
  if (at.value().is_null()) return;
  for (const JsonPath& normalizer : Flatten(at, "normalizers")) {
    if (normalizer["type"].Text() != "NFC") RefuseType(normalizer, "NFC");
    normalizer.AllowKeys({"type"});
    file.nfc = true;
  }
}

void ReadPreTokenizer(const JsonPath& at, TokenizerFile& file) {
  bool byte_level = false;
  for (const JsonPath& stage : Flatten(at, "pretokenizers")) {
    const std::string type = stage["type"].Text();
    MR_REQUIRE(ErrorCode::kData, !byte_level,
               "{}: {} behind ByteLevel is not supported; ByteLevel must be last",
               stage["type"].name(), type);
    if (type == "Split") {
      file.splits.push_back(ReadSplit(stage));
    } else if (type == "Digits") {
      stage.AllowKeys({"type", "individual_digits"});
      MR_REQUIRE(ErrorCode::kData, stage["individual_digits"].Bool(),
                 "{}: false is not supported; true is", stage["individual_digits"].name());
      file.splits.push_back(SplitPattern::kDigits);
    } else if (type == "ByteLevel") {
      CheckByteLevel(stage);
      byte_level = true;
      file.add_prefix_space = stage["add_prefix_space"].Bool();
      const bool own = !stage.Has("use_regex") || stage["use_regex"].Bool();
      file.byte_level_split = own ? SplitPattern::kGpt2 : SplitPattern::kWhole;
    } else {
      RefuseType(stage, "ByteLevel, alone or behind Split and Digits,");
    }
  }
  MR_REQUIRE(ErrorCode::kData, byte_level, "{}: a Sequence without ByteLevel is not supported",
             at.name());
}

void ReadPostProcessor(const JsonPath& at, TokenizerFile& file) {
  if (at.value().is_null()) return;
  for (const JsonPath& processor : Flatten(at, "processors")) {
    const std::string type = processor["type"].Text();
    if (type == "TemplateProcessing")
      ReadTemplate(processor, file);
    else if (type == "ByteLevel")
      CheckByteLevel(processor);  // moves offsets, which nobody asks for here
    else
      RefuseType(processor, "TemplateProcessing or ByteLevel");
  }
}

void ReadDecoder(const JsonPath& at) {
  MR_REQUIRE(ErrorCode::kData, !at.value().is_null(), "{}: null is not supported; ByteLevel is",
             at.name());
  for (const JsonPath& decoder : Flatten(at, "decoders")) {
    if (decoder["type"].Text() != "ByteLevel") RefuseType(decoder, "ByteLevel");
    CheckByteLevel(decoder);
  }
}

}  // namespace millrace
