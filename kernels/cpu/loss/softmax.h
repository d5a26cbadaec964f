// The softmax of a row of logits, for what computes probabilities of tokens: one order of
// additions, so that a token's log-probability has the same bits wherever it is asked for.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {

// Over the first `vocab` elements: sum of e^(x - max) is `sum`.
struct Softmax {
  float max, sum;
  double log_sum_exp() const {
    return static_cast<double>(max) + std::log(static_cast<double>(sum));
  }
};

inline Softmax SoftmaxOf(Row row, int64_t vocab) {
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

}  // namespace millrace::cpu
