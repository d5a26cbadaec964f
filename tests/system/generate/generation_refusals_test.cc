// What a model that generates refuses, and that what is wrong is seen.
#include <catch2/catch.hpp>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/run/generate/inference_plans.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

// A model with one sequence, of which 20 tokens are cached.
struct Started {
  RankContext& rank;
  EngineTokenModel model;
  std::vector<Sequence> sequences;

  Started(RankContext& context, const Config& config)
      : rank(context), model(context.engine, config), sequences(SequencesOf(context, config)) {
    model.Enter();
    for (Sequence& s : sequences) {
      s.prompt = {20};
      test::Prefill(rank, model, s);
    }
  }
  DecodeRow NextRow() {
    Sequence& s = sequences[0];
    return {s.slot, s.cached, s.tokens[20], 0, s.pages, &kGreedy};
  }
  // Of the next token, after `change`: the logits are no longer what they should be.
  bool Differs(const std::function<void(DecodeRow&)>& change) {
    DecodeRow row = NextRow();
    change(row);
    SampledToken sampled;
    model.Decode({&row, 1}, {&sampled, 1});
    Logits found(sequences[0].expected[20].size());
    rank.engine.ReadOutput(DecodePlan(1), "logits", found.data(), std::ssize(found) * 4);
    return found != sequences[0].expected[20];
  }
  std::string ErrorOf(const std::function<void(DecodeRow&)>& change) {
    try {
      Differs(change);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInternal);
      return error.what();
    }
    return "no error";
  }
};

void RunStarted(const std::function<void(Started&)>& f) {
  const Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(5);
    Started started(rank, trial.config);
    f(started);
  });
}

TEST_CASE("a wrong page, slot, length or token is seen in the logits") {
  RunStarted([](Started& s) {
    CHECK_FALSE(s.Differs([](DecodeRow&) {}));
    std::vector<int32_t> pages = s.sequences[0].pages;
    std::swap(pages[0], pages[1]);
    CHECK(s.Differs([&](DecodeRow& row) { row.pages = pages; }));
    pages = s.sequences[0].pages;
    pages[2] = s.sequences[1].pages[2];
    CHECK(s.Differs([&](DecodeRow& row) { row.pages = pages; }));
  });
  RunStarted([](Started& s) {
    CHECK(s.Differs([](DecodeRow& row) { --row.length; }));
    // The place was written, and is written again.
    CHECK(s.Differs([](DecodeRow&) {}));
  });
  RunStarted([](Started& s) { CHECK(s.Differs([](DecodeRow& row) { row.token ^= 1; })); });
}

TEST_CASE("what is not cached, has no place or lies in another era is refused") {
  using Catch::Matchers::Contains;
  RunStarted([](Started& s) {
    CHECK_THAT(s.ErrorOf([](DecodeRow& row) { ++row.length; }), Contains("of which 20 are cached"));
    CHECK_THAT(s.ErrorOf([](DecodeRow& row) { row.slot = 6; }), Contains("slot 6 of 6"));
    CHECK_THAT(s.ErrorOf([](DecodeRow& row) { row.token = 61; }), Contains("token 61 of 61"));
    CHECK_THAT(s.ErrorOf([](DecodeRow& row) { row.pages = row.pages.first(2); }),
               Contains("pages of 21 positions"));
    std::vector<int32_t> pages = s.sequences[0].pages;
    pages[1] = static_cast<int32_t>(s.model.limits().pages);
    CHECK_THAT(s.ErrorOf([&](DecodeRow& row) { row.pages = pages; }), Contains("page 72 of 72"));
    DecodeRow twice[2] = {s.NextRow(), s.NextRow()};
    SampledToken sampled[2];
    CHECK_THROWS_WITH(s.model.Decode(twice, sampled), Contains("one place in a call at most"));
    PrefillRows rests[2];
    for (size_t i = 0; i < 2; ++i) {
      const Sequence& of = s.sequences[i];
      rests[i] = {.slot = of.slot,
                  .tokens = std::span(of.tokens).first(4),
                  .first = 0,
                  .pages = of.pages,
                  .sampling = &kGreedy};
    }
    CHECK_THROWS_WITH(s.model.PrefillTogether(rests, sampled), Contains("tokens of one call"));
    rests[1] = rests[0];
    CHECK_THROWS_WITH(s.model.PrefillTogether(rests, sampled),
                      Contains("one place in a call at most"));
    CHECK_FALSE(s.Differs([](DecodeRow&) {}));  // no refusal has changed what is cached
    // One weight is written; nothing is drawn with the old ones, nor with the new ones from keys
    // that the old ones made.
    const FlatId flat{0};
    std::vector<float> weights = s.rank.engine.ReadShard("master", flat);
    weights[0] += 1;
    s.rank.engine.WriteShard("master", flat, weights);
    CHECK_THAT(s.ErrorOf([](DecodeRow&) {}), Contains("weights have changed"));
    s.model.Enter();
    CHECK_THAT(s.ErrorOf([](DecodeRow&) {}), Contains("of which 0 are cached"));
  });
  RunStarted([](Started& s) {
    StepOn(s.rank, GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32).config, 0);
    CHECK_THAT(s.ErrorOf([](DecodeRow&) {}), Contains("weights have changed"));
  });
}

