#include "runtime/text/tokenizer/tokenizer.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "runtime/data/hash.h"
#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/unicode/unicode.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/text/golden.h"

namespace millrace {
namespace {

using nlohmann::json;
using text::GoldenVariant;

constexpr EncodeOptions kPlain = {SpecialText::kPlain, AroundText::kNothing};
constexpr EncodeOptions kBare = {SpecialText::kToken, AroundText::kNothing};

TEST_CASE("ids are those of PyPI's tokenizers", "[text][golden]") {
  const std::vector<GoldenVariant> variants = text::ReadGolden();
  REQUIRE(variants.size() == 7);
  for (const GoldenVariant& variant : variants) {
    const Tokenizer tokenizer(variant.json, variant.name);
    TextEncoder encoder(tokenizer);
    for (const auto& one : variant.cases) {
      CAPTURE(variant.name, one.text);
      REQUIRE(encoder.Encode(one.text) == one.tokens);
      REQUIRE(encoder.Encode(one.text, kPlain) == one.plain);
      REQUIRE(encoder.Encode(one.text, kPlain) == one.plain);  // out of the cache
    }
  }
}

// make_golden.py: PLANES and AROUND.
std::vector<std::string> CodePointTexts() {
  std::vector<std::string> texts;
  for (const auto& [first, end] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, 0xd800}, {0xe000, 0x18e00}, {0x1ac00, 0x20000}, {0xe0000, 0xe0200}}) {
    for (uint32_t block = first; block < end; block += 256) {
      std::string& text = texts.emplace_back();
      for (uint32_t code = block; code < block + 256; ++code) {
        AppendUtf8(code, text += 'a');
        AppendUtf8(code, text += " '");
        text += "\u0301";
      }
    }
  }
  return texts;
}

TEST_CASE("every assigned code point between others has the ids of PyPI's tokenizers",
          "[text][golden]") {
  const std::vector<std::string> texts = CodePointTexts();
  int compared = 0;
  for (const GoldenVariant& variant : text::ReadGolden()) {
    if (variant.code_points.empty()) continue;
    CAPTURE(variant.name);
    const Tokenizer tokenizer(variant.json, variant.name);
    TextEncoder encoder(tokenizer);
    Hasher128 hasher;
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = encoder.Encode(text, kBare);
      hasher.Update(ids.data(), static_cast<int64_t>(ids.size() * sizeof(ids[0])));
    }
    REQUIRE(hasher.Hex() == variant.code_points);
    ++compared;
  }
  REQUIRE(compared == 3);
}

TEST_CASE("ids decode to the text that they came from", "[text]") {
  for (const GoldenVariant& variant : text::ReadGolden()) {
    if (variant.name != "gpt2" && variant.name != "llama3") continue;  // others change the text
    const Tokenizer tokenizer(variant.json, variant.name);
    TextEncoder encoder(tokenizer);
    for (const auto& one : variant.cases) {
      CAPTURE(variant.name, one.text);
      REQUIRE(tokenizer.Decode(one.plain, SpecialTokens::kKeep) == one.text);
      REQUIRE(tokenizer.Decode(one.plain, SpecialTokens::kSkip) == one.text);
    }
  }
}

TEST_CASE("special tokens are kept or skipped, and unknown ids are nothing", "[text]") {
  const Tokenizer tokenizer(text::ReadTestData("tokenizer.json").dump(), "t");
  const int32_t end = tokenizer.AddedTokenId("<|end|>").value();
  REQUIRE(end == tokenizer.vocab_size() - 1);
  REQUIRE(tokenizer.IsSpecial(end));
  REQUIRE_FALSE(tokenizer.IsSpecial(0));
  REQUIRE_FALSE(tokenizer.AddedTokenId("<|beginning|>").has_value());
  const std::vector<int32_t> ids = {end, TextEncoder(tokenizer).Encode("a")[0], end, end + 1, -1};
  REQUIRE(tokenizer.Decode(ids, SpecialTokens::kKeep) == "<|end|>a<|end|>");
  REQUIRE(tokenizer.Decode(ids, SpecialTokens::kSkip) == "a");
}

