// What `generate` prints where ranks draw other samples: all of it, in order, once.
#include "tools/cli/use/answers.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>
#include <sstream>
#include <utility>

#include "comm/local/run_ranks.h"
#include "runtime/infer/deal_samples.h"
#include "runtime/infer/generate_all.h"
#include "tests/runtime/infer/checking_token_model.h"

namespace millrace {
namespace {

std::vector<Prompt> Prompts() {
  std::vector<Prompt> prompts;
  for (int i = 0; i < 11; ++i) {
    Prompt& prompt = prompts.emplace_back();
    for (int t = 0; t < 1 + i % 4; ++t) prompt.request.prompt.push_back((i + 3 * t) % 120);
    prompt.request.max_tokens = 1 + i * 7 % 20;
    prompt.request.samples = 1 + i % 3;
    prompt.request.sampling.seed = static_cast<uint64_t>(i);
    if (i % 2 == 0) prompt.stop = {"e", "5"};
  }
  return prompts;
}

constexpr size_t kRefused = 4;  // prompt

struct Said {
  std::string text;
  int64_t tokens = 0;
};

// On `data_ranks` groups of `together` ranks that draw the same.
Said SaidBy(int data_ranks, int together) {
  const std::vector<Prompt> prompts = Prompts();
  std::vector<size_t> numbers;
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i)
    if (i != kRefused) numbers.push_back(i), requests.push_back(prompts[i].request);
  Said said;
  std::ostringstream out;
  std::streambuf* const before = std::cout.rdbuf(out.rdbuf());
  RunRanks(data_ranks * together, [&](Communicator& comm) {
    TokenModelLimits limits;
    limits.slots = 2;
    limits.pages = 40;
    limits.page_tokens = 4;
    limits.shares_prefixes = true;
    limits.max_length = 40;
    limits.max_chunk = limits.max_scored = 6;
    limits.vocab = 120;
    test::CheckingTokenModel model(limits);
    Generator generator(model);
    const ByteCodec codec;
    Answers answers(prompts, codec,
                    {.prints = comm.rank() == 0, .hands_over = comm.rank() % together == 0});
    answers.Print({{kRefused, {RefusalReason::kTooLong, "too long"}}});
    for (const auto& round : DealSamples(requests, data_ranks, comm.rank() / together, 3)) {
      std::vector<GenerationRequest> mine;
      for (const Share& share : round) mine.push_back(RequestFor(share, requests));
      GenerateAll(generator, mine, [&](size_t request, const GenerationEvent& event) {
        const Share& share = round[request];
        answers.Take({numbers[share.request], static_cast<size_t>(share.SampleOf(event.sample))},
                     event, generator);
      });
      answers.Exchange(comm);
    }
    if (comm.rank() == 0) said.tokens = answers.tokens();
  });
  std::cout.rdbuf(before);
  said.text = out.str();
  return said;
}

TEST_CASE("rank 0 says what one rank would say, whoever has drawn it", "[cli]") {
  const Said alone = SaidBy(1, 1);
  CHECK(std::count(alone.text.begin(), alone.text.end(), '\n') == 20);  // 21 samples, 2 refused
  CHECK_THAT(alone.text,
             Catch::Matchers::Contains("{\"index\":4,\"error\":{\"reason\":\"too_long\""));
  CHECK_THAT(alone.text, Catch::Matchers::Contains("\"finish\":\"stop\""));
  for (const auto& [data_ranks, together] : {std::pair{2, 1}, {5, 1}, {2, 2}, {1, 3}}) {
    CAPTURE(data_ranks, together);
    const Said shared = SaidBy(data_ranks, together);
    CHECK(shared.text == alone.text);
    CHECK(shared.tokens == alone.tokens);
  }
}

}  // namespace
}  // namespace millrace
