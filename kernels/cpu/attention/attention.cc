#include "kernels/cpu/attention/attention.h"

#include <cmath>

#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/documents.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

AttentionDims CheckedDims(const TensorView& q, const TensorView& k, const TensorView& v,
                          const ContextRows& rows) {
  const AttentionDims d{
      q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3), rows.ranks, ChunkStarts(rows, q.dim(1))};
  MR_CHECK(d.kv_heads > 0 && d.heads % d.kv_heads == 0, "attention: {} heads on {} key/value heads",
           d.heads, d.kv_heads);
  for (const TensorView* view : {&k, &v})
    MR_CHECK(view->dim(0) == d.ranks * d.batch && view->dim(1) == d.rows &&
                 view->dim(2) == d.kv_heads && view->dim(3) == d.head_dim,
             "attention: q is {}, k or v is {}", ToString(q.layout), ToString(view->layout));
  return d;
}

void CheckHeads(const TensorView& view, const AttentionDims& d, int64_t batch, int64_t heads,
                const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 4 && view.dim(0) == batch && view.dim(1) == d.rows &&
               view.dim(2) == heads && view.dim(3) == d.head_dim &&
               (d.head_dim <= 1 || view.stride(3) == 1),
           "attention: {} is {}; [{}, {}, {}, {}] with last stride 1 is expected", name,
           ToString(view.layout), batch, d.rows, heads, d.head_dim);
  MR_CHECK_LE(d.head_dim, kChunk, "attention: head_dim");
}

void CheckQueries(const TensorView& view, const AttentionDims& d, const char* name) {
  CheckHeads(view, d, d.batch, d.heads, name);
}
void CheckKeys(const TensorView& view, const AttentionDims& d, const char* name) {
  CheckHeads(view, d, d.ranks * d.batch, d.kv_heads, name);
}

Head Queries(const TensorView& view, const AttentionDims& d, int64_t b, int64_t h) {
  return {view, b, h, d.split()};
}
Head Keys(const TensorView& view, const AttentionDims& d, int64_t b, int64_t h) {
  return {view, b, h, d.split(), d.ranks, d.batch};
}

Matrix Transposed(Matrix m) { return {m.data, m.ld, !m.transposed}; }

float* LseOf(const TensorView& lse, int64_t b, int64_t h, int64_t t) {
  return lse.as<float>() + b * lse.stride(0) + h * lse.stride(1) + t * lse.stride(2);
}

// A buffer for an operand that needs one (AttentionInPlace).
float* BufferOf(const TensorView& view, const AttentionDims& d, Scratch& scratch, int64_t rows) {
  return AttentionInPlace(view.dtype(), d.split()) ? nullptr : scratch.Take(rows * d.head_dim);
}

// Of lse [B,H,T].
TensorView LsePartOf(TensorView lse, int64_t b, int64_t begin, int64_t end) {
  if (!lse) return lse;
  lse.data += (b * lse.stride(0) + begin * lse.stride(2)) * Bytes(lse.dtype());
  lse.layout.dims[0] = 1;
  lse.layout.dims[2] = end - begin;
  return lse;
}

// f(op) for the op on each document, as if it were alone: so it has the bits that it has alone.
template <class Op, class F>
void ForEachDocument(const Op& op, F&& f) {
  MR_CHECK(!op.rows.split(), "attention: documents in rows that are split over ranks");
  const Documents documents(op.documents, op.q.dim(0), op.q.dim(1));
  for (int64_t b = 0; b < op.q.dim(0); ++b)
    documents.ForEach(b, [&](int64_t begin, int64_t end) {
      Op part = op;
      part.documents = {};
      Op::Visit(part, [&](TensorView& view, Access access, std::string_view) {
        if (&view == &part.lse)
          view = LsePartOf(view, b, begin, end);
        else if (access != Access::kScratch)
          view = PartOf(view, b, begin, end);
      });
      f(part);
    });
}

}  // namespace

