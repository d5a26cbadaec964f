#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/cpu/magnitude.h"
#include "kernels/cpu/matmul/alike.h"
#include "kernels/cpu/matmul/float8_values.h"
#include "kernels/cpu/matmul/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/matmul_key.h"

namespace millrace::cpu {
namespace {

void Check(const MatmulOp<TensorView>& op) {
  const bool scaled = op.scaling != Scaling::kNone;
  for (const auto& [view, name] : {std::pair{&op.a, "a"}, {&op.b, "b"}, {&op.out, "out"}}) {
    if (!scaled || view == &op.out)
      CheckFloat(*view, name);
    else
      MR_CHECK(IsFloat8(view->dtype()), "{} is {}; scales go with FP8", name, Name(view->dtype()));
    MR_CHECK_EQ(view->layout.rank, 2, "rank of matmul's {}", name);
  }
  MR_CHECK_EQ(op.a.dim(1), op.b.dim(0), "matmul: columns of a, rows of b");
  MR_CHECK_EQ(op.a.dim(0), op.out.dim(0), "matmul: rows of a and out");
  MR_CHECK_EQ(op.b.dim(1), op.out.dim(1), "matmul: columns of b and out");
  MR_CHECK(static_cast<bool>(op.a_scales) == scaled && static_cast<bool>(op.b_scales) == scaled,
           "matmul: scales of both operands, or of none");
  if (op.scaling == Scaling::kProduct)
    MR_CHECK_EQ(op.a_scales.numel() * op.b_scales.numel(), 1, "scales of a scaled product");
  const bool with_bias = op.epilogue == Epilogue::kBias || op.epilogue == Epilogue::kBiasGelu;
  MR_CHECK_EQ(static_cast<bool>(op.bias), with_bias,
              "matmul: is there a bias, and does the epilogue add one");
  if (op.bias) MR_CHECK_EQ(op.bias.dim(0), op.out.dim(1), "matmul: bias and columns of out");
  MR_CHECK(op.update == Update::kOverwrite || op.epilogue == Epilogue::kNone,
           "matmul: accumulate takes no epilogue");
  MR_CHECK(op.pre || op.epilogue != Epilogue::kGeluGrad, "matmul: a GELU's gradient needs pre");
  MR_CHECK(!op.magnitude || (op.epilogue != Epilogue::kNone && op.epilogue != Epilogue::kBias),
           "matmul: a magnitude of what no GELU follows");
  if (op.pre)
    MR_CHECK(op.pre.dim(0) == op.out.dim(0) && op.pre.dim(1) == op.out.dim(1),
             "matmul: pre is {}, out is {}", ToString(op.pre.layout), ToString(op.out.layout));
}

// An operand of a product, of which GEMMs take parts.
struct Factor {
  const TensorView& view;
  const TensorView* scales;  // null: its elements are payloads, or no FP8
};
Factor FactorA(const MatmulOp<TensorView>& op) {
  return {op.a, op.scaling == Scaling::kOperands ? &op.a_scales : nullptr};
}
Factor FactorB(const MatmulOp<TensorView>& op) {
  return {op.b, op.scaling == Scaling::kOperands ? &op.b_scales : nullptr};
}

// The part [row, row + rows) x [col, col + cols) of it as a GEMM operand; what is not f32 is
// converted into `buffer`.
Matrix Operand(const Factor& factor, int64_t row, int64_t rows, int64_t col, int64_t cols,
               float* buffer) {
  const TensorView& v = factor.view;
  const Orientation o = OrientationOf(v.dim(0), v.dim(1), v.stride(0), v.stride(1));
  const int64_t offset = o.transposed ? col * o.ld + row : row * o.ld + col;
  if (v.dtype() == DType::kF32) return {v.as<float>() + offset, o.ld, o.transposed};
  const int64_t lines = o.transposed ? cols : rows, length = o.transposed ? rows : cols;
  if (IsFloat8(v.dtype())) {
    const Float8Values values(v, factor.scales);
    for (int64_t i = 0; i < lines; ++i)
      values.Line(v.as<uint8_t>() + offset + i * o.ld,
                  o.transposed ? std::array{row, col + i} : std::array{row + i, col},
                  o.transposed ? 0 : 1, length, buffer + i * length);
    return {buffer, length, o.transposed};
  }
  for (int64_t i = 0; i < lines; ++i)
    Load({v.data, 1, v.dtype()}, offset + i * o.ld, length, buffer + i * length);
  return {buffer, length, o.transposed};
}

// Everything after the product, for one row of a tile. `product` is changed.
void Finish(const MatmulOp<TensorView>& op, int64_t row, int64_t col, int64_t n, float* product) {
  float buffer[kChunk];
  if (op.scaling == Scaling::kProduct) {
    const double scale = double{*op.a_scales.as<float>()} * double{*op.b_scales.as<float>()};
    for (int64_t i = 0; i < n; ++i) product[i] = static_cast<float>(product[i] * scale);
  }
  if (op.bias) {
    const float* bias = Load(AsRow(op.bias), col, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) product[i] += bias[i];
  }
  if (op.epilogue == Epilogue::kBiasGelu || op.epilogue == Epilogue::kGelu) {
    // The activation sees what was stored, so that the fused op has the bits of the separate ones.
    RoundTo(op.pre ? op.pre.dtype() : op.out.dtype(), product, n);
    if (op.pre) Store(RowAt(op.pre, row), col, n, product);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) product[i] = Gelu(product[i]);
  }
  if (op.epilogue == Epilogue::kGeluGrad) {
    RoundTo(op.out.dtype(), product, n);  // as separate ops would store it
    const float* const pre = Load(RowAt(op.pre, row), col, n, buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) product[i] *= GeluDerivative(pre[i]);
  }
  StoreOrAdd(RowAt(op.out, row), col, n, product, op.update == Update::kAccumulate);
}

// The columns [begin, begin + count) of a tile, of `all` that it has, are the op's from `own` on.
struct TileColumns {
  int64_t all, begin, count, own;
};

// Rows of a product that would have op.like_rows of them, and op.like_columns columns.
class RowsAlike {
 public:
  explicit RowsAlike(const MatmulOp<TensorView>& op)
      : op_(op),
        columns_(op.like_columns > 0 ? op.like_columns : op.out.dim(1)),
        first_(op.like_columns > 0 ? op.like_first.value() : 0),
        tile_(BlocksOfMatmul(op.like_rows, columns_, op.a.dim(1), op.a.dtype(), op.b.dtype())) {
    MR_CHECK(op.update == Update::kOverwrite && op.epilogue != Epilogue::kGeluGrad &&
                 (op.a.dim(1) <= 1 || op.a.stride(1) == 1) && op.places.numel() == op.out.dim(0),
             "matmul: a is {}, for {} places; rows alike are overwritten, of rows of a",
             ToString(op.a.layout), op.places.numel());
    MR_CHECK(op.like_columns == 0 || (first_ >= 0 && !op.bias && op.scaling == Scaling::kNone &&
                                      (op.b.dim(0) <= 1 || op.b.stride(0) == 1)),
             "matmul: b is {}, for columns from {} of {}", ToString(op.b.layout), first_,
             op.like_columns);
    Scratch scratch(op.scratch);
    sums_ = scratch.Take(tile_.m * tile_.n);
    c_ = scratch.Take(tile_.m * tile_.n);
    a_ = scratch.Take(tile_.m * tile_.k);
    if (op.like_columns > 0 || op.b.dtype() != DType::kF32) b_ = scratch.Take(tile_.k * tile_.n);
  }

