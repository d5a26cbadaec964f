#include "kernels/cpu/attention.h"

#include <cmath>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

struct Dims {
  int64_t batch, length, heads, kv_heads, head_dim;
  int64_t group() const { return heads / kv_heads; }
};

Dims CheckedDims(const TensorView& q, const TensorView& k, const TensorView& v) {
  const Dims d{q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3)};
  MR_CHECK(d.kv_heads > 0 && d.heads % d.kv_heads == 0, "attention: {} heads on {} key/value heads",
           d.heads, d.kv_heads);
  for (const TensorView* view : {&k, &v})
    MR_CHECK(view->dim(0) == d.batch && view->dim(1) == d.length && view->dim(2) == d.kv_heads &&
                 view->dim(3) == d.head_dim,
             "attention: q is {}, k or v is {}", ToString(q.layout), ToString(view->layout));
  return d;
}

// A [length, head_dim] matrix inside a [B,T,H,D] view: one batch row, one head.
struct Head {
  TensorView view;
  int64_t batch, head;

  Row row(int64_t t) const { return RowAt(view, batch, t, head); }
  bool in_place() const {
    return view.dtype() == DType::kF32 && (view.dim(3) <= 1 || view.stride(3) == 1);
  }
  int64_t ld() const { return std::max(view.dim(1) <= 1 ? 0 : view.stride(1), view.dim(3)); }
};

void CheckHeads(const TensorView& view, const Dims& d, int64_t heads, const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 4 && view.dim(0) == d.batch && view.dim(1) == d.length &&
               view.dim(2) == heads && view.dim(3) == d.head_dim &&
               (d.head_dim <= 1 || view.stride(3) == 1),
           "attention: {} is {}; [{}, {}, {}, {}] with last stride 1 is expected", name,
           ToString(view.layout), d.batch, d.length, heads, d.head_dim);
  MR_CHECK_LE(d.head_dim, kChunk, "attention: head_dim");
}

// Rows [begin, begin + n) of a head as f32: its own memory, or `buffer`.
Matrix LoadRows(const Head& head, int64_t begin, int64_t n, float* buffer) {
  const int64_t d = head.view.dim(3);
  if (head.in_place()) return {head.row(begin).f32(), head.ld()};
  for (int64_t i = 0; i < n; ++i) {
    const float* row = Load(head.row(begin + i), 0, d, buffer + i * d);
    if (row != buffer + i * d) std::copy_n(row, d, buffer + i * d);
  }
  return {buffer, d};
}

// Where rows [begin, ...) of an output head are computed: its own memory, or `buffer`.
struct MutableMatrix {
  float* data;
  int64_t ld;
};
MutableMatrix TargetRows(const Head& head, int64_t begin, float* buffer) {
  if (head.in_place()) return {head.row(begin).f32(), head.ld()};
  return {buffer, head.view.dim(3)};
}

void StoreRows(const Head& head, int64_t begin, int64_t n, MutableMatrix from) {
  for (int64_t i = 0; i < n; ++i)
    Store(head.row(begin + i), 0, head.view.dim(3), from.data + i * from.ld);
}

Matrix Transposed(Matrix m) { return {m.data, m.ld, !m.transposed}; }

float* LseOf(const TensorView& lse, int64_t b, int64_t h, int64_t t) {
  return lse.as<float>() + b * lse.stride(0) + h * lse.stride(1) + t * lse.stride(2);
}

// s[i] = e^(s[i] - shift) for i < n, 0 for n <= i < size.
void ExpMasked(float* s, float shift, int64_t n, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) s[i] = Exp(s[i] - shift);
  std::fill(s + n, s + size, 0.0f);
}

float* TakeUnless(bool in_place, Scratch& scratch, int64_t floats) {
  return in_place ? nullptr : scratch.Take(floats);
}

}  // namespace

void Attention(const AttentionOp<TensorView>& op, Stream&) {
  const Dims d = CheckedDims(op.q, op.k, op.v);
  CheckHeads(op.q, d, d.heads, "q");
  CheckHeads(op.k, d, d.kv_heads, "k");
  CheckHeads(op.v, d, d.kv_heads, "v");
  CheckHeads(op.out, d, d.heads, "out");
  if (d.batch == 0 || d.length == 0) return;
  const int64_t block = std::min(kAttentionRows, d.length);
  Scratch scratch(op.scratch);
  float* const scores = scratch.Take(block * d.length);
  float* const q_buffer = TakeUnless(op.q.dtype() == DType::kF32, scratch, block * d.head_dim);
  float* const k_buffer = TakeUnless(op.k.dtype() == DType::kF32, scratch, d.length * d.head_dim);
  float* const v_buffer = TakeUnless(op.v.dtype() == DType::kF32, scratch, d.length * d.head_dim);
  float* const out_buffer = TakeUnless(op.out.dtype() == DType::kF32, scratch, block * d.head_dim);

  for (int64_t b = 0; b < d.batch; ++b) {
    for (int64_t kv = 0; kv < d.kv_heads; ++kv) {
      const Matrix k = LoadRows({op.k, b, kv}, 0, d.length, k_buffer);
      const Matrix v = LoadRows({op.v, b, kv}, 0, d.length, v_buffer);
      for (int64_t h = kv * d.group(); h < (kv + 1) * d.group(); ++h) {
        for (int64_t begin = 0; begin < d.length; begin += block) {
          const int64_t rows = std::min(block, d.length - begin), keys = begin + rows;
          const Matrix q = LoadRows({op.q, b, h}, begin, rows, q_buffer);
          Gemm(rows, keys, d.head_dim, op.scale, q, Transposed(k), 0.0f, scores, keys);
          float inverse_sum[kAttentionRows];
          for (int64_t i = 0; i < rows; ++i) {
            float* const s = scores + i * keys;
            const float max = Max(s, begin + i + 1);
            ExpMasked(s, max, begin + i + 1, keys);
            const float sum = Sum(s, begin + i + 1);
            inverse_sum[i] = 1.0f / sum;
            if (op.lse) *LseOf(op.lse, b, h, begin + i) = max + std::log(sum);
          }
          const Head out_head{op.out, b, h};
          const MutableMatrix out = TargetRows(out_head, begin, out_buffer);
          Gemm(rows, d.head_dim, keys, 1.0f, {scores, keys}, v, 0.0f, out.data, out.ld);
          for (int64_t i = 0; i < rows; ++i) {
            float* const row = out.data + i * out.ld;
            for (int64_t j = 0; j < d.head_dim; ++j) row[j] *= inverse_sum[i];
          }
          StoreRows(out_head, begin, rows, out);
        }
      }
    }
  }
}

