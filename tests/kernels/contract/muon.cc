#include <algorithm>
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
  for (int repeat = 0; repeat <= 60; ++repeat) {
    Memory memory;
    // The last: more matrices than a grid's other dimensions have.
    const bool many = repeat == 60;
    const int64_t groups = many ? 2 : Pick(random, 1, 3),
                  of_group = many ? 35000 : Pick(random, 1, 4),
                  n = many               ? 5
                      : repeat % 20 == 7 ? Pick(random, 30000, 70000)
                                         : std::max<int64_t>(SizeOf(random, repeat), 1);
    MuonNormaliseOp<TensorView> op{};
    // Between the groups lies what others normalise.
    const int64_t between = Pick(random, 0, 2) * Pick(random, 1, 40);
    op.x = memory.NewRandom(random, PickFloat(random), {groups, of_group * n + between});
    op.x.layout.rank = 3;
    op.x.layout.dims = {groups, of_group, n};
    op.x.layout.strides = {of_group * n + between, n, 1};
    op.out =
        between == 0 && Flip(random) ? op.x : memory.New(PickFloat(random), {groups, of_group, n});
    op.eps = repeat % 5 == 4 ? 1e6 : 1e-3;
    if (repeat % 5 == 3)
      for (int64_t i = 0; i < n; ++i) Set(op.x, {0, 0, i}, 0);
    Reference out;
    for (int64_t matrix = 0; matrix < groups * of_group; ++matrix) {
      const int64_t g = matrix / of_group, j = matrix % of_group;
      long double squares = 0;
      for (int64_t i = 0; i < n; ++i)
        squares += static_cast<long double>(Get(op.x, g, j, i)) * Get(op.x, g, j, i);
      const double norm = std::max(std::sqrt(static_cast<double>(squares)), op.eps);
      for (int64_t i = 0; i < n; ++i) {
        const double value = Get(op.x, g, j, i) / norm;
        out.push_back({value, 3 * kU * std::abs(value)});
      }
    }
    // A matrix has the same bits among others as alone.
    MuonNormaliseOp<TensorView> last = op;
    last.x.data = AddressOf(op.x, {groups - 1, of_group - 1});
    last.x.layout = DenseLayout(op.x.dtype(), {1, 1, n});
    last.out = memory.New(op.out.dtype(), {1, 1, n});
    Run(subject, memory, subject.table.muon_normalise, last);
    Run(subject, memory, subject.table.muon_normalise, op);
    CheckNear(op.out, out, "out");
    TensorView among = op.out;
    among.data = AddressOf(op.out, {groups - 1, of_group - 1});
    among.layout = last.out.layout;
    CHECK(SameBits(last.out, among));
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
