#include "kernels/cpu/cross_entropy.h"

#include <cmath>
#include <limits>

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

// Over the first `vocab` elements: sum of e^(x - max) is `sum`.
struct Softmax {
  float max, sum;
  double log_sum_exp() const {
    return static_cast<double>(max) + std::log(static_cast<double>(sum));
  }
};

Softmax SoftmaxOf(Row row, int64_t vocab) {
  float buffer[kChunk];
  Softmax s{-std::numeric_limits<float>::infinity(), 0};
  ForChunks(vocab, [&](int64_t c, int64_t n) {
    s.max = std::max(s.max, Max(Load(row, c, n, buffer), n));
  });
  ForChunks(vocab, [&](int64_t c, int64_t n) {
    const float* x = Load(row, c, n, buffer);
    const float max = s.max;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) buffer[i] = Exp(x[i] - max);
    s.sum += Sum(buffer, n);
  });
  return s;
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

}  // namespace

void CrossEntropy(const CrossEntropyOp<TensorView>& op, Stream&) {
  const Tokens targets(op.targets, op.scalars, op.parity_stride);
  const StepScalars& scalars = *op.scalars.as<StepScalars>();
  const int64_t padded = op.logits.dim(1);
  CheckFloat(op.logits, "logits");
  MR_CHECK(op.vocab > 0 && op.vocab <= padded, "cross_entropy: vocabulary {} of {} columns",
           op.vocab, padded);
  MR_CHECK_EQ(Name(op.loss_sum.dtype()), Name(DType::kF64), "cross_entropy: dtype of loss_sum");
  const int64_t first = op.row_begin.value();
  MR_CHECK_LE(first + op.logits.dim(0), targets.rows(), "cross_entropy: last row of the chunk");

  double loss = 0;
  for (int64_t r = 0; r < op.logits.dim(0); ++r) {
    const Row row = RowAt(op.logits, r);
    const int32_t target = targets.at(first + r);
    if (target < 0) {
      if (op.output == LossOutput::kLossAndGradient) Fill(row, 0, padded, 0.0f);
      continue;
    }
    MR_CHECK(target < op.vocab, "cross_entropy: target {} of a vocabulary of {}", target, op.vocab);
    const Softmax softmax = SoftmaxOf(row, op.vocab);
    loss += softmax.log_sum_exp() - static_cast<double>(ElementAt(row, target));
    if (op.output == LossOutput::kLossAndGradient)
      GradientInPlace(row, softmax, target, op.vocab, padded,
                      static_cast<float>(op.loss_weight * scalars.inv_valid_tokens));
  }
  if (scalars.inject_loss_nan != 0) loss = std::numeric_limits<double>::quiet_NaN();
  double& sum = *op.loss_sum.as<double>();
  sum = op.loss_update == Update::kAccumulate ? sum + loss : loss;
}

}  // namespace millrace::cpu
