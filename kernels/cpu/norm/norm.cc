#include "kernels/cpu/norm/norm.h"

#include <cmath>

#include "kernels/cpu/magnitude.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

void CheckSame(const TensorView& view, const TensorView& x, const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 2 && view.dim(0) == x.dim(0) && view.dim(1) == x.dim(1),
           "norm: {} is {}, x is {}", name, ToString(view.layout), ToString(x.layout));
}

void CheckColumns(const TensorView& view, const TensorView& x, const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 1 && view.dim(0) == x.dim(1), "norm: {} is {}, x is {}", name,
           ToString(view.layout), ToString(x.layout));
}

float& At(const TensorView& v, int64_t r) { return v.as<float>()[r * v.stride(0)]; }

// sum = x + residual for one row, as AddOp does it.
void AddRow(Row x, Row residual, Row sum, int64_t columns) {
  ForChunks(columns, [&](int64_t c, int64_t n) {
    float x_buffer[kChunk], residual_buffer[kChunk];
    const float* a = Load(x, c, n, x_buffer);
    const float* b = Load(residual, c, n, residual_buffer);
    float* s = Target(sum, c, x_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) s[i] = a[i] + b[i];
    Store(sum, c, n, s);
  });
}

struct Statistics {
  float mean, rstd;
};

// In double, rounded once: every use of a row shares the error of its two statistics, which does
// not average out over the rows of a weight's gradient as other roundings do.
Statistics StatisticsOf(Row row, int64_t columns, NormKind kind, float eps) {
  float buffer[kChunk];
  double mean = 0, squares = 0;
  if (kind == NormKind::kLayer) {
    ForChunks(columns,
              [&](int64_t c, int64_t n) { mean += SumInDouble(Load(row, c, n, buffer), n); });
    mean /= static_cast<double>(columns);
  }
  ForChunks(columns, [&](int64_t c, int64_t n) {
    squares += SumSquaredDeviationsInDouble(Load(row, c, n, buffer), mean, n);
  });
  const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(columns) + eps);
  return {static_cast<float>(mean), static_cast<float>(rstd)};
}

}  // namespace

void Norm(const NormOp<TensorView>& op, Stream&) {
  CheckFloat(op.x, "x");
  CheckSame(op.out, op.x, "out");
  CheckColumns(op.weight, op.x, "weight");
  if (op.bias) CheckColumns(op.bias, op.x, "bias");
  MR_CHECK_EQ(static_cast<bool>(op.residual), static_cast<bool>(op.sum),
              "norm: is there a residual, and a place for the sum");
  if (op.residual) CheckSame(op.residual, op.x, "residual");
  if (op.sum) CheckSame(op.sum, op.x, "sum");
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  for (int64_t r = 0; r < rows; ++r) {
    if (op.residual) AddRow(RowAt(op.x, r), RowAt(op.residual, r), RowAt(op.sum, r), columns);
    const Row s = RowAt(op.sum ? op.sum : op.x, r), out = RowAt(op.out, r);
    const Statistics stat = StatisticsOf(s, columns, op.kind, op.eps);
    if (op.mean) At(op.mean, r) = stat.mean;
    if (op.rstd) At(op.rstd, r) = stat.rstd;
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float s_buffer[kChunk], weight_buffer[kChunk], bias_buffer[kChunk];
      const float* x = Load(s, c, n, s_buffer);
      const float* weight = Load(AsRow(op.weight), c, n, weight_buffer);
      float* y = Target(out, c, s_buffer);
      const auto mean = stat.mean, rstd = stat.rstd;
      if (op.bias) {
        const float* bias = Load(AsRow(op.bias), c, n, bias_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i];
      }
      Store(out, c, n, y);
    });
  }
  RaiseMagnitude(op.magnitude, op.out);
}

namespace {

void CheckPartials(const TensorView& partials, int64_t columns) {
  MR_CHECK(partials.dtype() == DType::kF64 && partials.layout.rank == 3 &&
               (partials.dim(1) == 1 || partials.dim(1) == 2) && partials.dim(2) == columns &&
               partials.layout.contiguous(),
           "norm: partials are {}; contiguous f64 of one or two sums of {} columns are expected",
           ToString(partials.layout), columns);
}

// Sums over rows in double: the rounding that is left in a weight's gradient is that of its terms.
struct ColumnSums {
  double *weight, *bias;  // [columns]; bias nullptr: there is none
};

// A row of the gradient: y = xhat * weight (+ bias), xhat = (x - mean) * rstd, and with
// g = d_out * weight, d_x = (g - mean(g) - xhat * mean(g * xhat)) * rstd; an RMS norm subtracts no
// mean, of x or g.
class GradRow {
 public:
  GradRow(const NormGradOp<TensorView>& op, int64_t r)
      : op_(op),
        r_(r),
        dy_(RowAt(op.d_out, r)),
        x_(RowAt(op.x, r)),
        dx_(RowAt(op.d_x, r)),
        columns_(op.x.dim(1)),
        mean_(op.kind == NormKind::kLayer ? At(op.mean, r) : 0.0f),
        rstd_(At(op.rstd, r)) {}

