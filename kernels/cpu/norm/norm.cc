#include "kernels/cpu/norm/norm.h"

#include <cmath>

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
}

void NormGrad(const NormGradOp<TensorView>& op, Stream&) {
  CheckFloat(op.x, "x");
  CheckSame(op.d_out, op.x, "d_out");
  CheckSame(op.d_x, op.x, "d_x");
  CheckColumns(op.weight, op.x, "weight");
  if (op.d_bypass) CheckSame(op.d_bypass, op.x, "d_bypass");
  if (op.d_weight) CheckColumns(op.d_weight, op.x, "d_weight");
  if (op.d_bias) CheckColumns(op.d_bias, op.x, "d_bias");
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  Scratch scratch(op.scratch);
  // Sums over rows in double: the rounding that is left in a weight's gradient is that of its
  // terms.
  double* const weight_sum = reinterpret_cast<double*>(scratch.Take(4 * columns));
  double* const bias_sum = weight_sum + columns;
  std::fill_n(weight_sum, 2 * columns, 0.0);

  for (int64_t r = 0; r < rows; ++r) {
    const Row dy_row = RowAt(op.d_out, r), x_row = RowAt(op.x, r), dx_row = RowAt(op.d_x, r);
    const float mean = op.kind == NormKind::kLayer ? At(op.mean, r) : 0.0f, rstd = At(op.rstd, r);
    double sum_g = 0, sum_g_xhat = 0;  // g = d_out * weight
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float dy_buffer[kChunk], x_buffer[kChunk], weight_buffer[kChunk], g[kChunk], xhat[kChunk];
      const float* dy = Load(dy_row, c, n, dy_buffer);
      const float* x = Load(x_row, c, n, x_buffer);
      const float* weight = Load(AsRow(op.weight), c, n, weight_buffer);
      double* dw = weight_sum + c;
      double* db = bias_sum + c;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        xhat[i] = (x[i] - mean) * rstd;
        g[i] = dy[i] * weight[i];
        dw[i] += double{dy[i]} * double{xhat[i]};
        db[i] += double{dy[i]};
      }
      sum_g += SumInDouble(g, n);
      sum_g_xhat += DotInDouble(g, xhat, n);
    });
    const double per_column = 1.0 / static_cast<double>(columns);
    const float mean_g =
        op.kind == NormKind::kLayer ? static_cast<float>(sum_g * per_column) : 0.0f;
    const float mean_g_xhat = static_cast<float>(sum_g_xhat * per_column);
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float dy_buffer[kChunk], x_buffer[kChunk], weight_buffer[kChunk], bypass_buffer[kChunk];
      const float* dy = Load(dy_row, c, n, dy_buffer);
      const float* x = Load(x_row, c, n, x_buffer);
      const float* weight = Load(AsRow(op.weight), c, n, weight_buffer);
      float* dx = Target(dx_row, c, dy_buffer);
      if (op.d_bypass) {
        const float* bypass = Load(RowAt(op.d_bypass, r), c, n, bypass_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i)
          dx[i] =
              (dy[i] * weight[i] - mean_g - (x[i] - mean) * rstd * mean_g_xhat) * rstd + bypass[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i)
          dx[i] = (dy[i] * weight[i] - mean_g - (x[i] - mean) * rstd * mean_g_xhat) * rstd;
      }
      Store(dx_row, c, n, dx);
    });
  }
  const auto store = [columns](const TensorView& to, const double* sums, Update update) {
    if (!to) return;
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float buffer[kChunk];
      for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<float>(sums[c + i]);
      StoreOrAdd(AsRow(to), c, n, buffer, update == Update::kAccumulate);
    });
  };
  store(op.d_weight, weight_sum, op.weight_update);
  store(op.d_bias, bias_sum, op.bias_update);
}

}  // namespace millrace::cpu
