#include "tests/kernels/support/context_case.h"

#include <cmath>
#include <limits>
#include <tuple>

namespace millrace::test {

void CopyHeads(const TensorView& from, int64_t from_b, int64_t from_t, const TensorView& to,
               int64_t to_b, int64_t to_t) {
  for (int64_t h = 0; h < to.dim(2); ++h)
    for (int64_t d = 0; d < to.dim(3); ++d)
      Set(to, {to_b, to_t, h, d}, Get(from, from_b, from_t, h, d));
}

ContextCase::ContextCase(const ContextSizes& s) : sizes(s) {
  Random random(7);
  const auto make = [&](int64_t heads) {
    return memory.NewRandom(random, s.dtype, {s.batch, s.length(), heads, s.depth});
  };
  whole.window = s.window;
  whole.scale = 1 / std::sqrt(static_cast<float>(s.depth));
  whole.q = make(s.heads), whole.k = make(s.kv_heads), whole.v = make(s.kv_heads);
  whole.d_out = make(s.heads);
  whole.out = memory.NewLike(whole.q), whole.d_q = memory.NewLike(whole.q);
  whole.d_k = memory.NewLike(whole.k), whole.d_v = memory.NewLike(whole.v);
  whole.lse = memory.New(DType::kF32, {s.batch, s.heads, s.length()});
}

AttentionOp<TensorView> ContextCase::ForwardOf(const AttentionGradOp<TensorView>& grad) {
  AttentionOp<TensorView> op{};
  op.scale = grad.scale, op.window = grad.window, op.rows = grad.rows;
  op.q = grad.q, op.k = grad.k, op.v = grad.v, op.out = grad.out, op.lse = grad.lse;
  return op;
}

AttentionGradOp<TensorView> ContextCase::Split(int64_t c) {
  const ContextSizes& s = sizes;
  AttentionGradOp<TensorView> local{};
  local.scale = whole.scale;
  local.window = whole.window;
  local.rows = {.ranks = s.ranks,
                .first = RankInt(c * s.chunk),
                .second = RankInt((2 * s.ranks - 1 - c) * s.chunk)};
  const auto queries = [&] { return memory.New(s.dtype, {s.batch, s.rows(), s.heads, s.depth}); };
  // Keys and values are neighbours in a row, as a projection writes them.
  const auto keys = [&] {
    const TensorView row =
        memory.New(s.dtype, {s.ranks * s.batch, s.rows(), 2 * s.kv_heads, s.depth});
    TensorView k = row;
    k.layout.dims[2] = s.kv_heads;
    TensorView v = k;
    v.data += s.kv_heads * s.depth * Bytes(s.dtype);
    return std::pair{k, v};
  };
  local.q = queries(), local.d_out = queries(), local.out = queries(), local.d_q = queries();
  std::tie(local.k, local.v) = keys();
  std::tie(local.d_k, local.d_v) = keys();
  local.lse = memory.New(DType::kF32, {s.batch, s.heads, s.rows()});
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < s.rows(); ++i) {
      const int64_t t = s.PositionOf(c, i);
      CopyHeads(whole.q, b, t, local.q, b, i);
      CopyHeads(whole.d_out, b, t, local.d_out, b, i);
    }
  }
  ForGathered([&](int64_t b, int64_t t, int64_t outer, int64_t row) {
    CopyHeads(whole.k, b, t, local.k, outer, row);
    CopyHeads(whole.v, b, t, local.v, outer, row);
  });
  return local;
}

AttentionGradOp<TensorView> ContextCase::MaskedTo(int64_t c) {
  AttentionGradOp<TensorView> masked = whole;
  masked.d_out = memory.NewLike(whole.d_out), masked.d_q = memory.NewLike(whole.d_q);
  masked.d_k = memory.NewLike(whole.d_k), masked.d_v = memory.NewLike(whole.d_v);
  ForEach(whole.d_out.layout, [&](const Index& i) { Set(masked.d_out, i, 0); });
  for (int64_t b = 0; b < sizes.batch; ++b) {
    for (int64_t i = 0; i < sizes.rows(); ++i) {
      const int64_t t = sizes.PositionOf(c, i);
      CopyHeads(whole.d_out, b, t, masked.d_out, b, t);
    }
  }
  return masked;
}

void ContextCase::Poison(const AttentionGradOp<TensorView>& local, int64_t first) const {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ForGathered([&](int64_t, int64_t t, int64_t outer, int64_t row) {
    if (t < first) return;
    for (int64_t h = 0; h < sizes.kv_heads; ++h) {
      for (int64_t d = 0; d < sizes.depth; ++d) {
        Set(local.k, {outer, row, h, d}, nan);
        Set(local.v, {outer, row, h, d}, nan);
      }
    }
  });
}

}  // namespace millrace::test