void AttentionGrad(const AttentionGradOp<TensorView>& op, Stream&) {
  const Dims d = CheckedDims(op.q, op.k, op.v);
  for (const auto& [view, name] :
       {std::pair{&op.q, "q"}, {&op.out, "out"}, {&op.d_out, "d_out"}, {&op.d_q, "d_q"}})
    CheckHeads(*view, d, d.heads, name);
  for (const auto& [view, name] :
       {std::pair{&op.k, "k"}, {&op.v, "v"}, {&op.d_k, "d_k"}, {&op.d_v, "d_v"}})
    CheckHeads(*view, d, d.kv_heads, name);
  if (d.batch == 0 || d.length == 0) return;
  const int64_t block = std::min(kAttentionRows, d.length), head_floats = d.length * d.head_dim;
  Scratch scratch(op.scratch);
  float* const p_buffer = scratch.Take(block * d.length);
  float* const ds_buffer = scratch.Take(block * d.length);
  const auto take = [&](const TensorView& view, int64_t floats) {
    return TakeUnless(view.dtype() == DType::kF32, scratch, floats);
  };
  float* const q_buffer = take(op.q, block * d.head_dim);
  float* const k_buffer = take(op.k, head_floats);
  float* const v_buffer = take(op.v, head_floats);
  float* const d_out_buffer = take(op.d_out, block * d.head_dim);
  float* const d_q_buffer = take(op.d_q, block * d.head_dim);
  float* const d_k_buffer = take(op.d_k, head_floats);
  float* const d_v_buffer = take(op.d_v, head_floats);

  for (int64_t b = 0; b < d.batch; ++b) {
    for (int64_t kv = 0; kv < d.kv_heads; ++kv) {
      const Matrix k = LoadRows({op.k, b, kv}, 0, d.length, k_buffer);
      const Matrix v = LoadRows({op.v, b, kv}, 0, d.length, v_buffer);
      const Head d_k_head{op.d_k, b, kv}, d_v_head{op.d_v, b, kv};
      const MutableMatrix d_k = TargetRows(d_k_head, 0, d_k_buffer),
                          d_v = TargetRows(d_v_head, 0, d_v_buffer);
      for (const MutableMatrix& m : {d_k, d_v})
        for (int64_t t = 0; t < d.length; ++t) std::fill_n(m.data + t * m.ld, d.head_dim, 0.0f);

      for (int64_t h = kv * d.group(); h < (kv + 1) * d.group(); ++h) {
        for (int64_t begin = 0; begin < d.length; begin += block) {
          const int64_t rows = std::min(block, d.length - begin), keys = begin + rows;
          const Matrix q = LoadRows({op.q, b, h}, begin, rows, q_buffer);
          const Matrix d_out = LoadRows({op.d_out, b, h}, begin, rows, d_out_buffer);
          const Matrix p{p_buffer, keys}, ds{ds_buffer, keys};
          Gemm(rows, keys, d.head_dim, op.scale, q, Transposed(k), 0.0f, p_buffer, keys);
          Gemm(rows, keys, d.head_dim, 1.0f, d_out, Transposed(v), 0.0f, ds_buffer, keys);
          for (int64_t i = 0; i < rows; ++i) {
            const int64_t t = begin + i, visible = t + 1;
            float* const p_row = p_buffer + i * keys;
            float* const ds_row = ds_buffer + i * keys;
            ExpMasked(p_row, *LseOf(op.lse, b, h, t), visible, keys);
            float buffer[kChunk];
            const float* const out = Load(Head{op.out, b, h}.row(t), 0, d.head_dim, buffer);
            const float delta = Dot(out, d_out.data + i * d_out.ld, d.head_dim);
#pragma omp simd
            for (int64_t u = 0; u < visible; ++u)
              ds_row[u] = p_row[u] * (ds_row[u] - delta) * op.scale;
            std::fill(ds_row + visible, ds_row + keys, 0.0f);
          }
          const Head d_q_head{op.d_q, b, h};
          const MutableMatrix d_q = TargetRows(d_q_head, begin, d_q_buffer);
          Gemm(rows, d.head_dim, keys, 1.0f, ds, k, 0.0f, d_q.data, d_q.ld);
          StoreRows(d_q_head, begin, rows, d_q);
          Gemm(keys, d.head_dim, rows, 1.0f, Transposed(ds), q, 1.0f, d_k.data, d_k.ld);
          Gemm(keys, d.head_dim, rows, 1.0f, Transposed(p), d_out, 1.0f, d_v.data, d_v.ld);
        }
      }
      StoreRows(d_k_head, 0, d.length, d_k);
      StoreRows(d_v_head, 0, d.length, d_v);
    }
  }
}

}  // namespace millrace::cpu
