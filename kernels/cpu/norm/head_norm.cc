#include "kernels/cpu/norm/head_norm.h"

#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

namespace millrace::cpu {
namespace {

struct Dims {
  int64_t rows, heads, kv_heads, depth;
  int64_t normed() const { return heads + kv_heads; }
  int64_t columns() const { return (heads + 2 * kv_heads) * depth; }
};

template <class Op>
Dims CheckedDims(const Op& op) {
  const Dims d{op.x.dim(0), op.heads, op.kv_heads, op.q_weight.dim(0)};
  MR_CHECK_LE(d.depth, kChunk, "head_norm: head dimension");
  MR_CHECK_EQ(op.x.dim(1), d.columns(), "head_norm: columns of x");
  for (const TensorView* weight : {&op.q_weight, &op.k_weight}) {
    CheckFloat(*weight, "weight");
    MR_CHECK(weight->layout.rank == 1 && weight->dim(0) == d.depth, "head_norm: a weight is {}",
             ToString(weight->layout));
  }
  MR_CHECK(op.rstd.dtype() == DType::kF32 && op.rstd.dim(0) == d.rows &&
               op.rstd.dim(1) == d.normed() && op.rstd.layout.contiguous(),
           "head_norm: rstd is {}; dense f32[{}, {}] is expected", ToString(op.rstd.layout), d.rows,
           d.normed());
  return d;
}

void CheckSame(const TensorView& view, const TensorView& x, const char* name) {
  CheckFloat(view, name);
  MR_CHECK(view.layout.rank == 2 && view.dim(0) == x.dim(0) && view.dim(1) == x.dim(1),
           "head_norm: {} is {}, x is {}", name, ToString(view.layout), ToString(x.layout));
}

// Columns [begin, begin + n), bit for bit: one dtype.
void CopyColumns(Row from, Row to, int64_t begin, int64_t n) {
  if (from.data == to.data) return;
  const int64_t size = Bytes(from.dtype);
  for (int64_t i = begin; i < begin + n; ++i)
    std::copy_n(from.data + i * from.stride * size, size, to.data + i * to.stride * size);
}

}  // namespace

void HeadNorm(const HeadNormOp<TensorView>& op, Stream&) {
  CheckSame(op.x, op.x, "x");
  CheckSame(op.out, op.x, "out");
  MR_CHECK(op.out.dtype() == op.x.dtype(), "head_norm: x is {}, out is {}", Name(op.x.dtype()),
           Name(op.out.dtype()));
  const Dims d = CheckedDims(op);
  float x_buffer[kChunk], weight_buffer[2][kChunk];
  const float* const weights[] = {Load(AsRow(op.q_weight), 0, d.depth, weight_buffer[0]),
                                  Load(AsRow(op.k_weight), 0, d.depth, weight_buffer[1])};
  for (int64_t r = 0; r < d.rows; ++r) {
    const Row in = RowAt(op.x, r), out = RowAt(op.out, r);
    for (int64_t h = 0; h < d.normed(); ++h) {
      const float* const x = Load(in, h * d.depth, d.depth, x_buffer);
      const float* const weight = weights[h < d.heads ? 0 : 1];
      const double squares = SumSquaredDeviationsInDouble(x, 0, d.depth);
      const auto rstd =
          static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(d.depth) + op.eps));
      op.rstd.as<float>()[r * d.normed() + h] = rstd;
      float y_buffer[kChunk];
      float* const y = Target(out, h * d.depth, y_buffer);
#pragma omp simd
      for (int64_t i = 0; i < d.depth; ++i) y[i] = x[i] * rstd * weight[i];
      Store(out, h * d.depth, d.depth, y);
    }
    CopyColumns(in, out, d.normed() * d.depth, d.kv_heads * d.depth);
  }
}

void HeadNormGrad(const HeadNormGradOp<TensorView>& op, Stream&) {
  CheckSame(op.x, op.x, "x");
  CheckSame(op.d_out, op.x, "d_out");
  CheckSame(op.d_x, op.x, "d_x");
  MR_CHECK(op.d_out.dtype() == op.d_x.dtype(), "head_norm_grad: d_out is {}, d_x is {}",
           Name(op.d_out.dtype()), Name(op.d_x.dtype()));
  const Dims d = CheckedDims(op);
  Scratch scratch(op.scratch);
  double* const sums = reinterpret_cast<double*>(scratch.Take(4 * d.depth));
  std::fill_n(sums, 2 * d.depth, 0.0);
  float weight_buffer[2][kChunk];
  const float* const weights[] = {Load(AsRow(op.q_weight), 0, d.depth, weight_buffer[0]),
                                  Load(AsRow(op.k_weight), 0, d.depth, weight_buffer[1])};
  for (int64_t r = 0; r < d.rows; ++r) {
    const Row x_row = RowAt(op.x, r), dy_row = RowAt(op.d_out, r), dx_row = RowAt(op.d_x, r);
    for (int64_t h = 0; h < d.normed(); ++h) {
      float x_buffer[kChunk], dy_buffer[kChunk], g[kChunk], xhat[kChunk];
      const int which = h < d.heads ? 0 : 1;
      const float* const x = Load(x_row, h * d.depth, d.depth, x_buffer);
      const float* const dy = Load(dy_row, h * d.depth, d.depth, dy_buffer);
      const float* const weight = weights[which];
      double* const sum = sums + which * d.depth;
      const float rstd = op.rstd.as<float>()[r * d.normed() + h];
#pragma omp simd
      for (int64_t i = 0; i < d.depth; ++i) {
        xhat[i] = x[i] * rstd;
        g[i] = dy[i] * weight[i];
        sum[i] += double{dy[i]} * double{xhat[i]};
      }
      const auto mean = static_cast<float>(DotInDouble(g, xhat, d.depth) /
                                           static_cast<double>(std::max<int64_t>(d.depth, 1)));
      float* const dx = Target(dx_row, h * d.depth, dy_buffer);
#pragma omp simd
      for (int64_t i = 0; i < d.depth; ++i) dx[i] = (g[i] - xhat[i] * mean) * rstd;
      Store(dx_row, h * d.depth, d.depth, dx);
    }
    CopyColumns(dy_row, dx_row, d.normed() * d.depth, d.kv_heads * d.depth);
  }
  const auto finish = [&](const TensorView& to, const double* sum, Update update) {
    CheckFloat(to, "d_weight");
    float rounded[kChunk];
    for (int64_t i = 0; i < d.depth; ++i) rounded[i] = static_cast<float>(sum[i]);
    StoreOrAdd(AsRow(to), 0, d.depth, rounded, update == Update::kAccumulate);
  };
  if (op.d_q_weight) finish(op.d_q_weight, sums, op.q_update);
  if (op.d_k_weight) finish(op.d_k_weight, sums + d.depth, op.k_update);
}

}  // namespace millrace::cpu
