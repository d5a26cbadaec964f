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
      if (dealt % ranks == rank) rounds.back().push_back({i, sample, 1});
    }
  return rounds;
}

GenerationRequest RequestFor(const Share& share, std::span<const GenerationRequest> requests) {
  GenerationRequest request = requests[share.request];
  if (share.samples == request.samples) return request;
  MR_CHECK_EQ(share.samples, 1, "samples of request {}, of {}: seeds follow from the first",
              share.request, request.samples);
  request.samples = 1;
  request.sampling.seed = SeedOfSample(request.sampling.seed, share.first);
  return request;
}

}  // namespace millrace