TEST_CASE("a shared prefix that its pages do not hold is refused") {
  RunStarted([](Started& s) {
    const Sequence &of = s.sequences[0], &other = s.sequences[1];
    // Of pages of 7 the first has two that are full, and six tokens of a third.
    std::vector<int32_t> pages(of.pages.begin(), of.pages.begin() + 2);
    pages.insert(pages.end(), other.pages.begin() + 2, other.pages.end());
    const auto error = [&](int64_t length, int64_t first, const std::vector<int32_t>& tokens,
                           const std::vector<int32_t>& in) -> std::string {
      PrefillRows rows{other.slot, std::span(tokens).subspan(static_cast<size_t>(first), 1),
                       first,      in,
                       &kGreedy,   std::span(tokens).first(static_cast<size_t>(length))};
      try {
        s.model.Prefill(rows);
      } catch (const Error& e) {
        CHECK(e.code() == ErrorCode::kInternal);
        return e.what();
      }
      return "no error";
    };
    using Catch::Matchers::Contains;
    const auto page = [](int32_t at) { return "page " + std::to_string(at) + " does not hold"; };
    CHECK_THAT(error(14, 15, of.tokens, pages), Contains("allowed are multiples of 7"));
    CHECK_THAT(error(13, 13, of.tokens, pages), Contains("allowed are multiples of 7"));
    CHECK_THAT(error(21, 21, of.tokens, of.pages), Contains(page(of.pages[2])));  // not full
    CHECK_THAT(error(14, 14, of.tokens, other.pages), Contains(page(other.pages[0])));
    std::vector<int32_t> tokens = of.tokens;
    tokens[8] ^= 1;
    CHECK_THAT(error(14, 14, tokens, pages), Contains(page(pages[1])));
    std::vector<int32_t> mixed = pages;
    mixed[1] = other.pages[1];  // its tokens are other ones, at the same positions
    CHECK_THAT(error(14, 14, of.tokens, mixed), Contains(page(mixed[1])));
    std::swap(mixed[0], mixed[1]);
    CHECK_THAT(error(14, 14, of.tokens, mixed), Contains(page(mixed[0])));
    CHECK_THAT(error(14, 14, of.tokens, {pages[0]}), Contains("pages of 14 positions"));
    CHECK(error(14, 14, of.tokens, pages) == "no error");
    s.model.Enter();
    CHECK_THAT(error(14, 14, of.tokens, pages), Contains(page(pages[0])));
  });
}

// One weight of the output matrix makes one logit of each row.
TEST_CASE("logits that are not finite are an error, not a token") {
  RunStarted([](Started& s) {
    const FlatId head{static_cast<int32_t>(s.rank.run.layout.flats.size()) - 1};
    std::vector<float> weights = s.rank.engine.ReadShard("master", head);
    weights[weights.size() / 2] = std::numeric_limits<float>::quiet_NaN();
    s.rank.engine.WriteShard("master", head, weights);
    s.model.Enter();
    const Sequence& of = s.sequences[0];
    const auto is_refused = [](const std::function<void()>& draw) {
      try {
        draw();
      } catch (const Error& error) {
        CHECK_THAT(error.what(), Catch::Matchers::Contains("is not finite"));
        return error.code() == ErrorCode::kNonFinite;
      }
      return false;
    };
    PrefillRows rows{of.slot, std::span(of.tokens).first(20), 0, of.pages, &kGreedy};
    CHECK(is_refused([&] { s.model.Prefill(rows); }));
    rows.sampling = nullptr;  // nothing is drawn
    CHECK_FALSE(is_refused([&] { s.model.Prefill(rows); }));
    SampledToken sampled;
    const DecodeRow next{of.slot, 20, of.tokens[20], 0, of.pages, &kGreedy};
    CHECK(is_refused([&] { s.model.Decode({&next, 1}, {&sampled, 1}); }));
  });
}

TEST_CASE("what cannot be generated with caches is refused by its key") {
  using Catch::Matchers::Contains;
  const auto refusal = [](const Trial& trial) -> std::string {
    try {
      static_cast<void>(InferenceRun(trial));
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConfig);
      return error.what();
    }
    return "no error";
  };
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32, 2);
  CHECK(refusal(trial) == "no error");
  trial.config.parallel.context = 2;
  CHECK_THAT(refusal(trial), Contains("parallel.context is 2"));
  trial.config.parallel.context = 1;
  trial.config.parallel.tensor = 2;
  CHECK(refusal(trial) == "no error");
  trial.config.model.family = ModelConfig::Family::kQwen3Moe;
  trial.config.model.ffn.reset();
  trial.config.model.moe = {.experts = 8, .top_k = 3, .ffn = 16};
  CHECK(refusal(trial) == "no error");
  trial.config.parallel.experts_over_tensor = true;
  CHECK_THAT(refusal(trial), Contains("parallel.experts_over_tensor is true"));
  trial.config.parallel.experts_over_tensor = false;
  trial.config.parallel.tensor = 1;
  trial.config.parallel.expert = 2;
  CHECK(refusal(trial) == "no error");
  trial = GeneratingTrial(ModelConfig::Family::kNemotronH, Precision::kFp32);
  trial.config.model.pattern = "*E*-";
  CHECK(refusal(trial) == "no error");  // any bits
  trial.config.inference.exact = true;
  CHECK_THAT(refusal(trial), Contains("model.moe.experts"));
  trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kFp32);
  trial.config.inference.slots = 1;
  CHECK(refusal(trial) == "no error");
}

}  // namespace
}  // namespace millrace::test
