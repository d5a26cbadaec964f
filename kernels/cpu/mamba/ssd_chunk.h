// A chunk of one head of one sequence, as f32 matrices: what the scan and its gradient share.
//
// Letters  q positions of the chunk, P channels, N states; i, j positions within it. s[i] is the
//          sum of dt*A up to and with i, so that what happened at j has decayed to
//          exp(s[i] - s[j]) at i >= j, and the state before the chunk to exp(s[i]). In double:
//          differences of large sums stay exact.
#pragma once

#include <cmath>

#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/ssd_sizes.h"

namespace millrace::cpu {

// Rows [begin, begin + q) of head or group h of sequence b of a [B,T,H,n] view, to [q,n].
inline void LoadRows(const TensorView& view, int64_t b, int64_t begin, int64_t q, int64_t h,
                     float* to) {
  const int64_t columns = view.dim(3);
  for (int64_t i = 0; i < q; ++i)
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float buffer[kChunk];
      const float* from = Load(RowAt(view, b, begin + i, h), c, n, buffer);
      std::copy_n(from, n, to + i * columns + c);
    });
}

inline void StoreRows(const TensorView& view, int64_t b, int64_t begin, int64_t q, int64_t h,
                      const float* from) {
  const int64_t columns = view.dim(3);
  for (int64_t i = 0; i < q; ++i)
    ForChunks(columns, [&](int64_t c, int64_t n) {
      Store(RowAt(view, b, begin + i, h), c, n, from + i * columns + c);
    });
}

inline float ElementOf(const TensorView& v, int64_t i) {
  float buffer[1];
  return *Load(AsRow(v), i, 1, buffer);
}

struct SsdChunk {
  SsdSizes sizes;
  double* decay;  // s [q]
  float* x;       // [q,P]
  float* u;       // dt * x [q,P]
  float* b;       // [q,N]
  float* c;       // [q,N]
  int64_t q = 0;
  float a = 0;  // A

  // Takes its memory, for chunks of up to sizes.rows() positions.
  SsdChunk(const SsdSizes& s, Scratch& scratch)
      : sizes(s),
        decay(reinterpret_cast<double*>(scratch.Take(2 * s.rows()))),
        x(scratch.Take(s.rows() * s.channels)),
        u(scratch.Take(s.rows() * s.channels)),
        b(scratch.Take(s.rows() * s.states)),
        c(scratch.Take(s.rows() * s.states)) {}

  // Positions [begin, end) of head h of sequence `batch`, as far as a chunk goes.
  template <class Op>
  void Read(const Op& op, int64_t batch, int64_t begin, int64_t end, int64_t h) {
    const int64_t group = h / sizes.heads_of_group();
    q = std::min(sizes.chunk, end - begin);
    a = -Exp(ElementOf(op.a_log, h));
    LoadRows(op.x, batch, begin, q, h, x);
    LoadRows(op.b, batch, begin, q, group, b);
    LoadRows(op.c, batch, begin, q, group, c);
    const float* dt = StepsOf(op, batch, begin, h);
    double sum = 0;
    for (int64_t i = 0; i < q; ++i) {
      const float step = dt[i * sizes.heads];
      decay[i] = sum += double{step} * double{a};
      for (int64_t p = 0; p < sizes.channels; ++p)
        u[i * sizes.channels + p] = step * x[i * sizes.channels + p];
    }
  }

  // dt of the head from a position on; the next is `heads` further.
  template <class Op>
  const float* StepsOf(const Op& op, int64_t batch, int64_t begin, int64_t h) const {
    return op.dt.template as<float>() + (batch * sizes.length + begin) * sizes.heads + h;
  }

  float Between(int64_t i, int64_t j) const { return Exp(static_cast<float>(decay[i] - decay[j])); }
  float FromStart(int64_t i) const { return Exp(static_cast<float>(decay[i])); }
  float ToEnd(int64_t j) const { return Between(q - 1, j); }

  // out[i,:] = factor(i) * rows[i,:], of `columns`.
  template <class Factor>
  void Scale(const float* rows, int64_t columns, float* out, Factor&& factor) const {
    for (int64_t i = 0; i < q; ++i) {
      const float f = factor(i);
#pragma omp simd
      for (int64_t k = 0; k < columns; ++k) out[i * columns + k] = f * rows[i * columns + k];
    }
  }

  // y [q,P], of the state before the chunk and the chunk's own positions. `pairs` [q,q] is scratch.
  void Outputs(const float* state, float d, float* pairs, float* y) const {
    const int64_t P = sizes.channels, N = sizes.states;
    Gemm(q, P, N, 1, {c, N}, {state, N, true}, 0, y, P);
    Scale(y, P, y, [&](int64_t i) { return FromStart(i); });
    Gemm(q, q, N, 1, {c, N}, {b, N, true}, 0, pairs, q);
    for (int64_t i = 0; i < q; ++i)
      for (int64_t j = 0; j < q; ++j)
        pairs[i * q + j] = j > i ? 0.0f : pairs[i * q + j] * Between(i, j);
    Gemm(q, P, q, 1, {pairs, q}, {u, P}, 1, y, P);
    for (int64_t e = 0; e < q * P; ++e) y[e] += d * x[e];
  }

  // state [P,N]: from before the chunk to behind it. `weighted` [q,P] is scratch.
  void Advance(float* state, float* weighted) const {
    const float whole = FromStart(q - 1);
    for (int64_t e = 0; e < sizes.state(); ++e) state[e] *= whole;
    Scale(u, sizes.channels, weighted, [&](int64_t j) { return ToEnd(j); });
    Gemm(sizes.channels, sizes.states, q, 1, {weighted, sizes.channels, true}, {b, sizes.states}, 1,
         state, sizes.states);
  }
};

// Of either op's operands.
template <class Op>
void CheckScan(const Op& op, const TensorView& result) {
  const SsdSizes s = SsdSizesOf(op);
  const auto check = [&](const TensorView& v, int64_t heads, int64_t columns, const char* name) {
    CheckFloat(v, name);
    MR_CHECK(v.layout.rank == 4 && v.dim(0) == s.batch && v.dim(1) == s.length &&
                 v.dim(2) == heads && v.dim(3) == columns,
             "ssd_scan: {} is {}, x is {}", name, ToString(v.layout), ToString(op.x.layout));
  };
  check(op.x, s.heads, s.channels, "x");
  check(op.b, s.groups, s.states, "b");
  check(op.c, s.groups, s.states, "c");
  check(result, s.heads, s.channels, "out or d_x");
  MR_CHECK(op.chunk > 0 && s.groups > 0 && s.heads % s.groups == 0,
           "ssd_scan: chunks of {}, {} heads, {} groups", op.chunk, s.heads, s.groups);
  MR_CHECK(op.dt.dtype() == DType::kF32 && op.dt.layout.contiguous() &&
               op.dt.numel() == s.batch * s.length * s.heads,
           "ssd_scan: dt is {}", ToString(op.dt.layout));
  for (const TensorView* v : {&op.a_log, &op.d}) {
    CheckFloat(*v, "a_log or d");
    MR_CHECK(v->layout.rank == 1 && v->dim(0) == s.heads, "ssd_scan: a_log or d is {}, {} heads",
             ToString(v->layout), s.heads);
  }
}

}  // namespace millrace::cpu
