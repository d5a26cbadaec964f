#include "kernels/ops/matmul_key.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "kernels/ops/fp8_ops.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kWidestAlignment = 16;

std::string ToString(const char* name, const MatrixKey& m) {
  std::string text = fmt::format(", {} {}{}", name, m.transposed ? "T " : "", m.ld);
  if (m.alignment < kWidestAlignment) text += fmt::format(" ({} B)", m.alignment);
  if (m.scales != KeyScales::kNone) text += fmt::format(" by {}", Name(m.scales));
  return text;
}

}  // namespace

int64_t AlignmentOf(int64_t bytes) {
  return bytes == 0 ? kWidestAlignment : std::min(kWidestAlignment, bytes & -bytes);
}

MatrixKey MatrixKeyOf(const Layout& layout) {
  MR_CHECK_EQ(layout.rank, 2, "rank of a matrix, {}", ToString(layout));
  const auto [rows, cols] = std::pair(layout.dims[0], layout.dims[1]);
  MatrixKey key;
  // A matrix of one line has no stride between lines.
  if (layout.strides[1] == 1 || cols <= 1) {
    key.ld = std::max({layout.strides[0], cols, int64_t{1}});
  } else {
    MR_CHECK(layout.strides[0] == 1 || rows <= 1, "a matrix is {}: neither stride is 1",
             ToString(layout));
    key.transposed = true;
    key.ld = std::max({layout.strides[1], rows, int64_t{1}});
  }
  key.alignment = AlignmentOf(key.ld * Bytes(layout.dtype));
  return key;
}

KeyScales KeyScalesOf(const Layout& operand, const Layout& scales, Scaling scaling) {
  MR_CHECK(operand.rank == 2 && scales.rank == 2, "FP8: operand {}, scales {}", ToString(operand),
           ToString(scales));
  if (scaling == Scaling::kProduct) return KeyScales::kTensor;
  const std::optional<ScaleShare> share =
      ScaleShareOf(operand.dims[0], operand.dims[1], scales.dims[0], scales.dims[1]);
  if (share == ScaleShare::kRow) return KeyScales::kVectors;
  if (share == ScaleShare::kTile) return KeyScales::kBlocks;
  return KeyScales::kNone;
}

MatmulRoute RouteOf(const MatmulAttrs& attrs, DType operands, const Layout& result,
                    const std::optional<Layout>& bias) {
  if (attrs.rounds_once() && result.dtype != DType::kF32) return MatmulRoute::kWhole;
  // Scales of whole operands multiply the finished sum: what is added in the same step may be
  // rounded with it, once, where a stored product that is added later rounds twice.
  if (attrs.scaling == Scaling::kProduct && attrs.update == Update::kAccumulate)
    return MatmulRoute::kWhole;
  if (operands == DType::kF32 && result.dtype != DType::kF32) return MatmulRoute::kTiles;
  if (!bias) return MatmulRoute::kOneLaunch;
  const bool by_library =
      bias->dtype == result.dtype && bias->contiguous() && !MatrixKeyOf(result).transposed;
  if (IsFloat8(operands))
    return by_library && result.dtype == DType::kBF16 ? MatmulRoute::kOneLaunch
                                                      : MatmulRoute::kWhole;
  return by_library ? MatmulRoute::kOneLaunch : MatmulRoute::kTiles;
}

std::optional<MatmulKey> KeyOf(const MatmulOp<Shape>& op) {
  if (op.out.layout.numel() == 0 || op.a.layout.numel() == 0 || op.in_order) return std::nullopt;
  switch (RouteOf(op)) {
    case MatmulRoute::kOneLaunch:
      return Product<Shape>::Of(op, ResultOf(op)).key(op.bias.present);
    case MatmulRoute::kWhole: {
      Product<Shape> product{op.a, op.b, {}, op.a_scales, op.b_scales, op.scaling};
      product.out = {DenseLayout(DType::kF32, {op.out.layout.dims[0], op.out.layout.dims[1]}),
                     true};
      return product.key(false);
    }
    case MatmulRoute::kTiles:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<MatmulKey> FusedKeyOf(const MatmulOp<Shape>& op) {
  if (op.epilogue != Epilogue::kGeluGrad || op.out.layout.dtype != DType::kBF16 ||
      op.scaling != Scaling::kNone)
    return std::nullopt;
  std::optional<MatmulKey> key = KeyOf(op);
  if (!key || key->operands == DType::kF32 || op.pre.layout != op.out.layout) return std::nullopt;
  if (std::min({key->a.alignment, key->b.alignment, key->out.alignment}) < kWidestAlignment)
    return std::nullopt;
  key->gelu_grad = true;
  return key;
}

std::string ToString(const MatmulKey& key) {
  const std::string operands =
      key.b_operands ? fmt::format("{} by {}", Name(key.operands), Name(*key.b_operands))
                     : std::string(Name(key.operands));
  const BatchKey& batch = key.batch;
  return fmt::format("{} {} x {} x {} -> {}{}{}{}{}{}{}", operands, key.m, key.n, key.k,
                     Name(key.result), ToString("a", key.a), ToString("b", key.b),
                     ToString("out", key.out), key.bias ? ", bias" : "",
                     key.gelu_grad ? ", GELU's gradient" : "",
                     batch.count == 1 ? ""
                                      : fmt::format(", {} that lie {}, {} and {} apart",
                                                    batch.count, batch.a, batch.b, batch.out));
}

size_t HashOf(const MatmulKey& key) {
  uint64_t hash = 0;
  const auto mix = [&hash](int64_t value) {  // splitmix64's finaliser over what was mixed so far
    hash += static_cast<uint64_t>(value) + 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
  };
  mix(key.m), mix(key.n), mix(key.k);
  mix(static_cast<int64_t>(key.operands) * 64 + static_cast<int64_t>(key.result) * 4 +
      key.gelu_grad * 2 + key.bias);
  mix(static_cast<int64_t>(DTypeOfB(key)));
  for (const MatrixKey* matrix : {&key.a, &key.b, &key.out})
    mix(matrix->ld * 8 + static_cast<int64_t>(matrix->scales) * 2 + matrix->transposed);
  mix(key.batch.count);
  return hash;
}

}  // namespace millrace