void Attention(const AttentionOp<TensorView>& op, Stream& stream) {
  if (op.documents)
    return ForEachDocument(
        op, [&](const AttentionOp<TensorView>& document) { Attention(document, stream); });
  const AttentionDims d = CheckedDims(op.q, op.k, op.v, op.rows);
  CheckQueries(op.q, d, "q");
  CheckKeys(op.k, d, "k");
  CheckKeys(op.v, d, "v");
  CheckQueries(op.out, d, "out");
  if (d.empty()) return;
  Scratch scratch(op.scratch);
  float* const scores = scratch.Take(d.block() * d.length());
  float* const q_buffer = BufferOf(op.q, d, scratch, d.block());
  float* const k_buffer = BufferOf(op.k, d, scratch, d.length());
  float* const v_buffer = BufferOf(op.v, d, scratch, d.length());
  float* const out_buffer = BufferOf(op.out, d, scratch, d.block());
  const int64_t needed = VisibleKeys(d);

  for (int64_t b = 0; b < d.batch; ++b) {
    for (int64_t kv = 0; kv < d.kv_heads; ++kv) {
      const Matrix k = LoadRows(Keys(op.k, d, b, kv), 0, needed, k_buffer);
      const Matrix v = LoadRows(Keys(op.v, d, b, kv), 0, needed, v_buffer);
      for (int64_t h = kv * d.group(); h < (kv + 1) * d.group(); ++h) {
        ForQueryBlocks(d, [&](const QueryBlock& block) {
          const int64_t rows = block.rows, keys = block.keys();
          const Matrix q = LoadRows(Queries(op.q, d, b, h), block, q_buffer);
          Gemm(rows, keys, d.head_dim, op.scale, q, Transposed(k), 0.0f, scores, keys);
          float inverse_sum[kAttentionRows] = {};
          block.ForOwn([&](int64_t i, int64_t local) {
            float* const s = scores + i * keys;
            const int64_t end = block.begin + i + 1;
            const SeenSoftmax of_row = ExpSeen(s, end, op.window, keys);
            inverse_sum[i] = 1.0f / of_row.sum;
            if (op.lse) *LseOf(op.lse, b, h, local) = of_row.max + std::log(of_row.sum);
          });
          const Head out_head = Queries(op.out, d, b, h);
          const MutableMatrix out = TargetRows(out_head, block.begin, out_buffer);
          Gemm(rows, d.head_dim, keys, 1.0f, {scores, keys}, v, 0.0f, out.data, out.ld);
          ScaleRows(out, rows, d.head_dim, inverse_sum);
          StoreRows(out_head, block, out);
        });
      }
    }
  }
}

namespace {

// The f32 buffers of a gradient's operands, and its tiles of scores.
struct GradScratch {
  GradScratch(const AttentionGradOp<TensorView>& op, const AttentionDims& d, Scratch scratch)
      : p(scratch.Take(d.block() * d.length())),
        d_s(scratch.Take(d.block() * d.length())),
        q(BufferOf(op.q, d, scratch, d.block())),
        k(BufferOf(op.k, d, scratch, d.length())),
        v(BufferOf(op.v, d, scratch, d.length())),
        d_out(BufferOf(op.d_out, d, scratch, d.block())),
        d_q(BufferOf(op.d_q, d, scratch, d.block())),
        d_k(BufferOf(op.d_k, d, scratch, d.length())),
        d_v(BufferOf(op.d_v, d, scratch, d.length())) {}
  float *p, *d_s, *q, *k, *v, *d_out, *d_q, *d_k, *d_v;
};

// p and d_s of a block from q.k and d_out.v, in place; rows of other ranks are not touched.
void ScoreGradients(const AttentionGradOp<TensorView>& op, const Head& out, const QueryBlock& block,
                    Matrix d_out, const GradScratch& scratch) {
  const int64_t keys = block.keys(), depth = out.depth();
  block.ForOwn([&](int64_t i, int64_t local) {
    const int64_t end = block.begin + i + 1, first = FirstKey(end - 1, op.window);
    float* const p = scratch.p + i * keys;
    float* const d_s = scratch.d_s + i * keys;
    ExpMasked(p, *LseOf(op.lse, out.batch, out.head, local), first, end, keys);
    float buffer[kChunk];
    const float delta =
        Dot(Load(out.row(local), 0, depth, buffer), d_out.data + i * d_out.ld, depth);
#pragma omp simd
    for (int64_t u = first; u < end; ++u) d_s[u] = p[u] * (d_s[u] - delta) * op.scale;
    std::fill(d_s, d_s + first, 0.0f);
    std::fill(d_s + end, d_s + keys, 0.0f);
  });
}

}  // namespace

