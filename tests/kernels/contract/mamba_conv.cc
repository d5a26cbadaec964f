#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/gated.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Case {
  int64_t batch, length, channels, heads, width;
};

// GPUs have kernels of their own for bf16 throughout, and of those rows that are aligned move by
// several channels: as models have them, more than a block's, with all taps.
bool AllBF16(int repeat) { return repeat % 4 == 1; }
bool Aligned(int repeat) { return repeat % 16 == 5; }

Strides PickStrides(Random& random, int repeat) {
  return Aligned(repeat) ? Strides::kDense : PickRowStrides(random);
}

DType PickDType(Random& random, int repeat) {
  return AllBF16(repeat) ? DType::kBF16 : PickFloat(random);
}

Case PickCase(Random& random, int repeat) {
  if (Aligned(repeat)) return {2, Pick(random, 257, 300), 264, PickSize(random), 4};
  return {Pick(random, 1, 2),
          repeat % 8 == 7                      ? 0
          : repeat % 8 == 3 || repeat % 8 == 5 ? Pick(random, 250, 300)
                                               : Pick(random, 1, 9),
          repeat % 9 == 0 ? Pick(random, 510, 560) : PickSize(random), PickSize(random),
          Pick(random, 1, 4)};
}

// In one case of three, steps are clamped: to limits that no step is within its error of.
template <class Op>
void FillOperands(Random& random, Memory& memory, const Case& c, int repeat, Op& op) {
  const double scale = repeat % 5 == 4 ? 30 : 3;
  op.x = memory.NewRandom(random, PickDType(random, repeat), {c.batch, c.length, c.channels},
                          PickStrides(random, repeat), scale);
  op.dt_raw = memory.NewRandom(random, PickFloat(random), {c.batch, c.length, c.heads},
                               PickRowStrides(random), scale);
  op.weight = memory.NewRandom(random, PickFloat(random), {c.channels, c.width});
  op.bias = memory.NewRandom(random, PickFloat(random), {c.channels});
  op.dt_bias = memory.NewRandom(random, PickFloat(random), {c.heads});
  op.dt_min = repeat % 3 == 1 ? 0.125f : 0;
  op.dt_max = repeat % 3 == 1 ? 1.75f : std::numeric_limits<float>::infinity();
}

// u of one element, with the error of a sum.
template <class Op>
SumOf ConvolvedAt(const Op& op, int64_t b, int64_t t, int64_t c) {
  const int64_t width = op.weight.dim(1);
  SumOf u;
  u.Add(Get(op.bias, c));
  for (int64_t k = 0; k < width; ++k)
    if (const int64_t source = t - (width - 1) + k; source >= 0)
      u.Add(Get(op.weight, c, k) * Get(op.x, b, source, c));
  return u;
}

struct Step {
  double v, value, bound;
  bool clamped;
};

// log(1 + e^v): an error of v of u|v| is one of the result's 2u|v|, at most; above 20 it is v.
template <class Op>
Step StepAt(const Op& op, int64_t b, int64_t t, int64_t h) {
  const double v = Get(op.dt_raw, b, t, h) + Get(op.dt_bias, h);
  Step step{v, v > 20 ? v : std::log1p(std::exp(v)), 0, false};
  step.bound = (12 + 4 * std::abs(v)) * kU * step.value + (v > 19 ? 1e-8 : 0);
  for (const double limit : {double{op.dt_min}, double{op.dt_max}})
    REQUIRE(!(std::abs(step.value - limit) <= step.bound));
  const double inside = std::clamp(step.value, double{op.dt_min}, double{op.dt_max});
  step.clamped = inside != step.value;
  if (step.clamped) step.value = inside, step.bound = 0;
  return step;
}

}  // namespace

void MambaConvContract(const Subject& subject) {
  Random random(50);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const Case c = PickCase(random, repeat);
    Memory memory;
    MambaConvOp<TensorView> op{};
    FillOperands(random, memory, c, repeat, op);
    op.out = memory.New(PickDType(random, repeat), {c.batch, c.length, c.channels},
                        PickStrides(random, repeat));
    op.dt = memory.New(DType::kF32, {c.batch, c.length, c.heads});
    Reference out, dt;
    ForEach(op.out.layout, [&](const Index& i) {
      const SumOf u = ConvolvedAt(op, i[0], i[1], i[2]);
      const Gated silu = SiluOf(u.value);
      out.push_back({silu.value, silu.value_bound + 1.1 * u.bound()});  // |silu'| < 1.1
    });
    ForEach(op.dt.layout, [&](const Index& i) {
      const Step step = StepAt(op, i[0], i[1], i[2]);
      dt.push_back({step.value, step.bound});
    });
    INFO("length " << c.length << ", channels " << c.channels << ", width " << c.width);
    Run(subject, memory, subject.table.mamba_conv, op);
    CheckNear(op.out, out, "out");
    CheckNear(op.dt, dt, "dt");
  }
}

