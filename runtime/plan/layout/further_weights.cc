#include "runtime/plan/layout/further_weights.h"

#include <fmt/core.h>

#include <iterator>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {

std::string FurtherWeightsName(int64_t depth) { return fmt::format("mtp.{}.weights", depth); }

std::vector<FurtherWeights> RolledWeights(std::span<const float> weights, int64_t seq_len,
                                          int64_t depth) {
  MR_CHECK(seq_len > 0 && std::ssize(weights) % seq_len == 0, "{} weights of sequences of {}",
           weights.size(), seq_len);
  std::vector<FurtherWeights> further;
  for (int64_t k = 1; k <= depth; ++k) {
    FurtherWeights of{FurtherWeightsName(k), std::vector<float>(weights.size()), 0};
    for (int64_t i = 0; i < std::ssize(weights); ++i) {
      if (i % seq_len >= seq_len - k) continue;
      const float weight = weights[static_cast<size_t>(i + k)];
      of.values[static_cast<size_t>(i)] = weight;
      of.sum += static_cast<double>(weight);
    }
    further.push_back(std::move(of));
  }
  return further;
}

}  // namespace millrace
