#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/expert_load.h"
#include "tests/kernels/contract/gated.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Case {
  const ExpertLoad& load;
  ActivationKind kind;
  int64_t columns;
  double scale;
};

// act(x)[s,f], gated, with the bound of its f32 evaluation.
Expected Activated(const TensorView& x, const Case& c, int64_t s, int64_t f) {
  const Gated act = ActOf(c.kind, Get(x, s, f));
  const double up = IsGated(c.kind) ? Get(x, s, c.columns + f) : 1;
  return {act.value * up, act.value_bound * std::abs(up) + kU * std::abs(act.value * up)};
}

void ForwardCase(const Subject& subject, Memory& memory, const Case& c, const TensorView& x,
                 const TensorView& weights, DType dtype) {
  ExpertActivationOp<TensorView> op{};
  op.kind = c.kind;
  op.x = x, op.weights = weights, op.offsets = c.load.offsets;
  op.out = memory.New(dtype, {c.load.slots, c.columns});
  const TensorView live = FirstRows(op.out, c.load.live());
  Reference reference;
  ForEach(live.layout, [&](const Index& i) {
    const Expected y = Activated(x, c, i[0], i[1]);
    const double w = Get(weights, i[0]);
    reference.push_back({w * y.value, std::abs(w) * (y.bound + kU * std::abs(y.value))});
  });
  Run(subject, memory, subject.table.expert_activation, op);
  CheckNear(live, reference, "expert_activation");
}

void GradCase(const Subject& subject, Memory& memory, Random& random, const Case& c,
              const TensorView& x, const TensorView& weights) {
  ExpertActivationGradOp<TensorView> op{};
  op.kind = c.kind;
  op.x = x, op.weights = weights, op.offsets = c.load.offsets;
  op.d_out = memory.NewRandom(random, PickFloat(random), {c.load.slots, c.columns});
  op.d_x = Flip(random) ? op.x : memory.New(PickFloat(random), {c.load.slots, x.dim(1)});
  op.d_weights = memory.New(DType::kF32, {c.load.slots});
  Reference d_x, d_weights;
  for (int64_t s = 0; s < c.load.live(); ++s) {
    SumOf sum;
    double evaluation = 0;
    for (int64_t f = 0; f < c.columns; ++f) {
      const Expected y = Activated(x, c, s, f);
      sum.Add(y.value * Get(op.d_out, s, f));
      evaluation += y.bound * std::abs(Get(op.d_out, s, f));
    }
    d_weights.push_back({sum.value, sum.bound() + evaluation});
    for (int64_t j = 0; j < x.dim(1); ++j) {
      const bool is_up = j >= c.columns;
      const int64_t f = is_up ? j - c.columns : j;
      const Gated act = ActOf(c.kind, Get(x, s, f));
      const double up = IsGated(c.kind) ? Get(x, s, c.columns + f) : 1,
                   dy = Get(op.d_out, s, f) * Get(weights, s);
      const double slope = is_up ? act.value : act.derivative * up;
      const double bound = is_up ? act.value_bound : act.derivative_bound * std::abs(up);
      d_x.push_back({slope * dy, std::abs(dy) * (bound + 4 * kU * std::abs(slope))});
    }
  }
  Run(subject, memory, subject.table.expert_activation_grad, op);
  CheckNear(FirstRows(op.d_x, c.load.live()), d_x, "d_x");
  CheckNear(FirstRows(op.d_weights, c.load.live()), d_weights, "d_weights");
}

}  // namespace

void ExpertActivationContract(const Subject& subject) {
  constexpr ActivationKind kKinds[] = {ActivationKind::kSwiglu, ActivationKind::kRelu2,
                                       ActivationKind::kGelu};
  constexpr double kScales[] = {1, 4, 30, 1e-3};
  Random random(66);
  for (int repeat = 0; repeat < 48; ++repeat) {
    Memory memory;
    const ExpertLoad load = PickLoad(memory, random, repeat);
    const Case c{load, kKinds[repeat % 3],
                 repeat % 5 == 0 ? Pick(random, 510, 1100) : PickSize(random),
                 kScales[repeat / 3 % 4]};
    INFO(load.Text() << ", " << Name(c.kind) << " of " << c.columns << " up to " << c.scale);
    const TensorView x = memory.NewRandom(random, PickFloat(random),
                                          {load.slots, (IsGated(c.kind) ? 2 : 1) * c.columns},
                                          Strides::kDense, c.scale);
    const TensorView weights = memory.NewRandom(random, DType::kF32, {load.slots});
    ForwardCase(subject, memory, c, x, weights, PickFloat(random));
    GradCase(subject, memory, random, c, x, weights);
  }
}

}  // namespace millrace::test
