#include "kernels/ops/sample_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace millrace {
namespace {

// Greater for greater numbers, the same for 0 and -0.
uint32_t OrderedKey(float x) {
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Tokens of equal logits: their key, the sum of amounts ahead of them, and one's own amount.
struct Group {
  uint32_t key = 0;
  uint64_t ahead = 0, each = 0;
};

// In the order of falling keys, the group in which the running sum of amounts first is above
// `target`, which is below the sum of all. By histograms of eight bits at a time.
template <class AmountOf>
Group Find(const std::vector<uint32_t>& keys, uint64_t target, AmountOf&& amount_of) {
  Group found;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::array<uint64_t, 256> bins{};
    for (size_t v = 0; v < keys.size(); ++v)
      if (uint64_t{keys[v] ^ found.key} >> (shift + 8) == 0)
        bins[keys[v] >> shift & 255] += amount_of(v);
    uint32_t bin = 255;
    for (; found.ahead + bins[bin] <= target; --bin) {
      MR_CHECK(bin > 0, "a place of {} in a row of logits is beyond its sum", target);
      found.ahead += bins[bin];
    }
    found.key |= bin << shift;
  }
  const auto first = std::find(keys.begin(), keys.end(), found.key);
  found.each = amount_of(static_cast<size_t>(first - keys.begin()));
  return found;
}

// The id of the tokens with this key that has `nth` ahead of it.
int32_t NthWithKey(const std::vector<uint32_t>& keys, uint32_t key, uint64_t nth) {
  for (size_t v = 0; v < keys.size(); ++v)
    if (keys[v] == key && nth-- == 0) return static_cast<int32_t>(v);
  MR_FAIL("{} more tokens with one logit than there are", nth + 1);
}

// The least integer that is `share` of `sum` or more; one at least, `sum` at most.
uint64_t ShareOf(float share, uint64_t sum) {
  const double wanted = std::ceil(static_cast<double>(share) * static_cast<double>(sum));
  return std::clamp<uint64_t>(static_cast<uint64_t>(wanted), 1, sum);
}

// The upper half of the product.
uint64_t HighProduct(uint64_t a, uint64_t b) {
  const uint64_t low = (a & 0xffffffffu) * (b & 0xffffffffu), x = (a >> 32) * (b & 0xffffffffu),
                 y = (a & 0xffffffffu) * (b >> 32);
  const uint64_t middle = (low >> 32) + (x & 0xffffffffu) + (y & 0xffffffffu);
  return (a >> 32) * (b >> 32) + (x >> 32) + (y >> 32) + (middle >> 32);
}

}  // namespace

bool AllFinite(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
}

// e^-y = 2^-n e^s, n the integer next to y / ln 2 and |s| <= ln 2 / 2, by the series up to s^7 /
// 7!; every step is one f32 operation. ln 2 is the sum of two numbers, of which the first has few
// enough bits for an exact product with n.
uint64_t SampleWeight(float max, float logit, float temperature) {
  constexpr float kLog2E = 1.44269502f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const float y = (max - logit) / temperature;
  if (!(y < 28.0f)) return 0;
  const float n = std::nearbyint(y * kLog2E);
  const float s = std::fma(n, kLn2Low, std::fma(n, kLn2High, -y));
  float e = 1.0f / 5040.0f;
  for (const float c : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f})
    e = std::fma(e, s, c);
  return uint64_t{static_cast<uint32_t>(e * 0x1p30f)} << 10 >> static_cast<uint32_t>(n);
}

int32_t SampleToken(std::span<const float> logits, const SampleParams& params) {
  if (params.given > 0) {
    MR_CHECK_LE(params.given, std::ssize(logits), "the token that is given, and 1");
    return params.given - 1;
  }
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (params.temperature <= 0) return static_cast<int32_t>(largest - logits.begin());
  std::vector<uint32_t> keys;
  std::vector<uint64_t> weights;
  keys.reserve(logits.size());
  weights.reserve(logits.size());
  uint64_t mass = 0;
  for (const float logit : logits) {
    keys.push_back(OrderedKey(logit));
    weights.push_back(SampleWeight(*largest, logit, params.temperature));
    mass += weights.back();
  }
  const auto weight_of = [&](size_t v) { return weights[v]; };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) {
    const auto k = static_cast<uint64_t>(params.top_k);
    const Group last = Find(keys, k - 1, [](size_t) { return uint64_t{1}; });
    mass = 0;
    for (size_t v = 0; v < keys.size(); ++v)
      if (keys[v] > last.key) mass += weights[v];
    mass += (k - last.ahead) * weights[static_cast<size_t>(NthWithKey(keys, last.key, 0))];
  }
  if (params.top_p < 1) {
    const uint64_t reached = ShareOf(params.top_p, mass) - 1;
    const Group last = Find(keys, reached, weight_of);
    mass = last.ahead + ((reached - last.ahead) / last.each + 1) * last.each;
  }
  if (params.min_p > 0) {
    const uint64_t least = ShareOf(params.min_p, uint64_t{1} << 40);
    uint64_t above = 0;
    for (const uint64_t weight : weights) above += weight >= least ? weight : 0;
    mass = std::min(mass, above);
  }
  const PhiloxCounter words =
      PhiloxBlock(params.seed, kSampleStream, static_cast<uint64_t>(params.drawn));
  const uint64_t place = HighProduct(uint64_t{words[0]} << 32 | words[1], mass);
  const Group drawn = Find(keys, place, weight_of);
  return NthWithKey(keys, drawn.key, (place - drawn.ahead) / drawn.each);
}

std::vector<int32_t> LikeliestTokens(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> ids(logits.size());
  for (size_t v = 0; v < ids.size(); ++v) ids[v] = static_cast<int32_t>(v);
  const auto kept = std::min<std::ptrdiff_t>(count, std::ssize(ids));
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  });
  ids.resize(static_cast<size_t>(kept));
  return ids;
}

}  // namespace millrace
