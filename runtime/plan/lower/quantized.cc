#include "runtime/plan/lower/quantized.h"

#include "kernels/ops/fp8_ops.h"
#include "runtime/base/arithmetic.h"
#include "runtime/plan/lower/lowering.h"

namespace millrace {
namespace {

using Along = QuantizedViews::Along;
enum class Side { kA, kB };

DType FormatOf(LinearEncoding encoding, Factor::Kind kind) {
  const bool wide = encoding == LinearEncoding::kFp8Tensor && kind == Factor::Kind::kGradient;
  return wide ? DType::kE5M2 : DType::kE4M3;
}

// A product sums a's columns and b's rows.
Along AlongOf(LinearEncoding encoding, const Factor& factor, Side side) {
  if (encoding == LinearEncoding::kFp8Tensor || factor.kind == Factor::Kind::kWeight)
    return Along::kEither;
  return (side == Side::kA) != factor.transposed ? Along::kColumns : Along::kRows;
}

Layout ScalesOf(LinearEncoding encoding, const Layout& x, Along along) {
  if (encoding == LinearEncoding::kFp8Tensor) return DenseLayout(DType::kF32, {1, 1});
  const auto scales = [&](int dim, Along single) {
    const int64_t n = x.dims[static_cast<size_t>(dim)];
    return along == single ? n : CeilDiv(n, kScaleBlock);
  };
  return DenseLayout(DType::kF32, {scales(0, Along::kColumns), scales(1, Along::kRows)});
}

const char* SuffixOf(Factor::Kind kind) {
  switch (kind) {
    case Factor::Kind::kActivation:
      return ":quantize_x";
    case Factor::Kind::kGradient:
      return ":quantize_d_y";
    case Factor::Kind::kWeight:
      return ":quantize_weight";
  }
  return "";
}

QuantizedView Quantized(Lowering& l, const Node& node, LinearEncoding encoding,
                        const Factor& factor, Side side) {
  const QuantizedViews::Form form{factor.value, FormatOf(encoding, factor.kind),
                                  AlongOf(encoding, factor, side)};
  QuantizedView& made = l.quantized()[form];
  if (!made.payload) {
    QuantizeOp<View> op;
    op.scale_rounding =
        encoding == LinearEncoding::kFp8Tensor ? ScaleRounding::kExact : ScaleRounding::kPowerOfTwo;
    op.x = l.storage().Read(factor.value);
    const std::string& name = l.graph().value(factor.value).name;
    const char* const rows = form.along == Along::kRows ? ".by_rows" : "";
    Layout payload = op.x.layout;
    payload.dtype = form.dtype;
    op.out = l.storage().Temporary(name + ".fp8" + rows, payload);
    op.scales =
        l.storage().Temporary(name + ".scales" + rows, ScalesOf(encoding, op.x.layout, form.along));
    made = {op.out, op.scales};
    l.Push(op, node, SuffixOf(factor.kind));
  }
  if (!factor.transposed) return made;
  return {Transposed(made.payload), Transposed(made.scales)};
}

}  // namespace

void SetFactors(Lowering& l, const Node& node, LinearEncoding encoding, const Factor& a,
                const Factor& b, MatmulOp<View>* product) {
  if (encoding == LinearEncoding::kCompute) {
    const auto read = [&](const Factor& factor) {
      const View view = l.storage().Read(factor.value);
      return factor.transposed ? Transposed(view) : view;
    };
    product->a = read(a);
    product->b = read(b);
    return;
  }
  const QuantizedView left = Quantized(l, node, encoding, a, Side::kA),
                      right = Quantized(l, node, encoding, b, Side::kB);
  product->a = left.payload, product->a_scales = left.scales;
  product->b = right.payload, product->b_scales = right.scales;
  product->scaling =
      encoding == LinearEncoding::kFp8Tensor ? Scaling::kProduct : Scaling::kOperands;
}

}  // namespace millrace
