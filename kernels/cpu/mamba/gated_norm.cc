#include "kernels/cpu/mamba/gated_norm.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

void CheckSame(const TensorView& view, const TensorView& y, const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 2 && view.dim(0) == y.dim(0) && view.dim(1) == y.dim(1),
           "gated_norm: {} is {}, y is {}", name, ToString(view.layout), ToString(y.layout));
}

void CheckOperands(const TensorView& y, const TensorView& z, const TensorView& weight,
                   const TensorView& rstd) {
  CheckSame(y, y, "y");
  CheckSame(z, y, "z");
  CheckFloat(weight, "weight");
  MR_CHECK(weight.layout.rank == 1 && weight.dim(0) == y.dim(1), "gated_norm: weight is {}, y {}",
           ToString(weight.layout), ToString(y.layout));
  MR_CHECK(rstd.dtype() == DType::kF32 && rstd.layout.contiguous() && rstd.dim(0) == y.dim(0) &&
               rstd.dim(1) > 0 && y.dim(1) % rstd.dim(1) == 0,
           "gated_norm: rstd is {}, y is {}", ToString(rstd.layout), ToString(y.layout));
}

// v = y * silu(z) of n elements from c on.
void Gated(Row y_row, Row z_row, int64_t c, int64_t n, float* v) {
  float y_buffer[kChunk], z_buffer[kChunk];
  const float* y = Load(y_row, c, n, y_buffer);
  const float* z = Load(z_row, c, n, z_buffer);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) v[i] = y[i] * (z[i] * Sigmoid(z[i]));
}

// f(begin, n) for the chunks of group g.
template <class F>
void ForGroup(int64_t g, int64_t columns, F&& f) {
  ForChunks(columns, [&](int64_t c, int64_t n) { f(g * columns + c, n); });
}

// Of one group of one row: d_y and d_z; adds to weight_sum.
void GroupGrad(const GatedNormGradOp<TensorView>& op, int64_t r, int64_t g, int64_t columns,
               double* weight_sum) {
  const float rstd = op.rstd.as<float>()[r * op.rstd.dim(1) + g];
  const Row y_row = RowAt(op.y, r), z_row = RowAt(op.z, r), d_out_row = RowAt(op.d_out, r);
  double sum = 0;  // of g * vhat
  ForGroup(g, columns, [&](int64_t c, int64_t n) {
    float v[kChunk], d_out_buffer[kChunk], weight_buffer[kChunk], weighted[kChunk];
    Gated(y_row, z_row, c, n, v);
    const float* d_out = Load(d_out_row, c, n, d_out_buffer);
    const float* weight = Load(AsRow(op.weight), c, n, weight_buffer);
    double* const to = weight_sum + c;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      v[i] *= rstd;
      weighted[i] = d_out[i] * weight[i];
      to[i] += double{d_out[i]} * double{v[i]};
    }
    sum += DotInDouble(weighted, v, n);
  });
  const auto mean = static_cast<float>(sum / static_cast<double>(columns));
  ForGroup(g, columns, [&](int64_t c, int64_t n) {
    float y_buffer[kChunk], z_buffer[kChunk], d_out_buffer[kChunk], weight_buffer[kChunk];
    float d_z[kChunk];
    const float* y = Load(y_row, c, n, y_buffer);
    const float* z = Load(z_row, c, n, z_buffer);
    const float* d_out = Load(d_out_row, c, n, d_out_buffer);
    const float* weight = Load(AsRow(op.weight), c, n, weight_buffer);
    float* const d_y = Target(RowAt(op.d_y, r), c, d_out_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const float s = Sigmoid(z[i]), silu = z[i] * s, vhat = y[i] * silu * rstd;
      const float d_v = (d_out[i] * weight[i] - vhat * mean) * rstd;
      d_z[i] = d_v * y[i] * (s + silu * (1.0f - s));
      d_y[i] = d_v * silu;
    }
    Store(RowAt(op.d_y, r), c, n, d_y);
    Store(RowAt(op.d_z, r), c, n, d_z);
  });
}

}  // namespace

void GatedNorm(const GatedNormOp<TensorView>& op, Stream&) {
  CheckOperands(op.y, op.z, op.weight, op.rstd);
  CheckSame(op.out, op.y, "out");
  const int64_t groups = op.rstd.dim(1), columns = op.y.dim(1) / groups;
  for (int64_t r = 0; r < op.y.dim(0); ++r) {
    const Row y = RowAt(op.y, r), z = RowAt(op.z, r), out = RowAt(op.out, r);
    for (int64_t g = 0; g < groups; ++g) {
      double squares = 0;
      ForGroup(g, columns, [&](int64_t c, int64_t n) {
        float v[kChunk];
        Gated(y, z, c, n, v);
        squares += DotInDouble(v, v, n);
      });
      const auto rstd = static_cast<float>(
          1.0 / std::sqrt(squares / static_cast<double>(columns) + double{op.eps}));
      op.rstd.as<float>()[r * groups + g] = rstd;
      ForGroup(g, columns, [&](int64_t c, int64_t n) {
        float v[kChunk], weight_buffer[kChunk];
        Gated(y, z, c, n, v);
        const float* weight = Load(AsRow(op.weight), c, n, weight_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) v[i] *= rstd * weight[i];
        Store(out, c, n, v);
      });
    }
  }
}

void GatedNormGrad(const GatedNormGradOp<TensorView>& op, Stream&) {
  CheckOperands(op.y, op.z, op.weight, op.rstd);
  CheckSame(op.d_out, op.y, "d_out");
  CheckSame(op.d_y, op.y, "d_y");
  CheckSame(op.d_z, op.y, "d_z");
  const int64_t all = op.y.dim(1), groups = op.rstd.dim(1);
  Scratch scratch(op.scratch);
  double* const weight_sum = reinterpret_cast<double*>(scratch.Take(2 * all));
  std::fill_n(weight_sum, all, 0.0);
  for (int64_t r = 0; r < op.y.dim(0); ++r) {
    for (int64_t g = 0; g < groups; ++g) GroupGrad(op, r, g, all / groups, weight_sum);
    if (!op.rest) continue;
    ForChunks(op.rest.dim(1), [&](int64_t c, int64_t n) {
      const float zeros[kChunk] = {};
      Store(RowAt(op.rest, r), c, n, zeros);
    });
  }
  if (!op.d_weight) return;
  ForChunks(all, [&](int64_t c, int64_t n) {
    float values[kChunk];
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(weight_sum[c + i]);
    StoreOrAdd(AsRow(op.d_weight), c, n, values, op.weight_update == Update::kAccumulate);
  });
}

}  // namespace millrace::cpu