  void Run() {
    const int64_t m = op_.out.dim(0), n = op_.out.dim(1), k = op_.a.dim(1);
    for (int64_t row = 0; row < m; row += tile_.m) {
      const int64_t rows = std::min(tile_.m, m - row);
      const std::vector<std::pair<int64_t, int64_t>> wanted = PlacesOf(row, rows);
      const int64_t end = std::min(first_ + n, columns_);
      for (int64_t col = first_ / tile_.n * tile_.n; col < end; col += tile_.n) {
        const int64_t cols = std::min(tile_.n, columns_ - col), begin = std::max(col, first_);
        const TileColumns part{cols, begin - col, std::min(col + cols, end) - begin,
                               begin - first_};
        for (int64_t depth = 0; depth < k; depth += tile_.k) {
          const int64_t depths = std::min(tile_.k, k - depth);
          const Matrix b = part.count == cols
                               ? Operand(FactorB(op_), depth, depths, part.own, cols, b_)
                               : PartOfTile(part, depth, depths);
          for (const AlikeProduct& product :
               ProductsAlike(wanted, {cols, depths, b.transposed, depth > 0}))
            Multiply(product, row, depth, depths, b, cols);
        }
        for (int64_t i = 0; i < rows; ++i)
          Finish(op_, row + i, part.own, part.count, sums_ + i * cols + part.begin);
      }
      Clear(row, rows, std::max<int64_t>(0, columns_ - first_));
    }
  }

