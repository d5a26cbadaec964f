#include "kernels/cpu/step/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/step/statistics.h"
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

void MuonNormalise(const MuonNormaliseOp<TensorView>& op, Stream& stream) {
  const int64_t groups = op.x.dim(0), of_group = op.x.dim(1), n = op.x.dim(2);
  MR_CHECK(n <= 1 || (op.x.stride(2) == 1 && (of_group <= 1 || op.x.stride(1) == n)),
           "muon: x is {}; the matrices of a group lie end to end", ToString(op.x.layout));
  MR_CHECK(op.out.layout.rank == 3 && op.out.dim(0) == groups && op.out.dim(1) == of_group &&
               op.out.dim(2) == n,
           "muon: out is {}, x is {}", ToString(op.out.layout), ToString(op.x.layout));
  const Row all = DenseRow(op.out, groups * of_group * n, "out");
  CheckFloat(op.x, "x");
  double squares = 0;
  SumSquaresOp<TensorView> sum;
  sum.out = {reinterpret_cast<std::byte*>(&squares), DenseLayout(DType::kF64, {1})};
  for (int64_t matrix = 0; matrix < groups * of_group; ++matrix) {
    const Row x = RowAt(op.x, matrix / of_group, matrix % of_group);
    sum.x = {x.data, DenseLayout(x.dtype, {n})};
    SumSquares(sum, stream);
    const float factor = Single(1 / std::max(std::sqrt(squares), op.eps));
    const Row out{all.data + matrix * n * Bytes(all.dtype), 1, all.dtype};
    ForChunks(n, [&](int64_t begin, int64_t count) {
      float wide[kChunk], buffer[kChunk];
      const float* const in = Load(x, begin, count, wide);
      float* const to = Target(out, begin, buffer);
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) to[i] = in[i] * factor;
      Store(out, begin, count, to);
    });
  }
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
