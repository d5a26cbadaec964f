#include "runtime/run/generate/host_sampler.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops/sample_row.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

double LogSumExp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

}  // namespace

SampleParams ParamsOf(const Sampling& sampling, int64_t drawn) {
  SampleParams params;
  params.temperature = sampling.temperature;
  params.top_k = sampling.top_k;
  params.top_p = sampling.top_p;
  params.min_p = sampling.min_p;
  params.seed = sampling.seed;
  params.drawn = drawn;
  params.top = sampling.top;
  return params;
}

namespace {

SampledToken TokenOf(std::span<const float> logits, const SampleParams& params) {
  MR_REQUIRE(ErrorCode::kNonFinite, AllFinite(logits),
             "a logit of the token that follows {} drawn ones is not finite", params.drawn);
  const double log_sum = LogSumExp(logits);
  const auto log_probability = [&](int32_t token) {
    return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  };
  SampledToken out;
  out.token = SampleToken(logits, params);
  out.logprob = log_probability(out.token);
  for (const int32_t token : LikeliestTokens(logits, params.top))
    out.top.push_back({token, log_probability(token)});
  return out;
}

}  // namespace

SampledToken DrawToken(std::span<const float> logits, const Sampling& sampling, int64_t drawn) {
  return TokenOf(logits, ParamsOf(sampling, drawn));
}

SampledToken ScoreToken(std::span<const float> logits, int32_t token, int32_t top) {
  SampleParams params;
  params.given = token + 1;
  params.top = top;
  return TokenOf(logits, params);
}

}  // namespace millrace