 private:
  // The tile of the whole product, and the place in it, that rows stand for.
  std::vector<std::pair<int64_t, int64_t>> PlacesOf(int64_t row, int64_t rows) const {
    std::vector<std::pair<int64_t, int64_t>> places;
    for (int64_t i = row; i < row + rows; ++i) {
      const int64_t number = op_.places.as<int32_t>()[i];
      MR_CHECK_GE(number, 0, "matmul: the row that row {} is like", i);
      places.push_back(PlaceInTile(number % op_.like_rows, op_.like_rows, tile_.m));
    }
    return places;
  }

  // A tile's operand b with zeros in the columns that the op does not have: no other column has
  // bits of them.
  Matrix PartOfTile(const TileColumns& part, int64_t depth, int64_t depths) {
    std::fill_n(b_, part.all * depths, 0.0f);
    float* const own = b_ + part.begin * depths;
    const TensorView& b = op_.b;
    for (int64_t i = 0; i < part.count; ++i) {
      const int64_t at = (part.own + i) * b.stride(1) + depth;
      if (b.dtype() == DType::kF32)
        std::copy_n(b.as<float>() + at, depths, own + i * depths);
      else
        Load({b.data, 1, b.dtype()}, at, depths, own + i * depths);
    }
    return {b_, depths, true};
  }

  // The op's columns from `begin` on, which the whole product does not have.
  void Clear(int64_t row, int64_t rows, int64_t begin) {
    const int64_t n = op_.out.dim(1);
    float zeros[kChunk] = {};
    for (int64_t col = begin; col < n; col += kChunk)
      for (int64_t i = 0; i < rows; ++i)
        Finish(op_, row + i, col, std::min(kChunk, n - col), zeros);
  }

  // sums = or += a b, for the product's rows of those from `row` on; zeros in its other places.
  void Multiply(const AlikeProduct& product, int64_t row, int64_t depth, int64_t depths, Matrix b,
                int64_t cols) {
    std::fill_n(a_, product.tile_rows * depths, 0.0f);
    if (depth > 0) std::fill_n(c_, product.tile_rows * cols, 0.0f);
    for (size_t i = 0; i < product.places.size(); ++i) {
      float* const to = a_ + product.places[i] * depths;
      const Matrix from = Operand(FactorA(op_), row + product.rows[i], 1, depth, depths, to);
      if (from.data != to) std::copy_n(from.data, depths, to);
      if (depth > 0)
        std::copy_n(sums_ + product.rows[i] * cols, cols, c_ + product.places[i] * cols);
    }
    Gemm(product.tile_rows, cols, depths, 1.0f, {a_, depths}, b, depth > 0 ? 1.0f : 0.0f, c_, cols);
    for (size_t i = 0; i < product.places.size(); ++i)
      std::copy_n(c_ + product.places[i] * cols, cols, sums_ + product.rows[i] * cols);
  }

