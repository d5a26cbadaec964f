// Ranks along expert generate sequences of their own in lockstep: what is dispatched has a plan's
// sizes, so all run the same plans, with rows or without.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/infer/generate_all.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

Trial ExpertTrial(int expert, int shard = 1, int tensor = 1) {
  Trial trial =
      GeneratingTrial(ModelConfig::Family::kQwen3Moe, Precision::kFp32, expert * shard * tensor);
  trial.config.model.ffn.reset();
  trial.config.model.moe = {.experts = 8, .top_k = 3, .ffn = 16};
  trial.config.parallel.expert = expert;
  trial.config.parallel.tensor = tensor;
  trial.config.inference.exact = false;
  return trial;
}

TEST_CASE("rows that are dispatched to other ranks have the training forward's logits, nearly") {
  CHECK_NOTHROW(RequireLogits(ExpertTrial(2)));
  CHECK_NOTHROW(RequireLogits(ExpertTrial(4)));
  CHECK_NOTHROW(RequireLogits(ExpertTrial(2, 2)));
  CHECK_NOTHROW(RequireLogits(ExpertTrial(2, 1, 2)));
}

// Samples share pieces of 24 tokens, which end with a page.
Trial SharingTrial(int expert, int shard = 1, int tensor = 1) {
  Trial trial = ExpertTrial(expert, shard, tensor);
  trial.config.inference.page_tokens = 8;
  return trial;
}

// Of so many requests that no two ranks end together, the last rank's none.
std::vector<GenerationRequest> RequestsOf(int data_rank, int data_ranks) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; data_rank + 1 < data_ranks && i < 3 + 5 * data_rank; ++i) {
    GenerationRequest request;
    for (int t = 0; t < 1 + (7 * i + 11 * data_rank) % 33; ++t)
      request.prompt.push_back((t * (i + 2) + data_rank) % 61);
    request.max_tokens = 1 + (5 * i + 3) % 40;
    request.sampling = {
        .temperature = i % 2 == 0 ? 0.0f : 1.0f, .top_p = 0.9f, .seed = static_cast<uint64_t>(i)};
    request.samples = 1 + i % 2;
    requests.push_back(std::move(request));
  }
  return requests;
}

using Drawn = std::vector<std::vector<int32_t>>;  // of each sample of each request

Drawn DrawOn(RankContext& rank, const Config& config,
             const std::vector<GenerationRequest>& requests) {
  EngineTokenModel model(rank.engine, config);
  model.Enter();
  Generator generator(model);
  Drawn drawn;
  for (const GeneratedAnswer& answer : GenerateAll(generator, requests))
    for (const GeneratedSample& sample : answer.samples) {
      std::vector<int32_t>& tokens = drawn.emplace_back();
      for (const SampledToken& token : sample.tokens) tokens.push_back(token.token);
    }
  model.Finish();
  const bool shares = std::any_of(requests.begin(), requests.end(), [](const auto& request) {
    return request.samples > 1 && request.prompt.size() > 24;
  });
  MR_CHECK_EQ(generator.prompt_tokens().shared > 0, shares, "samples that share a prefix");
  return drawn;
}

// By data rank, twice: a second era follows the first.
std::map<int, std::pair<Drawn, Drawn>> DrawAll(const Trial& trial) {
  std::map<int, std::pair<Drawn, Drawn>> all;
  std::mutex mutex;
  RunPlans(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(5);
    const Mesh& mesh = rank.run.layout.mesh;
    const int data_rank = mesh.Index(rank.rank, kDataAxes);
    const auto requests = RequestsOf(data_rank, mesh.data_ranks());
    const Drawn first = DrawOn(rank, trial.config, requests),
                second = DrawOn(rank, trial.config, requests);
    const std::lock_guard lock(mutex);
    const auto [known, is_new] = all.try_emplace(data_rank, first, second);
    MR_CHECK(is_new || known->second == std::pair(first, second), "ranks of data rank {} differ",
             data_rank);
  });
  return all;
}

TEST_CASE("ranks that have other numbers of requests, or none, draw what one rank draws of each") {
  for (const auto& [expert, shard, tensor] :
       {std::tuple{2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {1, 3, 1}, {1, 2, 2}}) {
    const auto all = DrawAll(SharingTrial(expert, shard, tensor));
    REQUIRE(std::ssize(all) == expert * shard);
    CHECK(all.rbegin()->second.first.empty());
    for (const auto& [data_rank, drawn] : all) {
      CAPTURE(expert, shard, tensor, data_rank);
      const auto requests = RequestsOf(data_rank, expert * shard);
      Drawn alone;
      RunPlans(SharingTrial(1), [&](RankContext& rank) {
        rank.engine.InitWeights(5);
        alone = DrawOn(rank, SharingTrial(1).config, requests);
      });
      CHECK(drawn.first == alone);
      CHECK(drawn.second == alone);
    }
  }
}

}  // namespace
}  // namespace millrace::test
