#include "kernels/cuda/attention/attention_check.h"

#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

AttentionDims DimsOf(const TensorView& q, const TensorView& k) {
  MR_CHECK(q.layout.rank == 4 && k.layout.rank == 4,
           "attention: q is {}, k is {}; [B,T,H,D] is expected", ToString(q.layout),
           ToString(k.layout));
  const AttentionDims d{q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.dim(3)};
  MR_CHECK(d.kv_heads > 0 && d.heads % d.kv_heads == 0, "attention: {} heads on {} key/value heads",
           d.heads, d.kv_heads);
  return d;
}

void CheckHeads(const TensorView& view, const AttentionDims& d, int64_t heads, const char* name) {
  MR_CHECK(view.layout.rank == 4 && view.dim(0) == d.batch && view.dim(1) == d.length &&
               view.dim(2) == heads && view.dim(3) == d.depth &&
               (d.depth <= 1 || view.stride(3) == 1) &&
               (view.dtype() == DType::kF32 || view.dtype() == DType::kBF16),
           "attention: {} is {}; f32 or bf16 [{}, {}, {}, {}] with last stride 1 is expected", name,
           ToString(view.layout), d.batch, d.length, heads, d.depth);
}

void CheckLse(const TensorView& lse, const AttentionDims& d) {
  MR_CHECK(lse.layout.rank == 3 && lse.dim(0) == d.batch && lse.dim(1) == d.heads &&
               lse.dim(2) == d.length && lse.dtype() == DType::kF32,
           "attention: lse is {}; f32 [{}, {}, {}] is expected", ToString(lse.layout), d.batch,
           d.heads, d.length);
}

}  // namespace

AttentionDims CheckAttention(const AttentionOp<TensorView>& op) {
  const AttentionDims d = DimsOf(op.q, op.k);
  CheckHeads(op.q, d, d.heads, "q");
  CheckHeads(op.k, d, d.kv_heads, "k");
  CheckHeads(op.v, d, d.kv_heads, "v");
  CheckHeads(op.out, d, d.heads, "out");
  if (op.lse) CheckLse(op.lse, d);
  return d;
}

AttentionDims CheckAttention(const AttentionGradOp<TensorView>& op) {
  const AttentionDims d = DimsOf(op.q, op.k);
  CheckHeads(op.q, d, d.heads, "q");
  CheckHeads(op.k, d, d.kv_heads, "k");
  CheckHeads(op.v, d, d.kv_heads, "v");
  CheckHeads(op.out, d, d.heads, "out");
  CheckHeads(op.d_out, d, d.heads, "d_out");
  CheckHeads(op.d_q, d, d.heads, "d_q");
  CheckHeads(op.d_k, d, d.kv_heads, "d_k");
  CheckHeads(op.d_v, d, d.kv_heads, "d_v");
  CheckLse(op.lse, d);
  return d;
}

}  // namespace millrace::cuda
