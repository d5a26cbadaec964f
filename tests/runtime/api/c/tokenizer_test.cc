// Text to ids and back through millrace.h. That the ids are right is tests/runtime/text's.
#include "tests/runtime/api/c/tokenizer.h"

#include <catch2/catch.hpp>
#include <string>

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("text becomes ids, and ids text", "[api][c]") {
  const OpenTokenizer tokenizer;
  const std::string text = "the house caf\u00e9 \u4e2d <|end|>";
  const std::vector<int32_t> ids = tokenizer.Encode(text);
  REQUIRE(ids.size() > 5);
  REQUIRE(tokenizer.Decode(ids, 0) == text);
  int32_t end = 0, none = 0;
  REQUIRE_CODE(mr_tokenizer_find(tokenizer, "<|end|>", &end), MR_OK);
  REQUIRE_CODE(mr_tokenizer_find(tokenizer, "<|nothing|>", &none), MR_OK);
  REQUIRE(end == ids.back());
  REQUIRE(none == -1);
  REQUIRE(tokenizer.Decode(ids, 1) == text.substr(0, text.find("<|")));
  const std::vector<int32_t> plain = tokenizer.Encode(text, MR_TEXT_PLAIN | MR_TEXT_ALONE);
  REQUIRE(plain.size() > ids.size());
  REQUIRE(tokenizer.Decode(plain, 1) == text);
  REQUIRE(tokenizer.Encode("").empty());
}

TEST_CASE("what there is no room for is counted and not written", "[api][c]") {
  const OpenTokenizer tokenizer;
  const std::string text = "the roof of his house";
  const std::vector<int32_t> ids = tokenizer.Encode(text);
  std::vector<int32_t> some(ids.size(), -7);
  int64_t count = 0;
  REQUIRE_CODE(
      mr_tokenizer_encode(tokenizer, text.data(), std::ssize(text), 0, some.data(), 2, &count),
      MR_OK);
  REQUIRE(count == std::ssize(ids));
  REQUIRE(some[0] == ids[0]);
  REQUIRE(some[1] == ids[1]);
  REQUIRE(some[2] == -7);
  char letters[4] = "???";
  REQUIRE_CODE(mr_tokenizer_decode(tokenizer, ids.data(), count, 0, letters, 2, &count), MR_OK);
  REQUIRE(count == std::ssize(text));
  REQUIRE(std::string(letters) == "th?");
}

TEST_CASE("mistakes with a tokenizer are a status", "[api][c]") {
  mr_tokenizer* none = nullptr;
  REQUIRE_CODE(mr_tokenizer_open(nullptr, &none), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_tokenizer_open("/nonexistent/tokenizer.json", &none), MR_DATA);
  REQUIRE_CODE(mr_tokenizer_open("/", &none), MR_DATA);
  REQUIRE_CODE(mr_tokenizer_open("/", nullptr), MR_INVALID_ARGUMENT);
  mr_tokenizer_free(nullptr);
  const OpenTokenizer tokenizer;
  int32_t ids[4];
  int64_t count = 77;
  const auto encode = [&](const char* text, int64_t bytes, int32_t flags, int64_t room) {
    return Take(mr_tokenizer_encode(tokenizer, text, bytes, flags, ids, room, &count));
  };
  REQUIRE(encode("ab\xff", 3, 0, 4).code == MR_DATA);
  REQUIRE_THAT(encode("ab\xff", 3, 0, 4).message, Contains("byte 2"));
  REQUIRE(encode("ab", -1, 0, 4).code == MR_INVALID_ARGUMENT);
  REQUIRE(encode(nullptr, 1, 0, 4).code == MR_INVALID_ARGUMENT);
  REQUIRE(encode("ab", 2, 4, 4).code == MR_INVALID_ARGUMENT);
  REQUIRE(encode("ab", 2, 0, -1).code == MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_tokenizer_encode(nullptr, "a", 1, 0, ids, 4, &count), MR_INVALID_ARGUMENT);
  char text[4];
  REQUIRE_CODE(mr_tokenizer_decode(tokenizer, nullptr, 1, 0, text, 4, &count), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_tokenizer_decode(tokenizer, ids, 0, 2, text, 4, &count), MR_INVALID_ARGUMENT);
  REQUIRE(count == 77);
  const int32_t strange[] = {-5, 1 << 30};
  REQUIRE(tokenizer.Decode({strange, strange + 2}, 0).empty());
}

}  // namespace
}  // namespace millrace::test
