// With OpenBLAS's products for Haswell (the target's environment asks for them), which give a row
// other bits in other places: what is generated has the scores' bits, or is refused by name.
#include <catch2/catch.hpp>

#include "tests/runtime/api/c/answers.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

const char* const kExact = R"("inference": {"exact": true}, )";

std::string Tiny(int64_t micro_batch, int64_t seq_len = 8, const std::string& sections = "") {
  return R"({"model": {"family": "llama", "layers": 2, "d_model": 20, "heads": 2, "ffn": 28,
             "vocab": 37, "seq_len": )" +
         std::to_string(seq_len) + R"(}, "optimizer": {"lr": 0.01}, )" + sections +
         R"("train": {"steps": 50, "accumulate": 2, "micro_batch": )" +
         std::to_string(micro_batch) + "}}";
}

// Tokens whose log-probabilities, as drawn, have other bits than their scores, of as many answers
// as a batch has sequences.
int64_t OffScores(mr_run* run, int64_t sequences, int64_t seq_len = 8) {
  const std::vector<int32_t> prompt = {5};
  mr_request request = RequestOf(prompt, seq_len - 1, 1);
  request.samples = sequences;
  const std::vector<Answer> answers = Generate(run, {request});
  std::vector<int32_t> rows;
  for (const Answer& answer : answers) {
    rows.push_back(5);
    rows.insert(rows.end(), answer.tokens.begin(), answer.tokens.end());
    rows.push_back(0);
  }
  std::vector<double> scores(static_cast<size_t>(sequences * seq_len));
  mr_batch batch = BatchOf(rows);
  batch.sequences = sequences;
  REQUIRE_CODE(mr_score(run, &batch, scores.data(), std::ssize(scores)), MR_OK);
  int64_t off = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const std::vector<float>& drawn = answers[static_cast<size_t>(i)].logprobs;
    REQUIRE(std::ssize(drawn) == seq_len - 1);
    for (size_t t = 0; t < drawn.size(); ++t)
      off += static_cast<float>(scores[static_cast<size_t>(i * seq_len) + t]) != drawn[t];
  }
  return off;
}

TEST_CASE("where places of a microbatch have bits of their own, exact caches are refused") {
  const std::string config = Tiny(3, 8, kExact);
  const Linked run(WithInference(config));
  CHECK(run.created().code == MR_CONFIG);
  CHECK(run.created().pointer == "/inference/exact");
  CHECK_THAT(run.created().message,
             Contains("inference.exact is true") && Contains("core Haswell") &&
                 Contains("train.micro_batch 3") && Contains("inference.exact=false") &&
                 Contains("train.micro_batch=1") && Contains("OPENBLAS_CORETYPE=Sandybridge"));
  const Linked plain(Tiny(3));  // it generates nothing
  CHECK(plain.created().code == MR_OK);
}

TEST_CASE("a microbatch of one sequence has one place: decode has its bits") {
  const std::string config = Tiny(1);
  const Linked run(WithInference(config));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  CHECK(OffScores(run, 2) == 0);
}

TEST_CASE("places that are alike, of sequences of as many tokens as a pattern of rows, are taken") {
  const std::string config = Tiny(3, 12, kExact), one_more = Tiny(3, 13, kExact);
  const Linked run(WithInference(config)), refused(WithInference(one_more));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  CHECK(OffScores(run, 6, 12) == 0);
  CHECK(refused.created().code == MR_CONFIG);
}

TEST_CASE("without a word about exact bits, a run has them where products allow") {
  const Linked run(WithInference(Tiny(3)));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  CHECK(OffScores(run, 6) > 0);
}

TEST_CASE("without exact bits, any microbatch generates") {
  const std::string config = Tiny(3, 8, R"("inference": {"exact": false}, )");
  const Linked run(WithInference(config));
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  CHECK(OffScores(run, 6) > 0);
}

}  // namespace
}  // namespace millrace::test
