// Ranks that each draw their share draw together what one rank draws.
#include "runtime/infer/deal_samples.h"

#include <catch2/catch.hpp>
#include <map>
#include <utility>

#include "runtime/infer/generate_all.h"
#include "tests/runtime/infer/checking_token_model.h"

namespace millrace {
namespace {

using SampleId = std::pair<size_t, int64_t>;  // of a request
using Drawn = std::map<SampleId, std::vector<int32_t>>;

TokenModelLimits Limits() {
  TokenModelLimits limits;
  limits.slots = 3;
  limits.pages = 30;
  limits.page_tokens = 4;
  limits.shares_prefixes = true;
  limits.max_length = 40;
  limits.max_chunk = limits.max_scored = 6;
  limits.vocab = 23;
  return limits;
}

// Request i has 1 + i % 8 samples.
std::vector<GenerationRequest> Requests(int count) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerationRequest& request = requests.emplace_back();
    for (int t = 0; t < 1 + i * 5 % 11; ++t) request.prompt.push_back((i + 3 * t) % 23);
    request.max_tokens = 1 + i * 7 % 20;
    request.samples = 1 + i % 8;
    request.sampling.seed = static_cast<uint64_t>(100 + i);
  }
  return requests;
}

// Tokens that samples behind the first of their request share.
int64_t SharedOf(const std::vector<GenerationRequest>& requests) {
  int64_t shared = 0;
  for (const GenerationRequest& request : requests)
    shared += (request.samples - 1) * ((std::ssize(request.prompt) - 1) / 4 * 4);
  return shared;
}

TEST_CASE("a rank has its samples of a request as one, and of its share a part is another share",
          "[infer]") {
  std::vector<GenerationRequest> requests = Requests(1);
  requests[0].samples = 11;
  const auto rounds = DealSamples(requests, 3, 1, 2);
  REQUIRE(rounds.size() == 2);
  REQUIRE(rounds[1].size() == 1);
  const Share& share = rounds[1][0];
  CHECK(share.samples == 2);
  CHECK(share.SampleOf(0) == 7);
  CHECK(share.SampleOf(1) == 10);
  const GenerationRequest whole = RequestFor(rounds[0][0], requests);  // 1 and 4
  const GenerationRequest part = RequestFor({0, 1, 1, 5}, {&whole, 1});
  CHECK(part.samples == 1);
  CHECK(part.first_sample == 4);
}

TEST_CASE("each sample is dealt once, in as many rounds on each rank, and draws the same") {
  for (const int count : {0, 1, 2, 9})
    for (const int64_t ranks : {1, 2, 3, 7})
      for (const int64_t most : {1, 2, 5}) {
        CAPTURE(count, ranks, most);
        const std::vector<GenerationRequest> requests = Requests(count);
        std::map<SampleId, std::pair<size_t, int64_t>> round_of;  // and its rank
        Drawn drawn;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const auto rounds = DealSamples(requests, ranks, rank, most);
          CHECK(rounds.size() == DealSamples(requests, ranks, 0, most).size());
          for (size_t round = 0; round < rounds.size(); ++round) {
            int64_t samples = 0;
            for (const Share& share : rounds[round]) samples += share.samples;
            if (ranks > 1) CHECK(samples <= most);
            std::vector<GenerationRequest> mine;
            for (const Share& share : rounds[round]) mine.push_back(RequestFor(share, requests));
            test::CheckingTokenModel model(Limits());
            Generator generator(model);
            const auto answers = GenerateAll(generator, mine);
            CHECK(model.shared == SharedOf(mine));
            for (size_t i = 0; i < mine.size(); ++i)
              for (size_t s = 0; s < answers[i].samples.size(); ++s) {
                const Share& share = rounds[round][i];
                const SampleId id{share.request, share.SampleOf(static_cast<int64_t>(s))};
                CHECK(round_of.try_emplace(id, round, rank).second);
                for (const SampledToken& token : answers[i].samples[s].tokens)
                  drawn[id].push_back(token.token);
              }
          }
        }
        Drawn alone;
        test::CheckingTokenModel model(Limits());
        Generator generator(model);
        const auto answers = GenerateAll(generator, requests);
        for (size_t i = 0; i < requests.size(); ++i)
          for (size_t s = 0; s < answers[i].samples.size(); ++s)
            for (const SampledToken& token : answers[i].samples[s].tokens)
              alone[{i, static_cast<int64_t>(s)}].push_back(token.token);
        CHECK(drawn == alone);
        // In order: no sample is of an earlier round than those before it.
        size_t last = 0;
        for (const auto& [id, place] : round_of) {
          CHECK(place.first >= last);
          last = place.first;
        }
      }
}

}  // namespace
}  // namespace millrace