TEST_CASE("text that is not UTF-8 is refused with the place", "[text]") {
  const Tokenizer tokenizer(text::ReadTestData("tokenizer.json").dump(), "t");
  TextEncoder encoder(tokenizer);
  for (const auto& [bad, place] :
       std::vector<std::pair<std::string, std::string>>{{"abcdefghij\xff", "byte 10 (0xff)"},
                                                        {"\xc0\xaf", "byte 0"},
                                                        {"a\xed\xa0\x80", "byte 1"},
                                                        {"\xf4\x90\x80\x80", "byte 0"},
                                                        {"ab\xe4\xb8", "byte 2"},
                                                        {"\xe0\x9f\xbf", "byte 0"},
                                                        {"\xf0\x8f\xbf\xbf", "byte 0"},
                                                        {"\x80", "byte 0"}}) {
    CAPTURE(bad);
    RequireError(ErrorCode::kData, {place, "not UTF-8"}, [&] { encoder.Encode(bad); });
  }
}

void RequireRefused(const std::function<void(json&)>& change,
                    const std::vector<std::string>& parts) {
  json document = text::ReadTestData("tokenizer.json");
  change(document);
  std::vector<std::string> all = parts;
  all.push_back("t.json: ");
  RequireError(ErrorCode::kData, all, [&] { Tokenizer(document.dump(), "t.json"); });
}

TEST_CASE("what is not supported is refused with its place in the file", "[text]") {
  const auto set = [](const char* path, json value) {
    return [=](json& document) { document[json::json_pointer(path)] = value; };
  };
  RequireRefused(set("/model/type", "WordPiece"), {"model.type: WordPiece is not supported"});
  RequireRefused(set("/model/dropout", 0.1), {"model.dropout: 0.1 is not supported"});
  RequireRefused(set("/model/byte_fallback", true), {"model.byte_fallback: true is not"});
  RequireRefused(set("/model/end_of_word_suffix", "</w>"), {"model.end_of_word_suffix"});
  RequireRefused(set("/model/scores", 1), {"model: the key \"scores\" is not known"});
  RequireRefused(set("/normalizer", {{"type", "NFKC"}}), {"normalizer.type: NFKC is not"});
  RequireRefused(set("/pre_tokenizer", {{"type", "Metaspace"}}), {"pre_tokenizer.type: Metaspace"});
  RequireRefused(set("/decoder", nullptr), {"decoder: null is not supported; ByteLevel is"});
  RequireRefused(set("/truncation", {{"max_length", 8}}), {"truncation", "not supported; null is"});
  RequireRefused(set("/post_processor", {{"type", "BertProcessing"}}), {"post_processor.type"});
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\w+"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  RequireRefused(set("/pre_tokenizer", split),
                 {"pre_tokenizer.pattern.Regex: \"\\w+\" is not supported"});
  RequireRefused(set("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array()}}),
                 {"without ByteLevel"});
}

TEST_CASE("a damaged file is refused with the place", "[text]") {
  const auto set = [](const char* path, json value) {
    return [=](json& document) { document[json::json_pointer(path)] = value; };
  };
  RequireRefused(set("/version", "2.0"), {"version: \"2.0\" is not known"});
  RequireRefused(set("/model/vocab/a", -1), {"model.vocab.a"});
  RequireRefused(set("/model/vocab/a", int64_t{1} << 40), {"model.vocab.a", "is more than"});
  RequireRefused(set("/model/vocab/a", 7), {"id 7 is another token's, too"});
  RequireRefused([](json& document) { document["model"]["vocab"].erase("a"); },
                 {"model.vocab: no token \"a\" for byte 97"});
  RequireRefused(set("/model/merges/3", "ab"), {"model.merges[3]", "\"ab\""});
  RequireRefused(set("/model/merges/3", {"a", "b", "c"}), {"model.merges[3]", "not 3"});
  RequireRefused(set("/model/merges/3", {"a", "zzz"}), {"model.merges[3]: \"zzz\" is not in"});
  RequireRefused(set("/added_tokens/0/id", 900), {"added_tokens[0].id: 696 is expected"});
  RequireRefused(set("/added_tokens/0/content", ""), {"added_tokens[0].content: empty"});
  RequireRefused([](json& document) { document.erase("model"); }, {"\"model\" is missing"});
  RequireError(ErrorCode::kData, {"t.json", "not valid JSON"}, [] { Tokenizer("{", "t.json"); });
}

TEST_CASE("merges may be one string each, as older files have them", "[text]") {
  json document = text::ReadTestData("tokenizer.json");
  const Tokenizer pairs(document.dump(), "pairs");
  for (json& merge : document["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  document["model"].erase("type");
  const Tokenizer strings(document.dump(), "strings");
  const std::string text = "The administrators' children don't know Größe 12345";
  REQUIRE(TextEncoder(strings).Encode(text) == TextEncoder(pairs).Encode(text));
  REQUIRE(strings.hash() != pairs.hash());
  REQUIRE(strings.hash() == Hash128(strings.json()));
}

}  // namespace
}  // namespace millrace
