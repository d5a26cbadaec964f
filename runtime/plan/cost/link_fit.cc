#include "runtime/plan/cost/link_fit.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {

LinkFit FitLink(const std::vector<TimedBytes>& points) {
  MR_CHECK(!points.empty(), "no collective was timed");
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const auto& [x, y] : points) {
    const double weight = 1 / (y * y);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wy += weight * y;
    wxy += weight * x * y;
  }
  const double spread = w * wxx - wx * wx, slope = (w * wxy - wx * wy) / spread;
  if (!(spread > 0) || !(slope > 0)) {
    const TimedBytes largest = *std::max_element(
        points.begin(), points.end(),
        [](const TimedBytes& a, const TimedBytes& b) { return a.bytes < b.bytes; });
    return {0, largest.bytes / largest.seconds};
  }
  const double start = (wy - slope * wx) / w;
  return start < 0 ? LinkFit{0, wxx / wxy} : LinkFit{start, 1 / slope};
}

}  // namespace millrace
