#include "kernels/cuda/attention/attention_check.h"

#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

AttentionDims DimsOf(const TensorView& q, const TensorView& k, const ContextRows& rows) {
  MR_CHECK(q.layout.rank == 4 && k.layout.rank == 4,
           "attention: q is {}, k is {}; [B,T,H,D] is expected", ToString(q.layout),
           ToString(k.layout));
  const AttentionDims d{.batch = q.dim(0),
                        .rows = q.dim(1),
                        .heads = q.dim(2),
                        .kv_heads = k.dim(2),
                        .depth = q.dim(3),
                        .ranks = rows.ranks,
                        .starts = ChunkStarts(rows, q.dim(1))};
  MR_CHECK(d.kv_heads > 0 && d.heads % d.kv_heads == 0, "attention: {} heads on {} key/value heads",
           d.heads, d.kv_heads);
  return d;
}

void CheckHeads(const TensorView& view, const AttentionDims& d, int64_t batch, int64_t heads,
                const char* name) {
  MR_CHECK(view.layout.rank == 4 && view.dim(0) == batch && view.dim(1) == d.rows &&
               view.dim(2) == heads && view.dim(3) == d.depth &&
               (d.depth <= 1 || view.stride(3) == 1) &&
               (view.dtype() == DType::kF32 || IsFloatOf16Bits(view.dtype())),
           "attention: {} is {}; f32, bf16 or f16 [{}, {}, {}, {}] with last stride 1 is expected",
           name, ToString(view.layout), batch, d.rows, heads, d.depth);
}
void CheckQueries(const TensorView& view, const AttentionDims& d, const char* name) {
  CheckHeads(view, d, d.batch, d.heads, name);
}
void CheckKeys(const TensorView& view, const AttentionDims& d, const char* name) {
  CheckHeads(view, d, d.ranks * d.batch, d.kv_heads, name);
}

void CheckLse(const TensorView& lse, const AttentionDims& d) {
  MR_CHECK(lse.layout.rank == 3 && lse.dim(0) == d.batch && lse.dim(1) == d.heads &&
               lse.dim(2) == d.rows && lse.dtype() == DType::kF32,
           "attention: lse is {}; f32 [{}, {}, {}] is expected", ToString(lse.layout), d.batch,
           d.heads, d.rows);
}

}  // namespace

AttentionDims CheckAttention(const AttentionOp<TensorView>& op) {
  const AttentionDims d = DimsOf(op.q, op.k, op.rows);
  CheckQueries(op.q, d, "q");
  CheckKeys(op.k, d, "k");
  CheckKeys(op.v, d, "v");
  CheckQueries(op.out, d, "out");
  if (op.lse) CheckLse(op.lse, d);
  return d;
}

AttentionDims CheckAttention(const AttentionGradOp<TensorView>& op) {
  const AttentionDims d = DimsOf(op.q, op.k, op.rows);
  CheckQueries(op.q, d, "q");
  CheckKeys(op.k, d, "k");
  CheckKeys(op.v, d, "v");
  CheckQueries(op.out, d, "out");
  CheckQueries(op.d_out, d, "d_out");
  CheckQueries(op.d_q, d, "d_q");
  CheckKeys(op.d_k, d, "d_k");
  CheckKeys(op.d_v, d, "d_v");
  CheckLse(op.lse, d);
  return d;
}

}  // namespace millrace::cuda
