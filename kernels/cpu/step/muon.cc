#include "kernels/cpu/step/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows.h"
#include "runtime/base/step_scalars.h"

namespace millrace::cpu {
namespace {

float Single(double value) { return static_cast<float>(value); }

// A dense operand of `numel` elements.
Row DenseRow(const TensorView& view, int64_t numel, const char* name) {
  CheckFloat(view, name);
  MR_CHECK_EQ(view.numel(), numel, "muon: elements of {}", name);
  return Flat(view, name);
}

Row F32Row(const TensorView& view, int64_t numel, const char* name) {
  MR_CHECK(view.dtype() == DType::kF32, "muon: {} is {}; f32 is needed", name, Name(view.dtype()));
  return DenseRow(view, numel, name);
}

}  // namespace

void MuonMomentum(const MuonMomentumOp<TensorView>& op, Stream&) {
  const int64_t n = op.m.numel();
  const Row moments = F32Row(op.m, n, "m"), grad = DenseRow(op.grad, n, "grad"),
            out = DenseRow(op.out, n, "out");
  const StepScalars& scalars = *op.scalars.as<StepScalars>();
  const float clip = Single(scalars.clip_scale), keep = Single(op.momentum),
              take = Single(1 - op.momentum);
  ForChunks(n, [&](int64_t begin, int64_t count) {
    float wide[kChunk], buffer[kChunk];
    float* const to = Target(out, begin, buffer);
    if (scalars.applied == 0) {
      std::fill_n(to, count, 0.0f);
      return Store(out, begin, count, to);
    }
    const float* const g = Load(grad, begin, count, wide);
    float* const m = moments.f32() + begin;
    const bool nesterov = op.nesterov;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float taken = take * (g[i] * clip);
      m[i] = keep * m[i] + taken;
      to[i] = nesterov ? keep * m[i] + taken : m[i];
    }
    Store(out, begin, count, to);
  });
}

void MuonNormalise(const MuonNormaliseOp<TensorView>& op, Stream&) {
  const int64_t n = op.x.numel();
  const Row x = DenseRow(op.x, n, "x");
  MR_CHECK(op.sum_squares.dtype() == DType::kF64 && op.sum_squares.numel() == 1,
           "muon: sum_squares is {}; f64 [1] is needed", ToString(op.sum_squares.layout));
  const float factor = Single(1 / std::max(std::sqrt(*op.sum_squares.as<double>()), op.eps));
  ForChunks(n, [&](int64_t begin, int64_t count) {
    float wide[kChunk], buffer[kChunk];
    const float* const in = Load(x, begin, count, wide);
    float* const to = Target(x, begin, buffer);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = in[i] * factor;
    Store(x, begin, count, to);
  });
}

void MuonPolynomial(const MuonPolynomialOp<TensorView>& op, Stream&) {
  const int64_t rows = op.out.dim(0), n = rows * rows;
  MR_CHECK_EQ(op.out.dim(1), rows, "muon: columns of out");
  const Row gram = DenseRow(op.gram, n, "gram"), square = DenseRow(op.square, n, "square"),
            out = DenseRow(op.out, n, "out");
  const auto& [a_of, b_of, c_of] = op.coefficients;
  const float a = Single(a_of), b = Single(b_of), c = Single(c_of);
  ForChunks(n, [&](int64_t begin, int64_t count) {
    float grams[kChunk], squares[kChunk], buffer[kChunk];
    const float *const g = Load(gram, begin, count, grams), *const s =
                                                                Load(square, begin, count, squares);
    float* const to = Target(out, begin, buffer);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = b * g[i] + c * s[i];
    const int64_t step = rows + 1;  // from one place on the diagonal to the next
    for (int64_t at = (begin + step - 1) / step * step; at < begin + count; at += step)
      to[at - begin] += a;
    Store(out, begin, count, to);
  });
}

void MuonUpdate(const MuonUpdateOp<TensorView>& op, Stream&) {
  const int64_t n = op.master.numel();
  const Row master = F32Row(op.master, n, "master"), ortho = DenseRow(op.ortho, n, "ortho");
  const StepScalars& scalars = *op.scalars.as<StepScalars>();
  const Row compute = op.compute ? DenseRow(op.compute, n, "compute") : Row{};
  const auto update = [&](int64_t first, int64_t end, const UpdateSegment& by) {
    const double rate = scalars.lr * by.lr_scale;
    const float step = Single(rate), keep = Single(1 - rate * by.weight_decay);
    ForChunks(end - first, [&](int64_t chunk, int64_t count) {
      const int64_t begin = first + chunk;
      float* const w = master.f32() + begin;
      if (scalars.applied != 0) {
        float wide[kChunk];
        const float* const o = Load(ortho, begin, count, wide);
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) w[i] = w[i] * keep - step * o[i];
      }
      if (op.compute) Store(compute, begin, count, w);
    });
  };
  if (op.segments) return ForSegments(*op.segments, op.flat_begin.value(), n, update);
  update(0, n, {.lr_scale = op.lr_scale, .weight_decay = op.weight_decay});
}

}  // namespace millrace::cpu
