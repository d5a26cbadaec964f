#include "kernels/cpu/moe/route.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

using Scores = std::array<float, kMaxExperts>;

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kTiny = 1e-20f;  // keeps a sum of vanishing sigmoids from being a divisor of zero

void CheckDense(const TensorView& view, DType dtype, int64_t rows, int64_t columns,
                const char* name) {
  MR_CHECK(view.dtype() == dtype && view.numel() == rows * columns && view.layout.contiguous(),
           "route: {} is {}; dense {} [{}, {}] is needed", name, ToString(view.layout), Name(dtype),
           rows, columns);
}

void Check(const TensorView& logits, const TensorView& ids, const RouteAttrs& attrs) {
  const int64_t experts = logits.dim(1), top_k = ids.dim(1);
  MR_CHECK(
      experts >= 1 && experts <= kMaxExperts && top_k >= 1 && top_k <= kMaxTopK &&
          attrs.groups >= 1 && experts % attrs.groups == 0 && attrs.top_groups >= 1 &&
          attrs.top_groups <= attrs.groups && top_k <= experts / attrs.groups * attrs.top_groups,
      "route: {} of {} experts in {} of {} groups", top_k, experts, attrs.top_groups, attrs.groups);
  CheckDense(logits, DType::kF32, logits.dim(0), experts, "logits");
  CheckDense(ids, DType::kI32, logits.dim(0), top_k, "ids");
}

// s of router_ops.h, in the order of the experts.
void ScoresOf(const float* logits, int64_t experts, RouterKind kind, float* scores) {
  if (kind == RouterKind::kSigmoid) {
    for (int64_t e = 0; e < experts; ++e) scores[e] = Sigmoid(logits[e]);
    return;
  }
  const float largest = *std::max_element(logits, logits + experts);
  double sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    scores[e] = Exp(logits[e] - largest);
    sum += double{scores[e]};
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (int64_t e = 0; e < experts; ++e) scores[e] *= scale;
}

// The index of the largest of n keys that `taken` leaves, the lower one of equals; takes it.
int64_t TakeLargest(const float* keys, int64_t n, bool* taken) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i)
    if (!taken[i] && (best < 0 || keys[i] > keys[best])) best = i;
  taken[best] = true;
  return best;
}

// Takes all experts out of the choice that are not in the groups of largest value.
void LeaveTopGroups(const float* keys, int64_t experts, const RouteAttrs& attrs, bool* taken) {
  if (attrs.top_groups == attrs.groups) return;
  const int64_t size = experts / attrs.groups;
  Scores values;
  std::array<bool, kMaxExperts> chosen{};
  for (int64_t g = 0; g < attrs.groups; ++g) {
    std::array<bool, kMaxExperts> seen{};
    const float* group = keys + g * size;
    values[static_cast<size_t>(g)] = group[TakeLargest(group, size, seen.data())];
    if (size > 1) values[static_cast<size_t>(g)] += group[TakeLargest(group, size, seen.data())];
  }
  for (int64_t k = 0; k < attrs.top_groups; ++k)
    TakeLargest(values.data(), attrs.groups, chosen.data());
  for (int64_t e = 0; e < experts; ++e) taken[e] = !chosen[static_cast<size_t>(e / size)];
}

float ChosenSum(const float* scores, const int32_t* ids, int64_t top_k) {
  float sum = kTiny;
  for (int64_t k = 0; k < top_k; ++k) sum += scores[ids[k]];
  return sum;
}

float SumOf(const float* scores, int64_t experts) {
  return static_cast<float>(SumInDouble(scores, experts));
}

// Rows of each of the groups that the first dim of `of` counts.
int64_t GroupRows(const TensorView& of, int64_t rows) {
  const int64_t groups = of.dim(0);
  MR_CHECK(groups >= 1 && rows % groups == 0, "route: {} rows in {} groups", rows, groups);
  return rows / groups;
}

// Adds to the gradients d of scores what comes by their probabilities, whose gradient is b. Returns
// what that adds to the sum of d s.
float AddBalance(const float* b, int64_t experts, RouterKind kind, const float* s, float* d) {
  const double along = DotInDouble(b, s, experts);
  if (kind == RouterKind::kSoftmax) {
    for (int64_t e = 0; e < experts; ++e) d[e] += b[e];
    return static_cast<float>(along);
  }
  const float scale = 1.0f / SumOf(s, experts), mean = static_cast<float>(along) * scale;
  for (int64_t e = 0; e < experts; ++e) d[e] += (b[e] - mean) * scale;
  return 0;  // sigmoids do not depend on each other
}

}  // namespace

