#include "kernels/cpu/moe/grouped_matmul.h"

#include <utility>

#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/moe/expert_rows.h"
#include "kernels/ops/model_ops.h"
#include "runtime/base/error.h"

namespace millrace::cpu {
namespace {

// The matrix of expert e in [E,.,.].
TensorView MatrixOf(const TensorView& experts, int64_t e) {
  TensorView matrix{experts.data + e * experts.stride(0) * Bytes(experts.dtype()), {}};
  matrix.layout = {
      experts.dtype(), 2, {experts.dim(1), experts.dim(2)}, {experts.stride(1), experts.stride(2)}};
  return matrix;
}

TensorView RowsOf(TensorView view, int64_t begin, int64_t end) {
  view.data += begin * view.stride(0) * Bytes(view.dtype());
  view.layout.dims[0] = end - begin;
  return view;
}

TensorView Transposed(TensorView view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

// f(e, begin, end) for each expert.
template <class F>
void ForExperts(const TensorView& offsets, int64_t experts, int64_t slots, const char* op, F&& f) {
  MR_CHECK_EQ(offsets.numel(), experts + 1, "{}: elements of offsets, for {} experts", op, experts);
  LiveSlots(offsets, slots, op);
  const int32_t* at = offsets.as<int32_t>();
  for (int64_t e = 0; e < experts; ++e) {
    MR_CHECK(at[e] >= 0 && at[e] <= at[e + 1], "{}: slots [{}, {}) of expert {}", op, at[e],
             at[e + 1], e);
    f(e, at[e], at[e + 1]);
  }
}

}  // namespace

void GroupedMatmul(const GroupedMatmulOp<TensorView>& op, Stream& stream) {
  const char* const name = "grouped_matmul";
  MR_CHECK_EQ(op.a.dim(0), op.out.dim(0), "{}: rows of a and out", name);
  ForExperts(op.offsets, op.b.dim(0), op.a.dim(0), name,
             [&](int64_t e, int64_t begin, int64_t end) {
               if (begin == end) return;
               MatmulOp<TensorView> product;
               product.a = RowsOf(op.a, begin, end);
               product.b = MatrixOf(op.b, e);
               product.out = RowsOf(op.out, begin, end);
               product.scratch = op.scratch;
               Matmul(product, stream);
             });
}

void GroupedWeightGrad(const GroupedWeightGradOp<TensorView>& op, Stream& stream) {
  const char* const name = "grouped_weight_grad";
  MR_CHECK_EQ(op.a.dim(0), op.d_out.dim(0), "{}: rows of a and d_out", name);
  ForExperts(op.offsets, op.out.dim(0), op.a.dim(0), name,
             [&](int64_t e, int64_t begin, int64_t end) {
               MatmulOp<TensorView> product;
               product.a = Transposed(RowsOf(op.d_out, begin, end));
               product.b = RowsOf(op.a, begin, end);
               product.out = MatrixOf(op.out, e);
               product.update = op.update;
               product.rounding = Rounding::kOnce;
               product.scratch = op.scratch;
               Matmul(product, stream);
             });
}

}  // namespace millrace::cpu
