#include "runtime/data/tokens/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"

namespace millrace {

Blend::Blend(const std::vector<double>& weights) : shares_(weights) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, !weights.empty(), "a blend needs at least one source");
  for (const double weight : weights)
    MR_REQUIRE(ErrorCode::kInvalidArgument, weight > 0 && std::isfinite(weight),
               "a blend's weight is {}; above 0 and finite is allowed", weight);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  MR_REQUIRE(ErrorCode::kInvalidArgument, std::isfinite(sum), "the sum of a blend's weights is {}",
             sum);
  for (double& share : shares_) share /= sum;
}

BlendState Blend::Begin() const { return {0, std::vector<int64_t>(shares_.size())}; }

int64_t Blend::Draw(BlendState& state) const {
  const double drawn = std::max(static_cast<double>(state.sample), 1.0);
  size_t furthest = 0;
  double most = shares_[0] * drawn - static_cast<double>(state.taken[0]);
  for (size_t i = 1; i < shares_.size(); ++i) {
    const double behind = shares_[i] * drawn - static_cast<double>(state.taken[i]);
    if (behind > most) {
      most = behind;
      furthest = i;
    }
  }
  ++state.sample;
  ++state.taken[furthest];
  return static_cast<int64_t>(furthest);
}

void Blend::Advance(BlendState& state, int64_t sample) const {
  MR_CHECK_LE(state.sample, sample, "a blend is drawn from front to back");
  if (sources() == 1) {
    state = {sample, {sample}};
    return;
  }
  while (state.sample < sample) Draw(state);
}

bool Blend::IsPossible(const BlendState& state) const {
  if (state.sample < 0 || state.taken.size() != shares_.size()) return false;
  double sum = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    // Shares are rounded: a part in 2^53 of what is compared.
    const double wanted = shares_[i] * static_cast<double>(state.sample);
    const double slack = 1e-9 + wanted * 0x1p-50;
    const double behind = wanted - static_cast<double>(state.taken[i]);
    if (state.taken[i] < 0 || behind < -1 - slack ||
        behind > static_cast<double>(sources() - 1) + slack)
      return false;
    sum += static_cast<double>(state.taken[i]);
  }
  return sum == static_cast<double>(state.sample);
}

}  // namespace millrace
