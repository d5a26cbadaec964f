#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/ops/cuda_ssd.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"
#include "tests/kernels/support/ssd_reference.h"

namespace millrace::test {
namespace {

std::vector<double> ValuesOf(const TensorView& view) {
  std::vector<double> values;
  ForEach(view.layout, [&](const Index& i) { values.push_back(Get(view, i)); });
  return values;
}

// An error is a multiple of the magnitude: a rounding for each term of the longest chain of sums,
// for exponents as large as the longest decay (A carries 3 u, and the sum another), and for a few
// single operations. On tensor cores six roundings to bf16 beside them: of no result more than
// that many factors are rounded copies (a state holds rounded products, and its copy is rounded).
double RelativeBound(const Subject& subject, const SsdSizes& s, const SsdReference& reference) {
  const auto terms = static_cast<double>(s.length + s.channels + s.states + s.heads_of_group());
  const double single = (terms + 4 * reference.longest_decay + 32) * kU;
  const bool cores = subject.backend == Backend::kCuda && cuda::SsdOnTensorCores(s);
  return single + (cores ? 6 * 0x1p-9 : 0);
}

Reference Bounded(const std::vector<Tracked>& tracked, double relative) {
  Reference reference;
  for (const Tracked& t : tracked) reference.push_back({t.value, relative * t.magnitude});
  return reference;
}

struct Case {
  int64_t batch, length, heads, channels, groups, states, chunk;
  bool cores;
};

// Lengths below, at and past a chunk; the shapes of tensor cores in every third case.
Case PickCase(Random& random, int repeat) {
  Case c{Pick(random, 1, 2), Pick(random, 1, 70), 0,    Pick(random, 1, 9), Pick(random, 1, 2),
         Pick(random, 1, 9), Pick(random, 1, 40), false};
  c.heads = c.groups * Pick(random, 1, 3);
  if (repeat % 12 == 7) c.length = 0;
  if (repeat % 4 == 1) c.length = 3 * c.chunk;
  if (repeat % 3 == 2) {
    constexpr int64_t kLengths[] = {1, 128, 131, 260};
    c = {c.batch, kLengths[repeat / 3 % 4], c.heads, 64, c.groups, 128, 128, true};
  }
  return c;
}

// a_log from log 1/2 to log 4, dt up to 1/2: what happened is forgotten after a few positions, or
// after many.
template <class Op>
void FillOperands(Random& random, Memory& memory, const Case& c, Op& op) {
  const auto dtype = [&] { return c.cores ? DType::kBF16 : PickFloat(random); };
  op.chunk = c.chunk;
  const auto view = [&](int64_t heads, int64_t columns) {
    return memory.NewRandom(random, dtype(), {c.batch, c.length, heads, columns},
                            PickRowStrides(random));
  };
  op.x = view(c.heads, c.channels);
  op.b = view(c.groups, c.states);
  op.c = view(c.groups, c.states);
  op.dt = memory.NewRandom(random, DType::kF32, {c.batch, c.length, c.heads}, Strides::kDense, 0.5);
  ForEach(op.dt.layout, [&](const Index& i) { Set(op.dt, i, std::abs(Get(op.dt, i))); });
  op.a_log = memory.NewRandom(random, PickFloat(random), {c.heads}, Strides::kDense, 1.3);
  op.d = memory.NewRandom(random, PickFloat(random), {c.heads});
}

template <class Op>
SsdProblem ProblemOf(const Op& op) {
  const SsdSizes s = SsdSizesOf(op);
  SsdProblem p{.batch = s.batch,
               .length = s.length,
               .heads = s.heads,
               .channels = s.channels,
               .groups = s.groups,
               .states = s.states};
  p.x = ValuesOf(op.x), p.b = ValuesOf(op.b), p.c = ValuesOf(op.c), p.dt = ValuesOf(op.dt);
  p.a_log = ValuesOf(op.a_log), p.d = ValuesOf(op.d);
  p.d_out.assign(p.x.size(), 0);
  if constexpr (requires { op.d_out; }) p.d_out = ValuesOf(op.d_out);
  return p;
}

// The gradients of sum d_out * out with respect to `operand` against central differences of the
// recurrence's own values.
void CheckDifferences(SsdProblem p, std::vector<double> SsdProblem::*operand,
                      std::vector<Tracked> SsdReference::*gradient) {
  const std::vector<Tracked> expected = SsdByRecurrence(p).*gradient;
  const auto loss = [&] {
    double sum = 0;
    const std::vector<Tracked> out = SsdByRecurrence(p).out;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i].value * p.d_out[i];
    return sum;
  };
  constexpr double kStep = 0x1p-14;  // the difference is off by its square, relatively
  for (size_t i = 0; i < (p.*operand).size(); ++i) {
    const double at = (p.*operand)[i];
    (p.*operand)[i] = at + kStep;
    const double above = loss();
    (p.*operand)[i] = at - kStep;
    const double below = loss();
    (p.*operand)[i] = at;
    INFO("element " << i);
    CHECK((above - below) / (2 * kStep) ==
          Approx(expected[i].value).margin(1e-7 * expected[i].magnitude));
  }
}

void CheckSums(const TensorView& got, const TensorView& before, Update update,
               const std::vector<Tracked>& tracked, double relative, const char* name) {
  Reference reference = Bounded(tracked, relative);
  for (size_t h = 0; h < reference.size(); ++h)
    if (update == Update::kAccumulate) {
      const double old = Get(before, static_cast<int64_t>(h));
      reference[h].value += old;
      reference[h].bound += kU * (std::abs(old) + std::abs(reference[h].value));
    }
  CheckNear(got, reference, name);
}

}  // namespace