void Route(const RouteOp<TensorView>& op, Stream&) {
  Check(op.logits, op.ids, op);
  const int64_t rows = op.logits.dim(0), experts = op.logits.dim(1), top_k = op.ids.dim(1);
  CheckDense(op.weights, DType::kF32, rows, top_k, "weights");
  if (op.bias) CheckDense(op.bias, DType::kF32, 1, experts, "bias");
  const int64_t stride = BalancedStride(experts, top_k);
  for (int64_t r = 0; r < rows; ++r) {
    Scores scores, keys;
    std::array<bool, kMaxExperts> taken{};
    ScoresOf(op.logits.as<float>() + r * experts, experts, op.score, scores.data());
    for (int64_t e = 0; e < experts; ++e) {
      const auto i = static_cast<size_t>(e);
      keys[i] = op.bias ? scores[i] + op.bias.as<float>()[e] : scores[i];
      if (std::isnan(keys[i])) keys[i] = kLowest;
    }
    LeaveTopGroups(keys.data(), experts, op, taken.data());
    int32_t* ids = op.ids.as<int32_t>() + r * top_k;
    for (int64_t k = 0; k < top_k; ++k)
      ids[k] = static_cast<int32_t>(op.gate == GateKind::kBalanced
                                        ? (r * top_k + k) * stride % experts
                                        : TakeLargest(keys.data(), experts, taken.data()));
    const float divisor = op.normalise ? ChosenSum(scores.data(), ids, top_k) : 1.0f;
    const float scaling = static_cast<float>(op.scaling);
    for (int64_t k = 0; k < top_k; ++k)
      op.weights.as<float>()[r * top_k + k] =
          scores[static_cast<size_t>(ids[k])] / divisor * scaling;
  }
}

// With D the divisor and c the scaling: d_s[k] = c (d_w[k] - sum over j of d_w[j] s[j] / D) / D of
// the chosen, without the sum if not normalised. With b the row of `balance`, softmax:
// d_logit[e] = s[e] (d_s[e] + b[e] - sum (d_s + b) s); sigmoid, Z the sum of all s:
// d_logit[e] = (d_s[e] + (b[e] - sum b s / Z) / Z) s[e] (1 - s[e]).
void RouteGrad(const RouteGradOp<TensorView>& op, Stream&) {
  Check(op.logits, op.ids, op);
  const int64_t rows = op.logits.dim(0), experts = op.logits.dim(1), top_k = op.ids.dim(1);
  CheckDense(op.d_weights, DType::kF32, rows, top_k, "d_weights");
  CheckDense(op.d_logits, op.d_logits.dtype(), rows, experts, "d_logits");
  CheckFloat(op.d_logits, "d_logits");
  const int64_t group_rows = op.balance ? GroupRows(op.balance, rows) : 1;
  const float scaling = static_cast<float>(op.scaling);
  for (int64_t r = 0; r < rows; ++r) {
    Scores s, d{};
    ScoresOf(op.logits.as<float>() + r * experts, experts, op.score, s.data());
    const int32_t* ids = op.ids.as<int32_t>() + r * top_k;
    const float* d_weights = op.d_weights.as<float>() + r * top_k;
    const float divisor = op.normalise ? ChosenSum(s.data(), ids, top_k) : 1.0f;
    float along = 0;  // what the normalisation takes from each
    if (op.normalise)
      for (int64_t k = 0; k < top_k; ++k)
        along += d_weights[k] * (s[static_cast<size_t>(ids[k])] / divisor);
    float mean = 0;
    for (int64_t k = 0; k < top_k; ++k) {
      const auto e = static_cast<size_t>(ids[k]);
      d[e] = (d_weights[k] - along) / divisor * scaling;
      mean += d[e] * s[e];
    }
    if (op.balance)
      mean += AddBalance(op.balance.as<float>() + r / group_rows * experts, experts, op.score,
                         s.data(), d.data());
    for (size_t e = 0; e < static_cast<size_t>(experts); ++e)
      d[e] = op.score == RouterKind::kSoftmax ? s[e] * (d[e] - mean) : d[e] * s[e] * (1.0f - s[e]);
    ForChunks(experts,
              [&](int64_t c, int64_t n) { Store(RowAt(op.d_logits, r), c, n, d.data() + c); });
  }
}

void RouterStats(const RouterStatsOp<TensorView>& op, Stream&) {
  Check(op.logits, op.ids, {.score = op.score});
  const int64_t rows = op.logits.dim(0), experts = op.logits.dim(1), top_k = op.ids.dim(1),
                groups = op.stats.dim(0), group_rows = GroupRows(op.stats, rows);
  CheckDense(op.stats, DType::kF32, groups * 2, experts, "stats");
  for (int64_t g = 0; g < groups; ++g) {
    std::array<double, kMaxExperts> sums{};
    float* counts = op.stats.as<float>() + g * 2 * experts;
    if (op.update == Update::kOverwrite) std::fill_n(counts, 2 * experts, 0.0f);
    for (int64_t r = g * group_rows; r < (g + 1) * group_rows; ++r) {
      Scores s;
      ScoresOf(op.logits.as<float>() + r * experts, experts, op.score, s.data());
      const float scale = op.score == RouterKind::kSigmoid ? 1.0f / SumOf(s.data(), experts) : 1.0f;
      for (size_t e = 0; e < static_cast<size_t>(experts); ++e) sums[e] += double{s[e] * scale};
      for (int64_t k = 0; k < top_k; ++k) ++counts[op.ids.as<int32_t>()[r * top_k + k]];
    }
    for (int64_t e = 0; e < experts; ++e)
      counts[experts + e] += static_cast<float>(sums[static_cast<size_t>(e)]);
  }
}

}  // namespace millrace::cpu