  // Adds the row's terms of the gradients of weight and bias; remembers the means for WriteDx.
  void AddTo(const ColumnSums& sums) {
    double sum_g = 0, sum_g_xhat = 0;
    ForChunks(columns_, [&](int64_t c, int64_t n) {
      float dy_buffer[kChunk], x_buffer[kChunk], weight_buffer[kChunk], g[kChunk], xhat[kChunk];
      const float* dy = Load(dy_, c, n, dy_buffer);
      const float* x = Load(x_, c, n, x_buffer);
      const float* weight = Load(AsRow(op_.weight), c, n, weight_buffer);
      double* dw = sums.weight + c;
      const float mean = mean_, rstd = rstd_;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        xhat[i] = (x[i] - mean) * rstd;
        g[i] = dy[i] * weight[i];
        dw[i] += double{dy[i]} * double{xhat[i]};
      }
      if (sums.bias != nullptr) {
        double* db = sums.bias + c;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) db[i] += double{dy[i]};
      }
      sum_g += SumInDouble(g, n);
      sum_g_xhat += DotInDouble(g, xhat, n);
    });
    const double per_column = 1.0 / static_cast<double>(columns_);
    mean_g_ = op_.kind == NormKind::kLayer ? static_cast<float>(sum_g * per_column) : 0.0f;
    mean_g_xhat_ = static_cast<float>(sum_g_xhat * per_column);
  }

  // And what comes past the norm.
  void WriteDx() const {
    ForChunks(columns_, [&](int64_t c, int64_t n) {
      float dy_buffer[kChunk], x_buffer[kChunk], weight_buffer[kChunk], bypass_buffer[kChunk];
      const float* dy = Load(dy_, c, n, dy_buffer);
      const float* x = Load(x_, c, n, x_buffer);
      const float* weight = Load(AsRow(op_.weight), c, n, weight_buffer);
      float* dx = Target(dx_, c, dy_buffer);
      const float mean = mean_, rstd = rstd_, mean_g = mean_g_, mean_g_xhat = mean_g_xhat_;
      if (op_.d_bypass) {
        const float* bypass = Load(RowAt(op_.d_bypass, r_), c, n, bypass_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i)
          dx[i] =
              (dy[i] * weight[i] - mean_g - (x[i] - mean) * rstd * mean_g_xhat) * rstd + bypass[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i)
          dx[i] = (dy[i] * weight[i] - mean_g - (x[i] - mean) * rstd * mean_g_xhat) * rstd;
      }
      Store(dx_, c, n, dx);
    });
  }

 private:
  const NormGradOp<TensorView>& op_;
  const int64_t r_;
  const Row dy_, x_, dx_;
  const int64_t columns_;
  const float mean_, rstd_;
  float mean_g_ = 0, mean_g_xhat_ = 0;
};

// to[c] (=|+=) sum over n of partials[n, which, c].
void StoreSums(const TensorView& to, const TensorView& partials, int64_t which, Update update) {
  const int64_t blocks = partials.dim(0), sums = partials.dim(1), columns = partials.dim(2);
  ForChunks(columns, [&](int64_t c, int64_t n) {
    double total[kChunk] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      const double* of_block = partials.as<double>() + (b * sums + which) * columns + c;
      for (int64_t i = 0; i < n; ++i) total[i] += of_block[i];
    }
    float buffer[kChunk];
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(total[i]);
    StoreOrAdd(AsRow(to), c, n, buffer, update == Update::kAccumulate);
  });
}

}  // namespace

void NormGrad(const NormGradOp<TensorView>& op, Stream&) {
  CheckFloat(op.x, "x");
  CheckSame(op.d_out, op.x, "d_out");
  CheckSame(op.d_x, op.x, "d_x");
  CheckColumns(op.weight, op.x, "weight");
  if (op.d_bypass) CheckSame(op.d_bypass, op.x, "d_bypass");
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  CheckPartials(op.partials, columns);
  MR_CHECK_EQ(op.partials.dim(0), 1, "norm_grad: blocks of partials");
  double* const of_weight = op.partials.as<double>();
  const ColumnSums sums{of_weight, op.partials.dim(1) == 2 ? of_weight + columns : nullptr};
  std::fill_n(of_weight, op.partials.numel(), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    GradRow row(op, r);
    row.AddTo(sums);
    row.WriteDx();
  }
  RaiseMagnitude(op.magnitude, op.d_x);
}

void NormSums(const NormSumsOp<TensorView>& op, Stream&) {
  CheckFloat(op.d_weight, "d_weight");
  const int64_t columns = op.d_weight.dim(0);
  CheckPartials(op.partials, columns);
  MR_CHECK_EQ(op.partials.dim(1), op.d_bias ? 2 : 1, "norm_sums: sums of a block");
  StoreSums(op.d_weight, op.partials, 0, op.weight_update);
  if (!op.d_bias) return;
  CheckFloat(op.d_bias, "d_bias");
  MR_CHECK_EQ(op.d_bias.dim(0), columns, "norm_sums: columns of d_bias");
  StoreSums(op.d_bias, op.partials, 1, op.bias_update);
}

}  // namespace millrace::cpu
