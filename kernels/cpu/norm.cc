#include "kernels/cpu/norm.h"

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

Statistics StatisticsOf(Row row, int64_t columns, NormKind kind, float eps) {
  float buffer[kChunk], mean = 0, squares = 0;
  if (kind == NormKind::kLayer) {
    ForChunks(columns, [&](int64_t c, int64_t n) { mean += Sum(Load(row, c, n, buffer), n); });
    mean /= static_cast<float>(columns);
  }
  ForChunks(columns,
            [&](int64_t c, int64_t n) { squares += SumSquaredDeviations(Load(row, c, n, buffer), mean, n); });
  return {mean, 1.0f / std::sqrt(squares / static_cast<float>(columns) + eps)};
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
      const auto [mean, rstd] = stat;
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
  // Sums over a block of rows, then over blocks.
  float* const weight_total = scratch.Take(4 * columns);
  float* const bias_total = weight_total + columns;
  float* const weight_part = weight_total + 2 * columns;
  float* const bias_part = weight_total + 3 * columns;
  std::fill_n(weight_total, 4 * columns, 0.0f);

  for (int64_t r = 0; r < rows; ++r) {
    const Row dy_row = RowAt(op.d_out, r), x_row = RowAt(op.x, r), dx_row = RowAt(op.d_x, r);
    const float mean = op.kind == NormKind::kLayer ? At(op.mean, r) : 0.0f, rstd = At(op.rstd, r);
    float sum_g = 0, sum_g_xhat = 0;  // g = d_out * weight
    ForChunks(columns, [&](int64_t c, int64_t n) {
      float dy_buffer[kChunk], x_buffer[kChunk], weight_buffer[kChunk], g[kChunk], xhat[kChunk];
      const float* dy = Load(dy_row, c, n, dy_buffer);
      const float* x = Load(x_row, c, n, x_buffer);
      const float* weight = Load(AsRow(op.weight), c, n, weight_buffer);
      float* dw = weight_part + c;
      float* db = bias_part + c;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        xhat[i] = (x[i] - mean) * rstd;
        g[i] = dy[i] * weight[i];
        dw[i] += dy[i] * xhat[i];
        db[i] += dy[i];
      }
      sum_g += Sum(g, n);
      sum_g_xhat += Dot(g, xhat, n);
    });
    const float mean_g = op.kind == NormKind::kLayer ? sum_g / static_cast<float>(columns) : 0.0f;
    const float mean_g_xhat = sum_g_xhat / static_cast<float>(columns);
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
          dx[i] = (dy[i] * weight[i] - mean_g - (x[i] - mean) * rstd * mean_g_xhat) * rstd + bypass[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i)
          dx[i] = (dy[i] * weight[i] - mean_g - (x[i] - mean) * rstd * mean_g_xhat) * rstd;
      }
      Store(dx_row, c, n, dx);
    });
    if ((r + 1) % kSumRows == 0 || r + 1 == rows) {
#pragma omp simd
      for (int64_t i = 0; i < 2 * columns; ++i) {
        weight_total[i] += weight_part[i];
        weight_part[i] = 0;
      }
    }
  }
  ForChunks(columns, [&](int64_t c, int64_t n) {
    if (op.d_weight)
      StoreOrAdd(AsRow(op.d_weight), c, n, weight_total + c, op.weight_update == Update::kAccumulate);
    if (op.d_bias) StoreOrAdd(AsRow(op.d_bias), c, n, bias_total + c, op.bias_update == Update::kAccumulate);
  });
}

}  // namespace millrace::cpu