void AttentionGrad(const AttentionGradOp<TensorView>& op, Stream& stream) {
  if (op.documents)
    return ForEachDocument(
        op, [&](const AttentionGradOp<TensorView>& document) { AttentionGrad(document, stream); });
  const AttentionDims d = CheckedDims(op.q, op.k, op.v, op.rows);
  for (const auto& [view, name] :
       {std::pair{&op.q, "q"}, {&op.out, "out"}, {&op.d_out, "d_out"}, {&op.d_q, "d_q"}})
    CheckQueries(*view, d, name);
  for (const auto& [view, name] :
       {std::pair{&op.k, "k"}, {&op.v, "v"}, {&op.d_k, "d_k"}, {&op.d_v, "d_v"}})
    CheckKeys(*view, d, name);
  if (d.empty()) return;
  const GradScratch scratch(op, d, Scratch(op.scratch));
  const int64_t needed = VisibleKeys(d);

  for (int64_t b = 0; b < d.batch; ++b) {
    for (int64_t kv = 0; kv < d.kv_heads; ++kv) {
      const Matrix k = LoadRows(Keys(op.k, d, b, kv), 0, needed, scratch.k);
      const Matrix v = LoadRows(Keys(op.v, d, b, kv), 0, needed, scratch.v);
      const Head d_k_head = Keys(op.d_k, d, b, kv), d_v_head = Keys(op.d_v, d, b, kv);
      const MutableMatrix d_k = TargetRows(d_k_head, 0, scratch.d_k),
                          d_v = TargetRows(d_v_head, 0, scratch.d_v);
      for (const MutableMatrix& m : {d_k, d_v})
        for (int64_t t = 0; t < d.length(); ++t) std::fill_n(m.data + t * m.ld, d.head_dim, 0.0f);

      for (int64_t h = kv * d.group(); h < (kv + 1) * d.group(); ++h) {
        ForQueryBlocks(d, [&](const QueryBlock& block) {
          const int64_t rows = block.rows, keys = block.keys();
          const Matrix q = LoadRows(Queries(op.q, d, b, h), block, scratch.q);
          const Matrix d_out = LoadRows(Queries(op.d_out, d, b, h), block, scratch.d_out);
          const Matrix p{scratch.p, keys}, d_s{scratch.d_s, keys};
          Gemm(rows, keys, d.head_dim, op.scale, q, Transposed(k), 0.0f, scratch.p, keys);
          Gemm(rows, keys, d.head_dim, 1.0f, d_out, Transposed(v), 0.0f, scratch.d_s, keys);
          ScoreGradients(op, Queries(op.out, d, b, h), block, d_out, scratch);
          const Head d_q_head = Queries(op.d_q, d, b, h);
          const MutableMatrix d_q = TargetRows(d_q_head, block.begin, scratch.d_q);
          Gemm(rows, d.head_dim, keys, 1.0f, d_s, k, 0.0f, d_q.data, d_q.ld);
          StoreRows(d_q_head, block, d_q);
          Gemm(keys, d.head_dim, rows, 1.0f, Transposed(d_s), q, 1.0f, d_k.data, d_k.ld);
          Gemm(keys, d.head_dim, rows, 1.0f, Transposed(p), d_out, 1.0f, d_v.data, d_v.ld);
        });
      }
      StoreRows(d_k_head, 0, d.length(), d_k);
      StoreRows(d_v_head, 0, d.length(), d_v);
    }
  }
}

}  // namespace millrace::cpu
