#include "kernels/ops/cuda_float8.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/arithmetic.h"

namespace millrace::cuda {
namespace {

// Strides of dims of one element say nothing.
bool SamePlaces(const Layout& a, const Layout& b) {
  for (size_t i = 0; i < 2; ++i)
    if (a.dims[i] > 1 && a.strides[i] != b.strides[i]) return false;
  return true;
}

// Of one operand, [lines, sum].
std::string WhyNoOperand(const char* name, const Layout& operand, const Layout& scales,
                         Scaling scaling) {
  const MatrixKey key = MatrixKeyOf(operand);
  if (key.transposed || key.alignment < kFloat8Multiple)
    return fmt::format(
        "{} of a product of FP8 is {}; on CUDA what is summed lies in lines that "
        "begin at multiples of {} bytes",
        name, ToString(operand), kFloat8Multiple);
  const KeyScales kind = KeyScalesOf(operand, scales, scaling);
  const bool placed = kind != KeyScales::kNone &&
                      (kind == KeyScales::kTensor ||
                       SamePlaces(scales, ScalesInPlace(kind, operand.dims[0], operand.dims[1])));
  if (!placed)
    return fmt::format("scales of {} {} are {}; on CUDA they lie as cuda_float8.h says", name,
                       ToString(operand), ToString(scales));
  return "";
}

bool RowMajor(const Layout& layout) {
  return layout.rank == 2 && (layout.strides[1] == 1 || layout.dims[1] <= 1);
}

}  // namespace

Layout ScalesInPlace(KeyScales kind, int64_t lines, int64_t sum) {
  const int64_t blocks = CeilDiv(sum, kScaleBlock);
  if (kind == KeyScales::kTensor) return DenseLayout(DType::kF32, {1, 1});
  if (kind == KeyScales::kBlocks)
    return DenseLayout(DType::kF32, {CeilDiv(lines, kScaleBlock), RoundUp(blocks, kScaleMultiple)});
  Layout layout = DenseLayout(DType::kF32, {lines, blocks});
  layout.strides[0] = 1, layout.strides[1] = lines;
  return layout;
}

std::string WhyNoFloat8Product(const MatmulOp<Shape>& op) {
  const int64_t m = op.out.layout.dims[0], n = op.out.layout.dims[1], k = op.a.layout.dims[1];
  if (m % kFloat8Multiple != 0 || n % kFloat8Multiple != 0 || k % kFloat8Multiple != 0)
    return fmt::format(
        "a product of FP8 is {} x {} x {}; on CUDA multiples of {} are allowed: rows, and a "
        "linear's inputs and outputs; or precision.linear=compute",
        m, n, k, kFloat8Multiple);
  if (std::min({m, n, k}) == 0) return "";
  if (op.a.layout.dtype == DType::kE5M2 && op.b.layout.dtype == DType::kE5M2)
    return "a product of e5m2 by e5m2; on CUDA one of them is e4m3";
  const Layout b = TransposedView(op.b).layout, b_scales = TransposedView(op.b_scales).layout;
  std::string why = WhyNoOperand("a", op.a.layout, op.a_scales.layout, op.scaling);
  if (why.empty()) why = WhyNoOperand("b's transpose", b, b_scales, op.scaling);
  if (!why.empty()) return why;
  if (KeyScalesOf(op.a.layout, op.a_scales.layout, op.scaling) == KeyScales::kBlocks &&
      KeyScalesOf(b, b_scales, op.scaling) == KeyScales::kBlocks)
    return "a product of FP8 has scales of 128 x 128 on both sides; on CUDA one side is by lines";
  const MatrixKey out = MatrixKeyOf(ResultOf(op).layout);
  if (out.transposed || out.alignment < kFloat8Multiple)
    return fmt::format("a product of FP8 into {}; on CUDA rows begin at multiples of {} bytes",
                       ToString(ResultOf(op).layout), kFloat8Multiple);
  return "";
}

std::string WhyNoQuantize(const QuantizeOp<Shape>& op) {
  const Layout& x = op.x.layout;
  if (!RowMajor(x)) return fmt::format("quantize of {}; on CUDA rows of neighbours", ToString(x));
  const bool gated = op.activation && IsGated(*op.activation);
  if (op.activation && !CanActivate(*op.activation, op.out.layout.dtype))
    return fmt::format("quantize an activation of {} to {}; on CUDA GELU and SwiGLU, to e4m3",
                       ToString(x), Name(op.out.layout.dtype));
  const auto share = [&](const Shape& scales) {
    return ScaleShareOf(x.dims[0], gated ? x.dims[1] / 2 : x.dims[1], scales.layout.dims[0],
                        scales.layout.dims[1]);
  };
  const std::optional<ScaleShare> own = share(op.scales);
  if (!own)
    return fmt::format(
        "quantize of {} with scales {}; on CUDA there is one of all, or per 128 "
        "elements of a row or column, or per 128 x 128",
        ToString(x), ToString(op.scales.layout));
  if (op.activation && own == ScaleShare::kTensor)
    return fmt::format("quantize an activation of {} by a scale of all; on CUDA by blocks",
                       ToString(x));
  const bool turned = !op.turned_scales ||
                      (share(op.turned_scales) && share(op.turned_scales) != ScaleShare::kTensor);
  if (!turned)
    return fmt::format("quantize of {} with scales {} and {}", ToString(x),
                       ToString(op.scales.layout), ToString(op.turned_scales.layout));
  return "";
}

}  // namespace millrace::cuda