void SsdReferenceContract() {
  Random random(60);
  Memory memory;
  SsdScanGradOp<TensorView> op{};
  FillOperands(random, memory, {2, 7, 4, 3, 2, 5, 4, false}, op);
  op.d_out = memory.NewRandom(random, DType::kF32, {2, 7, 4, 3});
  const SsdProblem p = ProblemOf(op);
  CheckDifferences(p, &SsdProblem::x, &SsdReference::d_x);
  CheckDifferences(p, &SsdProblem::b, &SsdReference::d_b);
  CheckDifferences(p, &SsdProblem::c, &SsdReference::d_c);
  CheckDifferences(p, &SsdProblem::dt, &SsdReference::d_dt);
  CheckDifferences(p, &SsdProblem::a_log, &SsdReference::d_a_log);
  CheckDifferences(p, &SsdProblem::d, &SsdReference::d_d);
}

void SsdScanContract(const Subject& subject) {
  Random random(61);
  for (int repeat = 0; repeat < 24; ++repeat) {
    const Case c = PickCase(random, repeat);
    Memory memory;
    SsdScanOp<TensorView> op{};
    FillOperands(random, memory, c, op);
    op.out = memory.New(c.cores ? DType::kBF16 : PickFloat(random),
                        {c.batch, c.length, c.heads, c.channels}, PickRowStrides(random));
    INFO("length " << c.length << ", chunk " << c.chunk << ", heads " << c.heads << " of "
                   << c.channels << ", groups " << c.groups << ", states " << c.states);
    const SsdReference reference = SsdByRecurrence(ProblemOf(op));
    Run(subject, memory, subject.table.ssd_scan, op);
    CheckNear(op.out, Bounded(reference.out, RelativeBound(subject, SsdSizesOf(op), reference)),
              "out");
  }
}

void SsdScanGradContract(const Subject& subject) {
  Random random(62);
  for (int repeat = 0; repeat < 24; ++repeat) {
    const Case c = PickCase(random, repeat);
    Memory memory;
    SsdScanGradOp<TensorView> op{};
    FillOperands(random, memory, c, op);
    const auto like = [&](const TensorView& v) {
      return memory.New(c.cores ? DType::kBF16 : PickFloat(random),
                        {v.dim(0), v.dim(1), v.dim(2), v.dim(3)}, PickRowStrides(random));
    };
    op.d_out = like(op.x);
    FillRandom(random, op.d_out, 1);
    op.d_x = like(op.x), op.d_b = like(op.b), op.d_c = like(op.c);
    op.d_dt = memory.New(DType::kF32, {c.batch, c.length, c.heads});
    op.d_a_log = memory.NewRandom(random, PickFloat(random), {c.heads});
    op.d_d = memory.NewRandom(random, PickFloat(random), {c.heads});
    op.a_log_update = PickUpdate(random), op.d_update = PickUpdate(random);
    INFO("length " << c.length << ", chunk " << c.chunk << ", heads " << c.heads << " of "
                   << c.channels << ", groups " << c.groups << ", states " << c.states);
    const SsdReference reference = SsdByRecurrence(ProblemOf(op));
    const double relative = RelativeBound(subject, SsdSizesOf(op), reference);
    const TensorView old_a_log = memory.Clone(op.d_a_log), old_d = memory.Clone(op.d_d);
    Run(subject, memory, subject.table.ssd_scan_grad, op);
    CheckNear(op.d_x, Bounded(reference.d_x, relative), "d_x");
    CheckNear(op.d_b, Bounded(reference.d_b, relative), "d_b");
    CheckNear(op.d_c, Bounded(reference.d_c, relative), "d_c");
    CheckSums(op.d_a_log, old_a_log, op.a_log_update, reference.d_a_log, relative, "d_a_log");
    CheckSums(op.d_d, old_d, op.d_update, reference.d_d, relative, "d_d");
    Reference d_dt = Bounded(reference.d_dt, relative);
    if (subject.backend == Backend::kCuda && cuda::SsdOnTensorCores(SsdSizesOf(op)))
      // Differences of sums over all pairs of a chunk: each is in the span of some position.
      for (int64_t h = 0; h < c.heads; ++h) {
        double all = 0;
        for (int64_t i = h; i < std::ssize(d_dt); i += c.heads)
          all += reference.d_decay[static_cast<size_t>(i)].magnitude;
        for (int64_t i = h; i < std::ssize(d_dt); i += c.heads)
          d_dt[static_cast<size_t>(i)].bound += 2 * 128 * kU * all;
      }
    CheckNear(op.d_dt, d_dt, "d_dt");
  }
}

}  // namespace millrace::test
