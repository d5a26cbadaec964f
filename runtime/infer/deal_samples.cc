#include "runtime/infer/deal_samples.h"

#include "runtime/base/error.h"

namespace millrace {

std::vector<std::vector<Share>> DealSamples(std::span<const GenerationRequest> requests,
                                            int64_t ranks, int64_t rank, int64_t most) {
  MR_CHECK(rank >= 0 && rank < ranks && most > 0, "samples for rank {} of {}, {} in a round", rank,
           ranks, most);
  std::vector<std::vector<Share>> rounds;
  if (ranks == 1) {
    if (!requests.empty()) rounds.emplace_back();
    for (size_t i = 0; i < requests.size(); ++i) rounds[0].push_back({i, 0, requests[i].samples});
    return rounds;
  }
  int64_t dealt = 0;
  for (size_t i = 0; i < requests.size(); ++i)
    for (int64_t sample = 0; sample < requests[i].samples; ++sample, ++dealt) {
      if (dealt % (ranks * most) == 0) rounds.emplace_back();
      if (dealt % ranks != rank) continue;
      std::vector<Share>& round = rounds.back();
      if (round.empty() || round.back().request != i) round.push_back({i, sample, 0, ranks});
      ++round.back().samples;
    }
  return rounds;
}

GenerationRequest RequestFor(const Share& share, std::span<const GenerationRequest> requests) {
  GenerationRequest request = requests[share.request];
  request.first_sample += share.first * request.sample_step;
  request.sample_step *= share.step;
  request.samples = share.samples;
  return request;
}

}  // namespace millrace
