#include "runtime/text/bpe/bpe_trainer.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/text/golden.h"

namespace millrace {
namespace {

PieceCounts CountsOf(const std::vector<std::string>& texts, SplitPattern pattern) {
  PieceCounts counts(pattern);
  for (const std::string& text : texts) counts.Add(text);
  return counts;
}

TEST_CASE("the most frequent pair is merged first, the smaller of equals", "[text][train]") {
  const auto counts = CountsOf({"abab abab abab cd cd"}, SplitPattern::kGpt2);
  const TrainedBpe trained = TrainBpe(counts, {.vocab = 300});
  REQUIRE(trained.specials == 0);
  REQUIRE(trained.tokens.size() == 261);  // no pair is left
  // ab: 6; then of those with 3, [ab][ab] wins: letters have smaller ids than later tokens, but
  // " " as U+0120 has a larger one than both.
  REQUIRE(trained.tokens[256] == "ab");
  REQUIRE(trained.tokens[257] == "abab");
  REQUIRE(trained.tokens[258] == "cd");  // 2, before " abab" and " cd": the smaller left id
  REQUIRE(trained.tokens[259] == " abab");
  REQUIRE(trained.tokens[260] == " cd");
}

TEST_CASE("what PyPI's tokenizers trains is trained here", "[text][train][golden]") {
  const auto trained_there = text::ReadTestData("tokenizer.json");
  PieceCounts counts(SplitPattern::kGpt2);
  const auto golden = text::ReadTestData("golden.json");
  for (const auto& sentence : golden["sentences"])
    for (int i = 0; i < 3; ++i) counts.Add(sentence.get<std::string>());
  const TrainedBpe trained = TrainBpe(counts, {.vocab = 856, .min_count = 0});
  const auto document = nlohmann::json::parse(TokenizerJson(trained, SplitPattern::kGpt2));
  const auto& merges = document["model"]["merges"];
  for (size_t i = 0; i < merges.size(); ++i) {
    CAPTURE(i);
    REQUIRE(merges[i] == trained_there["model"]["merges"][i]);
  }
  REQUIRE(merges.size() == trained_there["model"]["merges"].size());
  REQUIRE((document["model"]["vocab"] == trained_there["model"]["vocab"]));
}

TEST_CASE("a trained tokenizer loads, with special tokens first", "[text][train]") {
  const std::string text = "the other then there, their theory 2024";
  for (const auto pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    const TrainedBpe trained =
        TrainBpe(CountsOf({text, text}, pattern),
                 {.vocab = 270, .min_count = 2, .special_tokens = {"<|endoftext|>", "<|pad|>"}});
    const Tokenizer tokenizer(TokenizerJson(trained, pattern), "trained");
    REQUIRE(tokenizer.vocab_size() == 270);
    REQUIRE(tokenizer.AddedTokenId("<|pad|>") == 1);
    const std::vector<int32_t> ids = TextEncoder(tokenizer).Encode("<|pad|>" + text);
    REQUIRE(ids[0] == 1);
    REQUIRE(ids.size() < text.size());
    REQUIRE(tokenizer.Decode(ids, SpecialTokens::kSkip) == text);
  }
}

TEST_CASE("counts of threads add up to those of the whole", "[text][train]") {
  PieceCounts sum = CountsOf({"one two"}, SplitPattern::kGpt2);
  sum.Add(CountsOf({" two three"}, SplitPattern::kGpt2));
  REQUIRE(sum.counts() ==
          std::unordered_map<std::string, int64_t>{{"one", 1}, {" two", 2}, {" three", 1}});
}

TEST_CASE("training stops where no pair is frequent, and a small vocabulary is refused",
          "[text][train]") {
  const auto counts = CountsOf({"ab ab xy"}, SplitPattern::kGpt2);
  REQUIRE(TrainBpe(counts, {.vocab = 1000}).tokens.size() == 257);
  RequireError(ErrorCode::kInvalidArgument, {"255", "256 bytes"},
               [&] { TrainBpe(counts, {.vocab = 255}); });
}

}  // namespace
}  // namespace millrace
