#include "runtime/text/tokenizer/token_stream.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/text/golden.h"

namespace millrace {
namespace {

constexpr EncodeOptions kPlain = {SpecialText::kPlain, AroundText::kNothing};

std::vector<int32_t> Stream(StreamEncoder& stream, const std::string& text, size_t chunk) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size(); at += chunk)
    stream.Push(std::string_view(text).substr(at, chunk), ids);
  stream.Finish(ids);
  return ids;
}

TEST_CASE("text in chunks of any size has the ids of the whole", "[text][stream]") {
  for (const auto& variant : text::ReadGolden()) {
    const Tokenizer tokenizer(variant.json, variant.name);
    TextEncoder encoder(tokenizer);
    StreamEncoder as_tokens(encoder, {}), as_text(encoder, kPlain);
    for (const auto& one : variant.cases)
      for (const size_t chunk : {1, 2, 3, 5, 17, 1000}) {
        CAPTURE(variant.name, one.text, chunk);
        REQUIRE(Stream(as_tokens, one.text, chunk) == one.tokens);
        REQUIRE(Stream(as_text, one.text, chunk) == one.plain);
      }
  }
}

TEST_CASE("ids leave while the text still arrives", "[text][stream]") {
  const Tokenizer tokenizer(text::ReadTestData("tokenizer.json").dump(), "t");
  TextEncoder encoder(tokenizer);
  StreamEncoder stream(encoder, kPlain);
  std::vector<int32_t> ids;
  stream.Push("one two", ids);
  REQUIRE(tokenizer.Decode(ids, SpecialTokens::kKeep) == "one");
  stream.Push(" three\n", ids);
  REQUIRE(tokenizer.Decode(ids, SpecialTokens::kKeep) == "one two three");
}

TEST_CASE("an added token that spans a cut keeps text together", "[text][stream]") {
  auto document = text::ReadTestData("tokenizer.json");
  auto token = document["added_tokens"][0];
  token["content"] = "two words";
  token["id"] = token["id"].get<int>() + 1;
  document["added_tokens"].push_back(token);
  const Tokenizer tokenizer(document.dump(), "t");
  TextEncoder encoder(tokenizer);
  StreamEncoder stream(encoder, {});
  const std::string text = "one two words three";
  REQUIRE(Stream(stream, text, 1) == encoder.Encode(text));
}

TEST_CASE("what is not UTF-8 is found at its place in the whole text", "[text][stream]") {
  const Tokenizer tokenizer(text::ReadTestData("tokenizer.json").dump(), "t");
  TextEncoder encoder(tokenizer);
  for (const size_t chunk : {1, 4, 100})
    for (const std::string bad : {"one two \xff three", "one two \xe4\xb8"}) {
      StreamEncoder stream(encoder, {});
      RequireError(ErrorCode::kData, {"byte 8", "not UTF-8"}, [&] { Stream(stream, bad, chunk); });
    }
}

TEST_CASE("a decoder gives out whole characters", "[text][stream]") {
  const Tokenizer tokenizer(text::ReadTestData("tokenizer.json").dump(), "t");
  TextEncoder encoder(tokenizer);
  StreamDecoder decoder(tokenizer, SpecialTokens::kSkip);
  const std::string text = "a\U0001f600b\u4e2d<|end|>\u00e9";
  std::string all;
  for (const int32_t id : encoder.Encode(text)) {
    const std::string shown = decoder.Push(id);
    REQUIRE((shown.empty() || (static_cast<uint8_t>(shown[0]) & 0xc0) != 0x80));
    all += shown;
  }
  REQUIRE(decoder.Finish().empty());
  REQUIRE(all == "a\U0001f600b\u4e2d\u00e9");
  const int32_t first = encoder.Encode("\U0001f680")[0];  // not a token: the first of its bytes
  REQUIRE(decoder.Push(first).empty());
  REQUIRE(decoder.Finish() == tokenizer.Bytes(first));
}

}  // namespace
}  // namespace millrace
