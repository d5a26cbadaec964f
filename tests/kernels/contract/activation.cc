#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/gated.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// Not the same formula: the definition with tanh, to tie the reference to arXiv 1606.08415.
double GeluByTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

struct Case {
  int64_t rows, columns;
  ActivationKind kind;
  double scale;
};

Case PickCase(Random& random, int repeat) {
  constexpr double kScales[] = {1, 4, 30, 200, 1e-3};
  return {repeat % 7 == 6 ? 0 : Pick(random, 1, 6),
          repeat % 5 == 0 ? Pick(random, 510, 1100) : PickSize(random),
          static_cast<ActivationKind>(Pick(random, 0, 2)), kScales[repeat % 5]};
}

void ForwardCase(const Subject& subject, Random& random, const Case& c) {
  Memory memory;
  const int64_t wide = IsGated(c.kind) ? 2 * c.columns : c.columns;
  ActivationOp<TensorView> op{};
  op.kind = c.kind;
  op.x =
      memory.NewRandom(random, PickFloat(random), {c.rows, wide}, PickRowStrides(random), c.scale);
  op.out = memory.New(PickFloat(random), {c.rows, c.columns}, PickRowStrides(random));
  Reference reference;
  ForEach(op.out.layout, [&](const Index& i) {
    const double x = Get(op.x, i);
    const Gated f = ActOf(c.kind, x);
    const double up = IsGated(c.kind) ? Get(op.x, i[0], c.columns + i[1]) : 1;
    reference.push_back({f.value * up, f.value_bound * std::abs(up) + kU * std::abs(f.value * up)});
  });
  Run(subject, memory, subject.table.activation, op);
  CheckNear(op.out, reference, "activation");
}

void GradCase(const Subject& subject, Random& random, const Case& c) {
  Memory memory;
  const bool gated = IsGated(c.kind);
  const int64_t wide = gated ? 2 * c.columns : c.columns;
  ActivationGradOp<TensorView> op{};
  op.kind = c.kind;
  op.x =
      memory.NewRandom(random, PickFloat(random), {c.rows, wide}, PickRowStrides(random), c.scale);
  op.d_out =
      memory.NewRandom(random, PickFloat(random), {c.rows, c.columns}, PickRowStrides(random));
  const int64_t place = Pick(random, 0, gated ? 1 : 2);  // of d_x: new, in x, in d_out
  op.d_x = place == 1   ? op.x
           : place == 2 ? op.d_out
                        : memory.New(PickFloat(random), {c.rows, wide}, PickRowStrides(random));
  Reference reference;
  ForEach(op.d_x.layout, [&](const Index& i) {
    const bool is_up = i[1] >= c.columns;
    const int64_t column = is_up ? i[1] - c.columns : i[1];
    const double x = Get(op.x, i[0], column), dy = Get(op.d_out, i[0], column);
    const double up = gated ? Get(op.x, i[0], c.columns + column) : 1;
    const Gated f = ActOf(c.kind, x);
    const double value = dy * (is_up ? f.value : f.derivative * up);
    const double bound = std::abs(dy) * (is_up ? f.value_bound : f.derivative_bound * std::abs(up));
    reference.push_back({value, bound + 3 * kU * std::abs(value)});
  });
  Run(subject, memory, subject.table.activation_grad, op);
  CheckNear(op.d_x, reference, "activation gradient");
}

}  // namespace

void ActivationContract(const Subject& subject) {
  for (double x = -6; x <= 6; x += 0.25)
    CHECK(GeluOf(x).value == Approx(GeluByTanh(x)).margin(1e-12));
  Random random(40);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const Case c = PickCase(random, repeat);
    INFO("rows " << c.rows << ", columns " << c.columns << ", values up to " << c.scale);
    ForwardCase(subject, random, c);
    GradCase(subject, random, c);
  }
}

}  // namespace millrace::test
