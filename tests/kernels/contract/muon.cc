#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/update_segments.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

int64_t SizeOf(Random& random, int repeat) {
  if (repeat == 0) return 0;
  return repeat % 4 == 0 ? Pick(random, 500, 1600) : PickSize(random);
}

MuonMomentumOp<TensorView> MakeMomentum(Memory& memory, Random& random, const StepScalars& scalars,
                                        int64_t n) {
  MuonMomentumOp<TensorView> op{};
  op.grad = memory.NewRandom(random, PickFloat(random), {n});
  op.m = memory.NewRandom(random, DType::kF32, {n}, Strides::kDense, 0.1);
  op.out = memory.New(PickFloat(random), {n});
  op.scalars = memory.NewScalars(scalars);
  op.momentum = Flip(random) ? 0.95 : 0.7;
  op.nesterov = Flip(random);
  return op;
}

MuonUpdateOp<TensorView> MakeUpdate(Memory& memory, Random& random, const StepScalars& scalars,
                                    int64_t n) {
  MuonUpdateOp<TensorView> op{};
  op.ortho = memory.NewRandom(random, PickFloat(random), {n});
  op.master = memory.NewRandom(random, DType::kF32, {n});
  if (Flip(random)) op.compute = memory.New(DType::kBF16, {n});
  op.scalars = memory.NewScalars(scalars);
  op.lr_scale = 3.5;
  op.weight_decay = 0.3;
  return op;
}

void CheckDowncast(const MuonUpdateOp<TensorView>& op) {
  if (!op.compute) return;
  bool same = true;
  for (int64_t i = 0; i < op.master.dim(0); ++i)
    same &= op.compute.as<BFloat16>()[i] == ToBFloat16(op.master.as<float>()[i]);
  CHECK(same);
}

}  // namespace

void MuonMomentumContract(const Subject& subject) {
  Random random(93);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const StepScalars scalars = MakeScalars();
    const MuonMomentumOp<TensorView> op =
        MakeMomentum(memory, random, scalars, SizeOf(random, repeat));
    Reference m, out;
    for (int64_t i = 0; i < op.m.dim(0); ++i) {
      const double g = Get(op.grad, i) * scalars.clip_scale, before = Get(op.m, i), k = op.momentum;
      const double after = k * before + (1 - k) * g;
      const double bound = 4 * kU * (k * std::abs(before) + (1 - k) * std::abs(g));
      m.push_back({after, bound});
      const double ahead = k * after + (1 - k) * g;
      if (op.nesterov)
        out.push_back({ahead, bound + 4 * kU * (k * std::abs(after) + (1 - k) * std::abs(g))});
      else
        out.push_back(m.back());
    }
    Run(subject, memory, subject.table.muon_momentum, op);
    CheckNear(op.m, m, "m");
    CheckNear(op.out, out, "out");
  }

  // A skipped step leaves the momentum, NaN gradient or not, and gives zeros to go on with.
  for (int repeat = 0; repeat < 10; ++repeat) {
    Memory memory;
    StepScalars scalars = MakeScalars();
    scalars.applied = 0;
    const MuonMomentumOp<TensorView> op = MakeMomentum(memory, random, scalars, 600);
    for (int64_t i = 0; i < 600; i += 7) Set(op.grad, {i}, std::nan(""));
    const TensorView m = memory.Clone(op.m);
    Run(subject, memory, subject.table.muon_momentum, op);
    CHECK(SameBits(op.m, m));
    bool zero = true;
    for (int64_t i = 0; i < 600; ++i) zero &= Get(op.out, i) == 0;
    CHECK(zero);
  }
}

void MuonNormaliseContract(const Subject& subject) {
  Random random(94);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    MuonNormaliseOp<TensorView> op{};
    op.x = memory.NewRandom(random, PickFloat(random), {SizeOf(random, repeat)});
    op.sum_squares = memory.New(DType::kF64, {1});
    const double squares = repeat % 5 == 4 ? 0 : repeat % 5 == 3 ? 1e-16 : 7.5;
    op.eps = 1e-3;
    Set(op.sum_squares, {0}, squares);
    Reference x;
    for (int64_t i = 0; i < op.x.dim(0); ++i) {
      const double value = Get(op.x, i) / std::max(std::sqrt(squares), op.eps);
      x.push_back({value, 2 * kU * std::abs(value)});
    }
    Run(subject, memory, subject.table.muon_normalise, op);
    CheckNear(op.x, x, "x");
  }
}

void MuonPolynomialContract(const Subject& subject) {
  Random random(95);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const int64_t rows = repeat == 0 ? 1 : PickSize(random);
    MuonPolynomialOp<TensorView> op{};
    op.gram = memory.NewRandom(random, PickFloat(random), {rows, rows});
    op.square = memory.NewRandom(random, PickFloat(random), {rows, rows});
    op.out = memory.New(PickFloat(random), {rows, rows});
    if (Flip(random)) op.coefficients = {3, -4, 1.75};
    const auto [a, b, c] = op.coefficients;
    Reference out;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < rows; ++j) {
        SumOf sum;
        sum.Add(b * Get(op.gram, i, j));
        sum.Add(c * Get(op.square, i, j));
        if (i == j) sum.Add(a);
        out.push_back({sum.value, sum.bound(2)});
      }
    Run(subject, memory, subject.table.muon_polynomial, op);
    CheckNear(op.out, out, "out");
  }
}

void MuonUpdateContract(const Subject& subject) {
  Random random(96);
  for (int repeat = 0; repeat < 40; ++repeat) {
    Memory memory;
    const StepScalars scalars = MakeScalars();
    MuonUpdateOp<TensorView> op = MakeUpdate(memory, random, scalars, SizeOf(random, repeat));
    if (repeat % 3 == 1) {
      op.flat_begin = Pick(random, 0, 2) * op.master.dim(0);
      op.segments = RandomSegments(random, op.master.dim(0), repeat % 2 == 0);
    }
    Reference master;
    for (int64_t i = 0; i < op.master.dim(0); ++i) {
      const UpdateSegment by =
          op.segments ? SegmentAt(op.segments, op.flat_begin.value(), i)
                      : UpdateSegment{.lr_scale = op.lr_scale, .weight_decay = op.weight_decay};
      const double rate = scalars.lr * by.lr_scale;
      const double kept = Get(op.master, i) * (1 - rate * by.weight_decay),
                   step = rate * Get(op.ortho, i);
      master.push_back({kept - step, 4 * kU * (std::abs(kept) + std::abs(step))});
    }
    Run(subject, memory, subject.table.muon_update, op);
    CheckNear(op.master, master, "master");
    CheckDowncast(op);
  }

  // A skipped step changes no bit; the downcast is still written.
  for (int repeat = 0; repeat < 10; ++repeat) {
    Memory memory;
    StepScalars scalars = MakeScalars();
    scalars.applied = 0;
    scalars.lr = std::nan("");
    const MuonUpdateOp<TensorView> op = MakeUpdate(memory, random, scalars, 600);
    const TensorView master = memory.Clone(op.master);
    Run(subject, memory, subject.table.muon_update, op);
    CHECK(SameBits(op.master, master));
    CheckDowncast(op);
  }
}

}  // namespace millrace::test
