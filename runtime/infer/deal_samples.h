// Samples of requests, dealt out over ranks that draw on their own.
//
// Rounds   Ranks deal alike and go on round by round, so that they can exchange what they have
//          drawn after each: answers come while others are drawn, and no rank waits for longer than
//          a round takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/infer/request.h"

namespace millrace {

// Samples first, first + step, and so on, so many, of one of several requests.
struct Share {
  size_t request = 0;
  int64_t first = 0, samples = 0, step = 1;

  int64_t SampleOf(int64_t i) const { return first + i * step; }
};

// What rank `rank` of `ranks` draws of the requests, by round: as many rounds on each, of at most
// `most` samples of each rank; a round has a request's samples for a rank as one share. One rank:
// all in one round.
std::vector<std::vector<Share>> DealSamples(std::span<const GenerationRequest> requests,
                                            int64_t ranks, int64_t rank, int64_t most);

// The share as a request: it draws what these samples draw among the others, and they share what
// samples of a request share.
GenerationRequest RequestFor(const Share& share, std::span<const GenerationRequest> requests);

}  // namespace millrace