  const MatmulOp<TensorView>& op_;
  const int64_t columns_, first_;  // of the product that it is like
  const MatmulBlocks tile_;
  float *sums_ = nullptr, *c_ = nullptr, *a_ = nullptr, *b_ = nullptr;
};

void Multiply(const MatmulOp<TensorView>& op) {
  const int64_t m = op.out.dim(0), n = op.out.dim(1), k = op.a.dim(1);
  if (m == 0 || n == 0) return;
  if (op.like_rows > 0) return RowsAlike(op).Run();
  const MatmulBlocks tile = BlocksOfMatmul(m, n, k, op.a.dtype(), op.b.dtype());
  const bool in_place = ProductInPlace(op.out.layout, op.update);
  Scratch scratch(op.scratch);
  float* const product = in_place ? nullptr : scratch.Take(tile.m * tile.n);
  float* const a_buffer = op.a.dtype() == DType::kF32 ? nullptr : scratch.Take(tile.m * tile.k);
  float* const b_buffer = op.b.dtype() == DType::kF32 ? nullptr : scratch.Take(tile.k * tile.n);

  for (int64_t col = 0; col < n; col += tile.n) {
    const int64_t cols = std::min(tile.n, n - col);
    Matrix b{};
    for (int64_t row = 0; row < m; row += tile.m) {
      const int64_t rows = std::min(tile.m, m - row);
      const int64_t ldc = in_place ? std::max(op.out.stride(0), n) : cols;
      float* const c = in_place ? op.out.as<float>() + row * ldc + col : product;
      if (k == 0) Gemm(rows, cols, 0, 1.0f, {}, {}, 0.0f, c, ldc);
      for (int64_t depth = 0; depth < k; depth += tile.k) {
        const int64_t depths = std::min(tile.k, k - depth);
        const Matrix a = Operand(FactorA(op), row, rows, depth, depths, a_buffer);
        if (row == 0 || tile.k < k) b = Operand(FactorB(op), depth, depths, col, cols, b_buffer);
        Gemm(rows, cols, depths, 1.0f, a, b, depth == 0 ? 0.0f : 1.0f, c, ldc);
      }
      if (in_place && op.epilogue == Epilogue::kNone && op.scaling != Scaling::kProduct) continue;
      for (int64_t i = 0; i < rows; ++i) Finish(op, row + i, col, cols, c + i * ldc);
    }
  }
}

}  // namespace

void Matmul(const MatmulOp<TensorView>& op, Stream&) {
  Check(op);
  Multiply(op);
  RaiseMagnitude(op.magnitude, op.out);
}

void BatchedMatmul(const BatchedMatmulOp<TensorView>& op, Stream& stream) {
  for (const auto& [view, name] : {std::pair{&op.a, "a"}, {&op.b, "b"}, {&op.out, "out"}}) {
    MR_CHECK_EQ(view->layout.rank, 3, "batched matmul: rank of {}", name);
    MR_CHECK_EQ(view->dim(0), op.out.dim(0), "batched matmul: matrices of {}", name);
  }
  MR_CHECK(op.a.dtype() == op.b.dtype(), "batched matmul of {} by {}: one dtype is allowed",
           ToString(op.a.layout), ToString(op.b.layout));
  MR_CHECK(op.c ? op.c.layout == op.out.layout : op.alpha == 1 && op.beta == 0,
           "batched matmul: c is {}, out is {}, alpha {}, beta {}", ToString(op.c.layout),
           ToString(op.out.layout), op.alpha, op.beta);
  const auto matrix = [](const TensorView& view, int64_t i) {
    TensorView of = MatrixOf(view);
    of.data += i * view.stride(0) * Bytes(view.dtype());
    return of;
  };
  const int64_t rows = op.out.dim(1), columns = op.out.dim(2);
  const float alpha = static_cast<float>(op.alpha), beta = static_cast<float>(op.beta);
  MatmulOp<TensorView> product;
  product.scratch = op.scratch;
  if (op.c) {
    product.out = {op.scratch.data, DenseLayout(DType::kF32, {rows, columns})};
    const int64_t left = op.scratch.bytes() - product.out.bytes();
    MR_CHECK_GE(left, 0, "scratch is smaller than WorkspaceBytes of the op");
    product.scratch = {op.scratch.data + product.out.bytes(), DenseLayout(DType::kU8, {left})};
  }
  for (int64_t i = 0; i < op.out.dim(0); ++i) {
    product.a = matrix(op.a, i), product.b = matrix(op.b, i);
    const TensorView out = matrix(op.out, i);
    if (!op.c) product.out = out;
    Matmul(product, stream);
    if (!op.c) continue;
    const TensorView c = matrix(op.c, i);
    for (int64_t r = 0; r < rows; ++r) {
      const float* const sums = product.out.as<float>() + r * columns;
      const Row from = RowAt(c, r), to = RowAt(out, r);
      ForChunks(columns, [&](int64_t begin, int64_t count) {
        float wide[kChunk], buffer[kChunk];
        const float* const others = Load(from, begin, count, wide);
        float* const blended = Target(to, begin, buffer);
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) blended[j] = alpha * sums[begin + j] + beta * others[j];
        Store(to, begin, count, blended);
      });
    }
  }
}

}  // namespace millrace::cpu
