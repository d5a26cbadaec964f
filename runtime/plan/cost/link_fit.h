// A link's start and rate from timed collectives.
#pragma once

#include <vector>

namespace millrace {

struct TimedBytes {
  double bytes = 0, seconds = 0;  // above 0
};
struct LinkFit {
  double start = 0, rate = 0;  // seconds, at least 0; bytes per second, above 0
};

// seconds = start + bytes / rate, by least squares of relative errors. Where the best line begins
// below 0, the best through 0; where times do not grow with bytes, as on a host with other work,
// the rate that the largest call reached, which is a lower bound. Needs one point or more.
LinkFit FitLink(const std::vector<TimedBytes>& points);

}  // namespace millrace
