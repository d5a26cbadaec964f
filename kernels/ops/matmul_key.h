// Which product a GEMM library is asked for: what its choice of an algorithm, and so the bits of a
// matmul, may depend on. From shapes alone, so that a planner, a tuner and the kernel agree on it.
//
// Not part of it: whether the product overwrites or accumulates (both run the same
// algorithm) and addresses.
//
// Alignment  A plan aligns buffers to 256 bytes, and a view starts a whole number of rows into one.
//            So the address of a matrix is aligned to whatever power of two divides the bytes of
//            its row stride.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/ops/model_ops.h"
#include "kernels/ops/shape.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/policies.h"

namespace millrace {

// What a GEMM library may use of a matmul's scratch; 32 MiB is what cuBLASLt recommends on Hopper.
inline constexpr int64_t kMatmulWorkspaceBytes = int64_t{32} << 20;
// The f32 product of a matmul whose route is kTiles is formed in tiles of at most that size, which
// follow the library's workspace in scratch.
inline constexpr int64_t kMatmulTileBytes = int64_t{16} << 20;

// Scales of an operand in FP8 along the sum (fp8_ops.h): none, it is no FP8; one of all; of 128
// elements each; of 128 x 128.
enum class KeyScales { kNone, kTensor, kVectors, kBlocks };
constexpr auto NamesOf(KeyScales) {
  return internal::NameList<4>{"none", "tensor", "vectors", "blocks"};
}

// A matrix with one stride of 1: element (i, j) lies at i*ld + j, or at j*ld + i when transposed.
struct MatrixKey {
  bool transposed = false;
  int64_t ld = 1;  // elements; at least the length of a line
  // Of every line, bytes: a power of two, at most 16, beyond which no kernel asks.
  int64_t alignment = 16;
  KeyScales scales = KeyScales::kNone;
  auto operator<=>(const MatrixKey&) const = default;
};

// Products of one shape at once, and how many elements the matrices of an operand lie apart.
struct BatchKey {
  int64_t count = 1;
  int64_t a = 0, b = 0, out = 0;  // of one product: 0
  auto operator<=>(const BatchKey&) const = default;
};

// out [m,n] = a [m,k] * b [k,n] (+ bias [n] in out's dtype, or times GELU's derivative at a matrix
// of out's dtype and layout); out is never transposed.
struct MatmulKey {
  int64_t m = 0, n = 0, k = 0;
  DType operands = DType::kF32;  // of a and b
  DType result = DType::kF32;    // of out and bias
  MatrixKey a, b, out;
  bool bias = false;
  bool gelu_grad = false;
  std::optional<DType> b_operands = {};  // where b has another dtype than a: FP8 alone
  BatchKey batch = {};
  auto operator<=>(const MatmulKey&) const = default;
};
inline DType DTypeOfB(const MatmulKey& key) { return key.b_operands.value_or(key.operands); }

// "bf16 65536 x 3072 x 768 -> bf16, a 768, b T 768, out 3072, bias"; alignments below 16 are added.
std::string ToString(const MatmulKey& key);
size_t HashOf(const MatmulKey& key);

// The power of two that divides so many bytes, at most the widest that a kernel asks for.
int64_t AlignmentOf(int64_t bytes);
// Throws Error(kInternal) when neither stride is 1.
MatrixKey MatrixKeyOf(const Layout& layout);
// Of an operand of a product in FP8: a, or b's transpose, [lines, sum].
KeyScales KeyScalesOf(const Layout& operand, const Layout& scales, Scaling scaling);

// The first of the matrices [I,R,C] of a view.
template <class V>
V MatrixOf(V view) {
  Layout& layout = view.layout;
  layout = {.dtype = layout.dtype,
            .rank = 2,
            .dims = {layout.dims[1], layout.dims[2]},
            .strides = {layout.strides[1], layout.strides[2]}};
  return view;
}

template <class V>
V TransposedView(V view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

// The product with a result that is not transposed: where it would be, out^T = b^T a^T.
// V: Shape or TensorView.
template <class V>
struct Product {
  V a, b, out;
  V a_scales = {}, b_scales = {};
  Scaling scaling = Scaling::kNone;

  static Product Of(V a, V b, V out) {
    if (!MatrixKeyOf(out.layout).transposed) return {a, b, out};
    return {TransposedView(b), TransposedView(a), TransposedView(out)};
  }
  // Of an op's operands, into `out`. In FP8 out is not transposed (WhyUnsupported).
  static Product Of(const MatmulOp<V>& op, V out) {
    if (op.scaling == Scaling::kNone) return Of(op.a, op.b, out);
    return {op.a, op.b, out, op.a_scales, op.b_scales, op.scaling};
  }
  // Operands of one dtype or in FP8, not empty.
  MatmulKey key(bool with_bias) const {
    MatmulKey key{.m = out.layout.dims[0],
                  .n = out.layout.dims[1],
                  .k = a.layout.dims[1],
                  .operands = a.layout.dtype,
                  .result = out.layout.dtype,
                  .a = MatrixKeyOf(a.layout),
                  .b = MatrixKeyOf(b.layout),
                  .out = MatrixKeyOf(out.layout),
                  .bias = with_bias};
    if (b.layout.dtype != a.layout.dtype) key.b_operands = b.layout.dtype;
    if (scaling == Scaling::kNone) return key;
    key.a.scales = KeyScalesOf(a.layout, a_scales.layout, scaling);
    key.b.scales = KeyScalesOf(TransposedView(b).layout, TransposedView(b_scales).layout, scaling);
    return key;
  }
};

// Matrices of one call at most: a library may count them by a grid's last dimension, which has no
// more.
inline constexpr int64_t kMostInBatch = 65535;
// Of so many, those of a call: dealt evenly, so that the last has more than one, too.
constexpr int64_t InBatchOf(int64_t count) { return CeilDiv(count, CeilDiv(count, kMostInBatch)); }

// The products of an op whose operands are not empty, as one call; of more, its first.
template <class V>
MatmulKey BatchedKeyOf(const BatchedMatmulOp<V>& op) {
  MatmulKey key = Product<V>{MatrixOf(op.a), MatrixOf(op.b), MatrixOf(op.out)}.key(false);
  key.batch.count = InBatchOf(op.out.layout.dims[0]);
  if (key.batch.count > 1)
    key.batch = {key.batch.count, op.a.layout.strides[0], op.b.layout.strides[0],
                 op.out.layout.strides[0]};
  for (auto [matrix, apart, dtype] : {std::tuple(&key.a, key.batch.a, key.operands),
                                      {&key.b, key.batch.b, key.operands},
                                      {&key.out, key.batch.out, key.result}})
    matrix->alignment = std::min(matrix->alignment, AlignmentOf(apart * Bytes(dtype)));
  return key;
}

// How a GEMM library is used for a matmul.
enum class MatmulRoute {
  kOneLaunch,  // it forms product and bias, and adds to the destination
  // It forms the whole f32 product in scratch, after its workspace; a kernel adds and rounds.
  // For results that round once and are not f32: a library rounds to the result's dtype before it
  // adds, and chooses another algorithm for that dtype. In FP8 for biases that it cannot add, too.
  kWhole,
  // The same in tiles, where bits need not be those of another op: f32 operands with a bf16 result,
  // a bias that has another dtype than the result or runs along its lines.
  kTiles,
};

// `result`: the layout that receives the product, before any activation. All operands have one
// dtype.
MatmulRoute RouteOf(const MatmulAttrs& attrs, DType operands, const Layout& result,
                    const std::optional<Layout>& bias);

// What receives the product.
template <class V>
const V& ResultOf(const MatmulOp<V>& op) {
  return op.pre && op.epilogue != Epilogue::kGeluGrad ? op.pre : op.out;
}

template <class V>
MatmulRoute RouteOf(const MatmulOp<V>& op) {
  return RouteOf(op, op.a.layout.dtype, ResultOf(op).layout,
                 op.bias ? std::optional(op.bias.layout) : std::nullopt);
}

// The one product of an op, without what follows a product; none where there is nothing to
// multiply, tiles, or a product in order, which no library is asked for.
std::optional<MatmulKey> KeyOf(const MatmulOp<Shape>& op);
// The op as a library would do it at once: Epilogue::kGeluGrad into bf16, with pre as out. None for
// other ops: they are their product, or the library shall not do the rest. Nor for products of FP8,
// behind which a kernel forms the magnitude with the rest.
std::optional<MatmulKey> FusedKeyOf(const MatmulOp<Shape>& op);

}  // namespace millrace
