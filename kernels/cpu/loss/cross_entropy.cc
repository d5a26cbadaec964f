#include "kernels/cpu/loss/cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/cpu/loss/softmax.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/tokens.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

float ElementAt(Row row, int64_t i) {
  float buffer[kChunk];
  return *Load(row, i, 1, buffer);
}

void Fill(Row row, int64_t begin, int64_t end, float value) {
  float buffer[kChunk];
  ForChunks(end - begin, [&](int64_t c, int64_t n) {
    float* out = Target(row, begin + c, buffer);
    std::fill_n(out, n, value);
    Store(row, begin + c, n, out);
  });
}

// row[v] = (softmax[v] - [v == target]) * scale, and 0 for the padding.
void GradientInPlace(Row row, const Softmax& s, int64_t target, int64_t vocab, int64_t padded,
                     float scale) {
  const float max = s.max, inverse_sum = 1.0f / s.sum;
  ForChunks(vocab, [&](int64_t c, int64_t n) {
    float buffer[kChunk];
    const float* x = Load(row, c, n, buffer);
    float* d = Target(row, c, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) buffer[i] = Exp(x[i] - max) * inverse_sum;
    if (target >= c && target < c + n) buffer[target - c] -= 1.0f;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) d[i] = buffer[i] * scale;
    Store(row, c, n, d);
  });
  Fill(row, vocab, padded, 0.0f);
}

// What a row is told beside its target, by operand; an operand that is absent gives `absent`.
class TargetValues {
 public:
  TargetValues(const TensorView& view, const CrossEntropyOp<TensorView>& op, const Tokens& targets,
               double absent)
      : absent_(absent) {
    if (!view) return;
    rows_.emplace(view, op.scalars, op.values_parity_stride);
    MR_CHECK_EQ(rows_->rows(), targets.rows(), "cross_entropy: rows of a value of each target");
  }
  bool given() const { return rows_.has_value(); }
  double at(int64_t row) const { return rows_ ? static_cast<double>(rows_->at(row)) : absent_; }

 private:
  std::optional<HostRows<float>> rows_;
  double absent_;
};

// Of a target that counts: its loss without its weight, and what multiplies softmax - [y].
struct Term {
  double loss, slope;
};

// -min(ratio A, clamp(ratio) A) + kl k of the log-probability l, and -d/dl of it.
class PolicyTerms {
 public:
  PolicyTerms(const CrossEntropyOp<TensorView>& op, const Tokens& targets)
      : attrs_(op.policy),
        old_(op.old_logprobs, op, targets, 0),
        advantages_(op.advantages, op, targets, 0),
        reference_(op.reference_logprobs, op, targets, 0) {
    MR_CHECK(
        old_.given() == advantages_.given() && (advantages_.given() || !reference_.given()),
        "cross_entropy: old_logprobs and advantages go together, reference_logprobs with them");
    MR_CHECK(!op.tally || (given() && op.tally.numel() == PolicyTally::kCount &&
                           op.tally.dtype() == DType::kF32),
             "cross_entropy: a tally of {}", op.tally ? ToString(op.tally.layout) : "");
  }
  bool given() const { return advantages_.given(); }
  const std::array<double, PolicyTally::kCount>& tally() const { return tally_; }

  Term At(int64_t row, float logprob) {
    const double advantage = advantages_.at(row), moved = logprob - old_.at(row),
                 ratio = std::exp(moved), apart = reference_.at(row) - logprob;
    const double clamped = std::clamp(ratio, 1 - static_cast<double>(attrs_.clip_low),
                                      1 + static_cast<double>(attrs_.clip_high)) *
                           advantage;
    const bool clipped = clamped < ratio * advantage;
    const double divergence = reference_.given() ? std::exp(apart) - apart - 1 : ratio - 1 - moved;
    tally_[PolicyTally::kTargets] += 1;
    tally_[PolicyTally::kClipped] += clipped ? 1 : 0;
    tally_[PolicyTally::kRatios] += ratio;
    tally_[PolicyTally::kDivergence] += divergence;
    Term term{clipped ? -clamped : -(ratio * advantage), clipped ? 0 : ratio * advantage};
    if (reference_.given()) {
      term.loss += attrs_.kl * divergence;
      term.slope += attrs_.kl * (std::exp(apart) - 1);
    }
    return term;
  }

