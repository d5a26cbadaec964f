// Attention over whole sequences and over the same ones split over a context group, in host memory.
// The order of gathered rows is written here once more, from the definition.
#pragma once

#include "kernels/ops/attention_ops.h"
#include "tests/kernels/support/memory.h"

namespace millrace::test {

struct ContextSizes {
  int64_t ranks, chunk, batch, heads, kv_heads, depth;
  DType dtype = DType::kF32;
  int64_t window = 0;

  int64_t rows() const { return 2 * chunk; }
  int64_t length() const { return ranks * rows(); }
  // The position of row i of the rank of place c: chunk c, then chunk 2n-1-c.
  int64_t PositionOf(int64_t c, int64_t i) const {
    return i < chunk ? c * chunk + i : (2 * ranks - 1 - c) * chunk + i - chunk;
  }
};

class ContextCase {
 public:
  explicit ContextCase(const ContextSizes& sizes);

  // The forward op of a gradient's operands.
  static AttentionOp<TensorView> ForwardOf(const AttentionGradOp<TensorView>& grad);

  // The operands of the rank of place c, results not yet formed. Keys have gaps between their rows.
  AttentionGradOp<TensorView> Split(int64_t c);
  // Whole sequences of which only the rank's rows have a gradient, with gradients of their own.
  AttentionGradOp<TensorView> MaskedTo(int64_t c);
  // f(b, t, indices among gathered rows) for each position.
  template <class F>
  void ForGathered(F&& f) const {
    for (int64_t r = 0; r < sizes.ranks; ++r)
      for (int64_t b = 0; b < sizes.batch; ++b)
        for (int64_t i = 0; i < sizes.rows(); ++i)
          f(b, sizes.PositionOf(r, i), r * sizes.batch + b, i);
  }
  // Makes keys and values of the positions from `first` on NaN.
  void Poison(const AttentionGradOp<TensorView>& local, int64_t first) const;

  ContextSizes sizes;
  Memory memory;
  AttentionGradOp<TensorView> whole{};  // results are the caller's to form
};

// Row [b, t] of all heads of `from` into that of `to`.
void CopyHeads(const TensorView& from, int64_t from_b, int64_t from_t, const TensorView& to,
               int64_t to_b, int64_t to_t);

}  // namespace millrace::test
