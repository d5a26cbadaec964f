#include "kernels/cpu/matmul/row_linear.h"

#include <vector>

#include "kernels/cpu/attention/rope.h"
#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/norm/norm.h"
#include "kernels/cpu/rows.h"
#include "runtime/base/error.h"

namespace millrace::cpu {
namespace {

// A dense row [1,n] of its own.
class OwnRow {
 public:
  OwnRow(DType dtype, int64_t n)
      : bytes_(static_cast<size_t>(n * Bytes(dtype))),
        view_{bytes_.data(), DenseLayout(dtype, {1, n})} {}
  const TensorView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

float ValueOf(const TensorView& view, int64_t i) {
  return view.dtype() == DType::kF32 ? view.as<float>()[i] : ToFloat(view.as<BFloat16>()[i]);
}
void Store(const TensorView& view, int64_t i, float value) {
  if (view.dtype() == DType::kF32)
    view.as<float>()[i] = value;
  else
    view.as<BFloat16>()[i] = ToBFloat16(value);
}

// y, which is x where there is nothing to do.
TensorView NormOf(const RowLinearOp<TensorView>& op, const TensorView& y, Stream& stream) {
  if (op.norm == RowNorm::kNone) {
    if (!op.residual) return op.x;
    for (int64_t i = 0; i < op.x.dim(1); ++i)
      Store(op.sum, i, ValueOf(op.x, i) + ValueOf(op.residual, i));
    return op.sum;
  }
  const OwnRow mean(DType::kF32, 1), rstd(DType::kF32, 1);
  const auto one = [](TensorView view) {
    view.layout = DenseLayout(DType::kF32, {1});
    return view;
  };
  NormOp<TensorView> norm;
  norm.kind = op.norm == RowNorm::kLayer ? NormKind::kLayer : NormKind::kRms;
  norm.eps = op.eps;
  norm.x = op.x, norm.residual = op.residual, norm.sum = op.sum;
  norm.weight = op.norm_weight, norm.bias = op.norm_bias;
  norm.out = y;
  if (op.norm == RowNorm::kLayer) norm.mean = one(mean.view());
  norm.rstd = one(rstd.view());
  Norm(norm, stream);
  return y;
}

// out = what `finish` makes of p.
void FinishRow(const RowLinearOp<TensorView>& op, const TensorView& p, Stream& stream) {
  if (op.finish == RowFinish::kNone || op.finish == RowFinish::kRotate) {
    for (int64_t i = 0; i < op.out.dim(1); ++i) Store(op.out, i, ValueOf(p, i));
  } else {
    ActivationOp<TensorView> activation;
    activation.kind =
        op.finish == RowFinish::kGelu ? ActivationKind::kGelu : ActivationKind::kSwiglu;
    activation.x = p, activation.out = op.out;
    Activation(activation, stream);
  }
  if (op.finish != RowFinish::kRotate || op.turned == 0) return;
  RopeRowsOp<TensorView> turn;
  turn.x = op.out, turn.at = op.at, turn.table = op.table;
  turn.x.layout = DenseLayout(op.out.dtype(), {1, op.turned, 2 * op.table.dim(1)});
  RopeRows(turn, stream);
}

}  // namespace

void RowLinear(const RowLinearOp<TensorView>& op, Stream& stream) {
  const int64_t depth = op.x.dim(1), columns = op.weight.dim(0);
  MR_CHECK(op.x.dim(0) == 1 && op.weight.dim(1) == depth, "row_linear of {} by {}",
           ToString(op.x.layout), ToString(op.weight.layout));
  CheckFloat(op.x, "x");
  const OwnRow normed(op.x.dtype(), depth), product(op.x.dtype(), columns);
  const TensorView y = NormOf(op, normed.view(), stream);
  for (int64_t n = 0; n < columns; ++n) {
    float sum = 0;
    for (int64_t k = 0; k < depth; ++k) sum += ValueOf(y, k) * ValueOf(op.weight, n * depth + k);
    Store(product.view(), n, op.bias ? sum + ValueOf(op.bias, n) : sum);
  }
  FinishRow(op, product.view(), stream);
}

size_t RowLinears(std::span<const RowLinearOp<TensorView>* const>,
                  std::span<const RowLinearOp<TensorView>* const>, Stream&) {
  return 0;
}

}  // namespace millrace::cpu