 private:
  PolicyLoss attrs_;
  TargetValues old_, advantages_, reference_;
  std::array<double, PolicyTally::kCount> tally_ = {};
};

void AddTally(const CrossEntropyOp<TensorView>& op, const PolicyTerms& policy) {
  if (!op.tally) return;
  for (int64_t i = 0; i < PolicyTally::kCount; ++i) {
    float& cell = op.tally.as<float>()[i];
    const auto sum = static_cast<float>(policy.tally()[static_cast<size_t>(i)]);
    cell = op.tally_update == Update::kAccumulate ? cell + sum : sum;
  }
}

}  // namespace

void CrossEntropy(const CrossEntropyOp<TensorView>& op, Stream&) {
  const Tokens targets(op.targets, op.scalars, op.parity_stride);
  const TargetValues weights(op.weights, op, targets, 1);
  PolicyTerms policy(op, targets);
  const StepScalars& scalars = *op.scalars.as<StepScalars>();
  const int64_t padded = op.logits.dim(1);
  CheckFloat(op.logits, "logits");
  MR_CHECK(op.vocab > 0 && op.vocab <= padded, "cross_entropy: vocabulary {} of {} columns",
           op.vocab, padded);
  MR_CHECK_EQ(Name(op.loss_sum.dtype()), Name(DType::kF64), "cross_entropy: dtype of loss_sum");
  const int64_t first = op.row_begin.value();
  MR_CHECK_LE(first + op.logits.dim(0), targets.rows(), "cross_entropy: last row of the chunk");

  MR_CHECK(!op.row_loss ||
               (op.row_loss.dtype() == DType::kF64 && op.row_loss.numel() == op.logits.dim(0)),
           "cross_entropy: row_loss of {} rows is {}", op.logits.dim(0),
           ToString(op.row_loss.layout));
  double* const row_loss = op.row_loss.as<double>();

  double loss = 0;
  for (int64_t r = 0; r < op.logits.dim(0); ++r) {
    const Row row = RowAt(op.logits, r);
    const int32_t target = targets.at(first + r);
    const double weight = weights.at(first + r);
    if (target < 0 || weight == 0) {
      if (op.row_loss) row_loss[r] = 0;
      if (op.output == LossOutput::kLossAndGradient) Fill(row, 0, padded, 0.0f);
      continue;
    }
    MR_CHECK(target < op.vocab, "cross_entropy: target {} of a vocabulary of {}", target, op.vocab);
    const Softmax softmax = SoftmaxOf(row, op.vocab);
    const double surprise = softmax.log_sum_exp() - static_cast<double>(ElementAt(row, target));
    const Term term =
        policy.given() ? policy.At(first + r, static_cast<float>(-surprise)) : Term{surprise, 1};
    if (op.row_loss) row_loss[r] = weight * term.loss;
    loss += weight * term.loss;
    if (op.output == LossOutput::kLossAndGradient)
      GradientInPlace(row, softmax, target, op.vocab, padded,
                      static_cast<float>(op.loss_weight * scalars.inv_valid_tokens *
                                         (weight * term.slope) * scalars.loss_scale));
  }
  if (scalars.inject_loss_nan != 0) loss = std::numeric_limits<double>::quiet_NaN();
  double& sum = *op.loss_sum.as<double>();
  sum = op.loss_update == Update::kAccumulate ? sum + loss : loss;
  AddTally(op, policy);
}

}  // namespace millrace::cpu
