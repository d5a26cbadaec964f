// How attention walks its operands: blocks of queries, and heads as matrices of f32 rows; and what
// it does to a row of scores.
//
// Order  A row's bits must not depend on how sequences are split over ranks, and the bits of a
//        product's rows depend on its sizes (matmul/gemm.h). So blocks of queries are those of
//        whole sequences: a block that begins before or ends after a rank's chunk is computed with
//        zeros for the rows of others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/context_rows.h"
#include "kernels/ops/cpu_blocking.h"
#include "runtime/base/tensor_view.h"

namespace millrace::cpu {

struct AttentionDims {
  int64_t batch, rows, heads, kv_heads, head_dim;  // rows: of a sequence, this rank's
  int64_t ranks;                                   // that share a sequence
  std::array<int64_t, 2> starts;                   // ContextRows'

  bool split() const { return ranks > 1; }
  int64_t group() const { return heads / kv_heads; }
  int64_t length() const { return ranks * rows; }
  int64_t block() const { return std::min(kAttentionRows, length()); }
  bool empty() const { return batch == 0 || rows == 0; }
};

// Positions [first, end) that are rows [local, ...) of a rank's operands.
struct RowRun {
  int64_t first = 0, end = 0, local = 0;
  int64_t rows() const { return std::max<int64_t>(end - first, 0); }
};

// Positions [begin, begin + rows) of a sequence, which see keys [0, begin + rows). Of them this
// rank has those of its two chunks.
struct QueryBlock {
  int64_t begin, rows;
  std::array<RowRun, 2> own;

  int64_t keys() const { return begin + rows; }
  bool empty() const { return own[0].rows() + own[1].rows() == 0; }
  // f(i, local): row i of the block is row `local` of the operands.
  template <class F>
  void ForOwn(F&& f) const {
    for (const RowRun& run : own)
      for (int64_t t = run.first; t < run.end; ++t) f(t - begin, run.local + t - run.first);
  }
};

// f(block) for each block with rows of this rank.
template <class F>
void ForQueryBlocks(const AttentionDims& d, F&& f) {
  const int64_t chunks = d.split() ? 2 : 1, chunk = d.rows / chunks;
  for (int64_t begin = 0; begin < d.length(); begin += d.block()) {
    QueryBlock block{begin, std::min(d.block(), d.length() - begin), {}};
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t start = d.starts[static_cast<size_t>(i)];
      const int64_t first = std::max(begin, start);
      block.own[static_cast<size_t>(i)] = {first, std::min(block.keys(), start + chunk),
                                           i * chunk + first - start};
    }
    if (!block.empty()) f(block);
  }
}

// Keys that this rank's blocks look at: no later one is read.
inline int64_t VisibleKeys(const AttentionDims& d) {
  int64_t keys = 0;
  ForQueryBlocks(d, [&](const QueryBlock& block) { keys = std::max(keys, block.keys()); });
  return keys;
}

// One batch row and head of a [B,T/n,H,D] view (queries), or of gathered keys [n*B,T/n,Hkv,D]: row
// t is then that of position t.
struct Head {
  TensorView view;
  int64_t batch, head;
  bool split = false;     // AttentionInPlace
  int64_t ranks = 1;      // of keys: n
  int64_t sequences = 1;  // of keys: B

  Row row(int64_t t) const {
    const GatheredPlace place = PlaceOf(ranks, sequences, view.dim(1), batch, t);
    return RowAt(view, place.outer, place.row, head);
  }
  int64_t depth() const { return view.dim(3); }
  bool in_place() const {
    return AttentionInPlace(view.dtype(), split) && (depth() <= 1 || view.stride(3) == 1);
  }
  int64_t ld() const { return std::max(view.dim(1) <= 1 ? 0 : view.stride(1), depth()); }
};

// Rows [begin, begin + n) of a head as f32: its own memory, or `buffer`.
inline Matrix LoadRows(const Head& head, int64_t begin, int64_t n, float* buffer) {
  const int64_t d = head.depth();
  if (head.in_place()) return {head.row(begin).f32(), head.ld()};
  for (int64_t i = 0; i < n; ++i) {
    const float* row = Load(head.row(begin + i), 0, d, buffer + i * d);
    if (row != buffer + i * d) std::copy_n(row, d, buffer + i * d);
  }
  return {buffer, d};
}

// The rows of a block of queries [block.rows, D]; those of other ranks are zero.
inline Matrix LoadRows(const Head& head, const QueryBlock& block, float* buffer) {
  if (head.in_place()) return LoadRows(head, block.begin, block.rows, buffer);
  const int64_t d = head.depth();
  if (head.split) std::fill_n(buffer, block.rows * d, 0.0f);
  for (const RowRun& run : block.own)
    if (run.rows() > 0)
      LoadRows(head, run.local, run.rows(), buffer + (run.first - block.begin) * d);
  return {buffer, d};
}

// Where rows [begin, ...) of an output head are computed: its own memory, or `buffer`.
struct MutableMatrix {
  float* data;
  int64_t ld;
};
inline MutableMatrix TargetRows(const Head& head, int64_t begin, float* buffer) {
  if (head.in_place()) return {head.row(begin).f32(), head.ld()};
  return {buffer, head.depth()};
}

inline void StoreRows(const Head& head, int64_t begin, int64_t n, MutableMatrix from) {
  for (int64_t i = 0; i < n; ++i)
    Store(head.row(begin + i), 0, head.depth(), from.data + i * from.ld);
}

// This rank's rows of a block.
inline void StoreRows(const Head& head, const QueryBlock& block, MutableMatrix from) {
  for (const RowRun& run : block.own)
    if (run.rows() > 0)
      StoreRows(head, run.local, run.rows(),
                {from.data + (run.first - block.begin) * from.ld, from.ld});
}

// s[i] = e^(s[i] - shift) for begin <= i < end, else 0.
inline void ExpMasked(float* s, float shift, int64_t begin, int64_t end, int64_t size) {
  std::fill(s, s + begin, 0.0f);
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) s[i] = Exp(s[i] - shift);
  std::fill(s + end, s + size, 0.0f);
}

// The first key that the query at position t sees.
inline int64_t FirstKey(int64_t t, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, t - window + 1) : 0;
}

// Scores [keys] of the query that sees keys before `end` become e^(score - max), 0 where it sees
// none: not yet divided by their sum.
struct SeenSoftmax {
  float max, sum;
};
inline SeenSoftmax ExpSeen(float* s, int64_t end, int64_t window, int64_t keys) {
  const int64_t first = FirstKey(end - 1, window);
  const float max = Max(s + first, end - first);
  ExpMasked(s, max, first, end, keys);
  return {max, Sum(s + first, end - first)};
}

// Row i of out is multiplied by factor[i].
inline void ScaleRows(MutableMatrix out, int64_t rows, int64_t columns, const float* factor) {
  for (int64_t i = 0; i < rows; ++i) {
    float* const row = out.data + i * out.ld;
    for (int64_t j = 0; j < columns; ++j) row[j] *= factor[i];
  }
}

}  // namespace millrace::cpu