namespace {

struct GradReference {
  std::vector<Expected> d_u;  // [B,T,C]
  Reference d_x, d_dt_raw, d_weight, d_bias, d_dt_bias;
};

// A sum whose terms have errors of their own.
struct SumOfInexact : SumOf {
  double error = 0;
  void AddInexact(double factor, const Expected& term) {
    Add(factor * term.value);
    error += std::abs(factor) * term.bound;
  }
  Expected Result() const { return {value, bound(2) + error}; }
};

void AddChannels(const MambaConvGradOp<TensorView>& op, GradReference& to) {
  const int64_t batch = op.x.dim(0), length = op.x.dim(1), channels = op.x.dim(2),
                width = op.weight.dim(1);
  const auto d_u = [&](int64_t b, int64_t t, int64_t c) -> const Expected& {
    return to.d_u[static_cast<size_t>((b * length + t) * channels + c)];
  };
  ForEach(op.x.layout, [&](const Index& i) {
    const SumOf u = ConvolvedAt(op, i[0], i[1], i[2]);
    const Gated silu = SiluOf(u.value);
    const double d_out = Get(op.d_out, i);
    to.d_u.push_back({d_out * silu.derivative,
                      std::abs(d_out) * (silu.derivative_bound + 0.5 * u.bound() +  // |silu''|
                                         2 * kU * std::abs(silu.derivative))});
  });
  ForEach(op.x.layout, [&](const Index& i) {
    SumOfInexact sum;
    for (int64_t k = 0; k < width; ++k)
      if (const int64_t t = i[1] + (width - 1) - k; t < length)
        sum.AddInexact(Get(op.weight, i[2], k), d_u(i[0], t, i[2]));
    to.d_x.push_back(sum.Result());
  });
  for (int64_t c = 0; c < channels; ++c) {
    SumOfInexact bias;
    for (int64_t k = 0; k < width; ++k) {
      SumOfInexact weight;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t t = width - 1 - k; t < length; ++t)
          weight.AddInexact(Get(op.x, b, t - (width - 1) + k, c), d_u(b, t, c));
      if (op.weight_update == Update::kAccumulate) weight.Add(Get(op.d_weight, c, k));
      to.d_weight.push_back(weight.Result());
    }
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = 0; t < length; ++t) bias.AddInexact(1, d_u(b, t, c));
    if (op.bias_update == Update::kAccumulate) bias.Add(Get(op.d_bias, c));
    to.d_bias.push_back(bias.Result());
  }
}

void AddSteps(const MambaConvGradOp<TensorView>& op, GradReference& to) {
  const int64_t heads = op.dt_raw.dim(2);
  std::vector<SumOfInexact> sums(static_cast<size_t>(heads));
  ForEach(op.dt_raw.layout, [&](const Index& i) {
    const Step step = StepAt(op, i[0], i[1], i[2]);
    const double s = 1 / (1 + std::exp(-step.v)), value = step.clamped ? 0 : Get(op.d_dt, i) * s,
                 bound = (SigmoidRelative(step.v) + 2 * kU) * std::abs(value) +
                         (step.v > 19 ? 1e-8 * std::abs(Get(op.d_dt, i)) : 0);
    to.d_dt_raw.push_back({value, bound});
    sums[static_cast<size_t>(i[2])].AddInexact(1, to.d_dt_raw.back());
  });
  for (int64_t h = 0; h < heads; ++h) {
    if (op.dt_bias_update == Update::kAccumulate) sums[h].Add(Get(op.d_dt_bias, h));
    to.d_dt_bias.push_back(sums[h].Result());
  }
}

}  // namespace

void MambaConvGradContract(const Subject& subject) {
  Random random(51);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const Case c = PickCase(random, repeat);
    Memory memory;
    MambaConvGradOp<TensorView> op{};
    FillOperands(random, memory, c, repeat, op);
    const auto rows = [&](int64_t columns) {
      return memory.NewRandom(random, PickDType(random, repeat), {c.batch, c.length, columns},
                              PickStrides(random, repeat));
    };
    op.d_out = rows(c.channels), op.d_x = rows(c.channels), op.d_dt_raw = rows(c.heads);
    op.d_dt = memory.NewRandom(random, DType::kF32, {c.batch, c.length, c.heads});
    op.d_weight = memory.NewRandom(random, PickFloat(random), {c.channels, c.width});
    op.d_bias = memory.NewRandom(random, PickFloat(random), {c.channels});
    op.d_dt_bias = memory.NewRandom(random, PickFloat(random), {c.heads});
    op.weight_update = PickUpdate(random), op.bias_update = PickUpdate(random);
    op.dt_bias_update = PickUpdate(random);
    GradReference reference;
    AddChannels(op, reference);
    AddSteps(op, reference);
    INFO("length " << c.length << ", channels " << c.channels << ", width " << c.width);
    Run(subject, memory, subject.table.mamba_conv_grad, op);
    CheckNear(op.d_x, reference.d_x, "d_x");
    CheckNear(op.d_dt_raw, reference.d_dt_raw, "d_dt_raw");
    CheckNear(op.d_weight, reference.d_weight, "d_weight");
    CheckNear(op.d_bias, reference.d_bias, "d_bias");
    CheckNear(op.d_dt_bias, reference.d_dt_bias, "d_dt_bias");
  }
}

}  // namespace millrace::test
