#include "runtime/serve/answer_text.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/serve/served_text.h"
#include "runtime/text/unicode/unicode.h"

namespace millrace {
namespace {

struct Shown {
  std::string text;
  std::vector<std::pair<int32_t, int64_t>> tokens;  // and their offsets
  std::vector<std::string> pieces;
};

// Token i has the bytes of pieces[i].
Shown ShowAll(const std::vector<std::string>& pieces, const std::vector<std::string>& stops) {
  AnswerText answer(stops);
  Shown shown;
  const auto add = [&](const AnswerPiece& piece) {
    shown.text += piece.text;
    if (!piece.text.empty()) shown.pieces.push_back(piece.text);
    for (const ShownToken& token : piece.tokens)
      shown.tokens.push_back({token.token.token, token.offset});
  };
  for (size_t i = 0; i < pieces.size() && !answer.stopped(); ++i)
    add(answer.Add({.token = static_cast<int32_t>(i), .logprob = 0, .top = {}}, pieces[i]));
  add(answer.End());
  return shown;
}

TEST_CASE("no piece of an answer splits a character", "[serve][answer]") {
  const std::string text = "a\u00e9\u20ac\U0001f600b";
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  const Shown shown = ShowAll(bytes, {});
  CHECK(shown.text == text);
  CHECK(shown.pieces.size() == 5);
  for (const std::string& piece : shown.pieces) CHECK(FindInvalidUtf8(piece) < 0);
  // a, two bytes of the second character, three of the third, four of the fourth, b.
  const std::vector<int64_t> offsets = {0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4};
  REQUIRE(shown.tokens.size() == offsets.size());
  for (size_t i = 0; i < offsets.size(); ++i) {
    CHECK(shown.tokens[i].first == static_cast<int32_t>(i));
    CHECK(shown.tokens[i].second == offsets[i]);
  }
}

TEST_CASE("an answer ends ahead of a stop string, and so do its tokens", "[serve][answer]") {
  const Shown shown = ShowAll({"one", " t", "wo", " thr", "ee"}, {"wo th"});
  CHECK(shown.text == "one t");
  CHECK(shown.tokens == std::vector<std::pair<int32_t, int64_t>>{{0, 0}, {1, 3}});
  CHECK(ShowAll({"one", " t", "wo", " thr"}, {"wo that"}).text == "one two thr");
  CHECK(ShowAll({"one", " t", "wo", " thr"}, {"wo that"}).tokens.size() == 4);
  // Tokens without a text go with those before.
  CHECK(ShowAll({"a", "", "", "b"}, {"b"}).tokens.size() == 3);
}

TEST_CASE("what is no UTF-8 is shown as U+FFFD, however it comes", "[serve][answer]") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const char alphabet[] = {'a', 'b', '\x80', '\xc3', '\xe2', '\x82', '\xac', '\xf0', '\xff'};
    std::vector<std::string> pieces, bytes;
    std::string all;
    for (size_t i = random() % 8; i > 0; --i) {
      std::string& piece = pieces.emplace_back();
      for (size_t n = random() % 4; n > 0; --n) piece += alphabet[random() % sizeof alphabet];
      all += piece;
    }
    for (const char c : all) bytes.emplace_back(1, c);
    CAPTURE(round);
    const Shown shown = ShowAll(pieces, {});
    REQUIRE(shown.text == ValidUtf8(all));
    REQUIRE(ShowAll(bytes, {}).text == shown.text);
    REQUIRE(shown.tokens.size() == pieces.size());
    const size_t cut = shown.text.find("ab");
    REQUIRE(ShowAll(pieces, {"ab"}).text == shown.text.substr(0, cut));
  }
}

}  // namespace
}  // namespace millrace
