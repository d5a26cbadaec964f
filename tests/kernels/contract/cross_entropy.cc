#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Expectation {
  Expected loss;
  Reference terms;  // by row
  Reference gradient;
};

// log sum exp: a sum of V exponentials, each within (2|z| + 4) u; the gradient scales a ratio of
// those.
Expectation ExpectationOf(const CrossEntropyOp<TensorView>& op, const TensorView& targets,
                          double old_loss, double inverse) {
  Expectation expected;
  expected.loss.value = op.loss_update == Update::kAccumulate ? old_loss : 0;
  const auto vocab = static_cast<double>(op.vocab);
  for (int64_t r = 0; r < op.logits.dim(0); ++r) {
    const int64_t at = op.row_begin.value() + r;
    const auto target =
        static_cast<int64_t>(Get(targets, at / targets.dim(1), at % targets.dim(1)));
    double max = Get(op.logits, r, 0), min = max, sum = 0;
    for (int64_t v = 0; v < op.vocab; ++v) {
      max = std::max(max, Get(op.logits, r, v));
      min = std::min(min, Get(op.logits, r, v));
    }
    for (int64_t v = 0; v < op.vocab; ++v) sum += std::exp(Get(op.logits, r, v) - max);
    const double relative = (vocab + 16 + 4 * (max - min)) * kU;
    expected.terms.push_back({0, 0});
    if (target >= 0) {
      const double term = max + std::log(sum) - Get(op.logits, r, target);
      expected.terms.back() = {term, relative + 1e-14 * std::abs(term)};
      expected.loss.value += term;
      expected.loss.bound += relative + 1e-14 * std::abs(expected.loss.value);
    }
    for (int64_t v = 0; v < op.logits.dim(1); ++v) {
      if (target < 0 || v >= op.vocab) {
        expected.gradient.push_back({0, 0});
        continue;
      }
      const double p = std::exp(Get(op.logits, r, v) - max) / sum,
                   value = (p - (v == target ? 1 : 0)) * inverse;
      expected.gradient.push_back(
          {value, (relative * p + (v == target ? kU : 0)) * inverse + 2 * kU * std::abs(value)});
    }
  }
  return expected;
}

}  // namespace

void CrossEntropyContract(const Subject& subject) {
  Random random(60);
  for (int repeat = 0; repeat < 60; ++repeat) {
    Memory memory;
    const int64_t batch = Pick(random, 1, 3), length = Pick(random, 1, 7);
    const int64_t vocab = repeat % 6 == 0 ? Pick(random, 510, 1100) : PickSize(random),
                  padded = vocab + Pick(random, 0, 70);
    StepScalars scalars = MakeScalars();
    scalars.token_parity = repeat % 2;
    scalars.loss_scale = repeat % 3 == 0 ? 8 : 1;
    CrossEntropyOp<TensorView> op{};
    // -1: not counted. Targets are the windows of length + 1, shifted by one.
    const TensorView windows = memory.NewTokens(random, {2, batch, length + 1}, -1, vocab);
    op.targets = windows;
    op.targets.data += 4;
    op.targets.layout = DenseLayout(DType::kI32, {batch, length});
    op.targets.layout.strides = {length + 1, 1, 0, 0};
    op.parity_stride = batch * (length + 1);
    TensorView in_use = op.targets;
    in_use.data += scalars.token_parity * op.parity_stride * 4;
    op.row_begin = Pick(random, 0, batch * length - 1);
    op.vocab = vocab;
    const int64_t rows = Pick(random, 0, batch * length - op.row_begin.value());
    op.logits = memory.NewRandom(random, PickFloat(random), {rows, padded}, PickRowStrides(random),
                                 repeat % 5 == 4 ? 60 : 4);
    // The padding may hold anything.
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t v = vocab; v < padded; ++v) Set(op.logits, {r, v}, 1e30);
    op.loss_sum = memory.New(DType::kF64, {1});
    Set(op.loss_sum, {}, 12.5);
    if (Flip(random)) op.row_loss = memory.New(DType::kF64, {rows});
    op.scalars = memory.NewScalars(scalars);
    op.output = Flip(random) ? LossOutput::kLossOnly : LossOutput::kLossAndGradient;
    op.loss_update = PickUpdate(random);
    if (Flip(random)) op.loss_weight = 0.3;
    const Expectation expected = ExpectationOf(
        op, in_use, 12.5, op.loss_weight * scalars.inv_valid_tokens * scalars.loss_scale);
    const TensorView before = memory.Clone(op.logits);
    Run(subject, memory, subject.table.cross_entropy, op);
    CheckNear(op.loss_sum, {expected.loss}, "loss");
    if (op.row_loss) CheckNear(op.row_loss, expected.terms, "row_loss");
    if (op.output == LossOutput::kLossAndGradient)
      CheckNear(op.logits, expected.gradient, "logit gradient");
    else
      CHECK(SameBits(op.logits, before));

    // Fault injection: the loss is NaN, the gradient is what it was.
    if (op.output == LossOutput::kLossAndGradient) {
      CrossEntropyOp<TensorView> faulty = op;
      faulty.logits = before;
      scalars.inject_loss_nan = 1;
      faulty.scalars = memory.NewScalars(scalars);
      Run(subject, memory, subject.table.cross_entropy, faulty);
      CHECK(std::isnan(Get(faulty.loss_sum)));
      bool same = true;
      ForEach(op.logits.layout,
              [&](const Index& i) { same &= Get(op.logits, i) == Get(faulty.logits, i); });
      CHECK(same);
    }
  }
}

}  // namespace millrace::test
