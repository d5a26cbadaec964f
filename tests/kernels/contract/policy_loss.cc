// Cross entropy with weights of its targets, and as a policy gradient, whose terms and slopes are
// written out here once more.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// What is in use of the operands of an op: [B,T] each, or absent.
struct InUse {
  TensorView targets, weights, old_logprobs, advantages, reference_logprobs;
};

// A row's log-probability of its target, and of each column; `error` bounds what f32 sums make of
// it, and what its rounding to f32 adds.
struct RowReference {
  std::vector<double> p;
  double logprob = 0, error = 0, relative = 0;
};

RowReference ReferenceOf(const CrossEntropyOp<TensorView>& op, int64_t r, int64_t target) {
  RowReference row;
  double max = Get(op.logits, r, 0), min = max, sum = 0;
  for (int64_t v = 0; v < op.vocab; ++v) {
    max = std::max(max, Get(op.logits, r, v));
    min = std::min(min, Get(op.logits, r, v));
  }
  for (int64_t v = 0; v < op.vocab; ++v) {
    row.p.push_back(std::exp(Get(op.logits, r, v) - max));
    sum += row.p.back();
  }
  for (double& p : row.p) p /= sum;
  row.logprob = Get(op.logits, r, target) - max - std::log(sum);
  row.relative = (static_cast<double>(op.vocab) + 16 + 4 * (max - min)) * kU;
  row.error = row.relative + kU * std::abs(row.logprob);
  return row;
}

// Of a target: its loss, -d/dl of it, how fast that changes with l, and what is tallied of it.
struct TermReference {
  double loss = 0, slope = 0, bend = 0;
  std::array<Expected, PolicyTally::kCount> tally = {};
};

TermReference TermOf(const CrossEntropyOp<TensorView>& op, const InUse& in, int64_t b, int64_t t,
                     const RowReference& row) {
  if (!in.advantages) return {-row.logprob, 1, 0, {}};
  const double advantage = Get(in.advantages, b, t), l = row.logprob,
               moved = l - Get(in.old_logprobs, b, t), ratio = std::exp(moved);
  const bool above = ratio > 1 + op.policy.clip_high && advantage > 0,
             below = ratio < 1 - op.policy.clip_low && advantage < 0, clipped = above || below;
  const double bound = above ? 1 + op.policy.clip_high : 1 - op.policy.clip_low;
  TermReference term;
  term.loss = -(clipped ? bound : ratio) * advantage;
  term.slope = clipped ? 0 : ratio * advantage;
  term.bend = std::abs(term.slope);
  double divergence = ratio - 1 - moved, steep = std::abs(ratio - 1);
  if (in.reference_logprobs) {
    const double apart = Get(in.reference_logprobs, b, t) - l, e = std::exp(apart);
    divergence = e - apart - 1, steep = std::abs(e - 1);
    term.loss += op.policy.kl * divergence;
    term.slope += op.policy.kl * (e - 1);
    term.bend += op.policy.kl * e;
  }
  const auto f32 = [&](double value, double slope) {
    return Expected{value, slope * row.error + 2 * kU * std::abs(value)};
  };
  term.tally = {Expected{1, 0}, Expected{clipped ? 1.0 : 0.0, 0}, f32(ratio, ratio),
                f32(divergence, steep + row.error)};
  return term;
}

struct Expectation {
  Expected loss;
  Reference gradient, tally = Reference(PolicyTally::kCount);
};

void AddRow(const CrossEntropyOp<TensorView>& op, const InUse& in, int64_t r, double inverse,
            Expectation* expected) {
  const int64_t at = op.row_begin.value() + r, b = at / in.targets.dim(1),
                t = at % in.targets.dim(1);
  const auto target = static_cast<int64_t>(Get(in.targets, b, t));
  const double weight = in.weights ? Get(in.weights, b, t) : 1;
  const bool counts = target >= 0 && weight != 0;
  const RowReference row = counts ? ReferenceOf(op, r, target) : RowReference{};
  const TermReference term = counts ? TermOf(op, in, b, t, row) : TermReference{};
  if (counts) {
    const double value = weight * term.loss;
    expected->loss.value += value;
    expected->loss.bound +=
        std::abs(weight) * (std::abs(term.slope) + term.bend * row.error) * row.error +
        1e-14 * std::abs(value);
    for (size_t i = 0; i < term.tally.size(); ++i) {
      expected->tally[i].value += term.tally[i].value;
      expected->tally[i].bound += term.tally[i].bound;
    }
  }
  const double scale = std::abs(weight) * inverse;
  for (int64_t v = 0; v < op.logits.dim(1); ++v) {
    if (!counts || v >= op.vocab) {
      expected->gradient.push_back({0, 0});
      continue;
    }
    const double p = row.p[static_cast<size_t>(v)], apart = p - (v == target ? 1 : 0),
                 value = apart * weight * term.slope * inverse;
    const double of_apart = row.relative * p + (v == target ? kU : 0);
    expected->gradient.push_back(
        {value,
         (of_apart * std::abs(term.slope) + std::abs(apart) * term.bend * row.error) * scale +
             2 * kU * std::abs(value)});
  }
}

// [2,B,T] of f32, of which `*in_use` is the half of `parity`.
TensorView HalvesOf(Memory& memory, Random& random, const TensorView& targets, int64_t parity,
                    TensorView* in_use) {
  const int64_t batch = targets.dim(0), length = targets.dim(1);
  TensorView view = memory.NewRandom(random, DType::kF32, {2, batch, length});
  view.layout = DenseLayout(DType::kF32, {batch, length});
  *in_use = view;
  in_use->data += parity * batch * length * 4;
  return view;
}

// Log-probabilities some way from those of the rows: in the range that is not clipped, or well
// beyond its ends.
void MoveFrom(const CrossEntropyOp<TensorView>& op, const InUse& in, Random& random,
              const TensorView& logprobs) {
  constexpr double kMoves[] = {0.5, -0.5, 0.05, -0.05, 0};
  for (int64_t r = 0; r < op.logits.dim(0); ++r) {
    const int64_t at = op.row_begin.value() + r, b = at / in.targets.dim(1),
                  t = at % in.targets.dim(1);
    const auto target = static_cast<int64_t>(Get(in.targets, b, t));
    if (target < 0) continue;
    Set(logprobs, {b, t}, ReferenceOf(op, r, target).logprob - kMoves[Pick(random, 0, 4)]);
  }
}

CrossEntropyOp<TensorView> MakeCase(Memory& memory, Random& random, int64_t parity, bool policy,
                                    InUse* in) {
  CrossEntropyOp<TensorView> op{};
  const int64_t batch = Pick(random, 1, 3), length = Pick(random, 1, 7), vocab = PickSize(random),
                padded = vocab + Pick(random, 0, 70);
  op.targets = memory.NewTokens(random, {2, batch, length}, -1, vocab);
  op.targets.layout = DenseLayout(DType::kI32, {batch, length});
  op.parity_stride = op.values_parity_stride = batch * length;
  in->targets = op.targets;
  in->targets.data += parity * op.parity_stride * 4;
  op.row_begin = Pick(random, 0, batch * length - 1);
  op.vocab = vocab;
  const int64_t rows = batch * length - op.row_begin.value();
  op.logits =
      memory.NewRandom(random, PickFloat(random), {rows, padded}, PickRowStrides(random), 4);
  const auto halves = [&](TensorView* half) {
    return HalvesOf(memory, random, op.targets, parity, half);
  };
  if (!policy || Flip(random)) {
    op.weights = halves(&in->weights);
    for (int64_t t = 0; t < length; t += 3) Set(in->weights, {Pick(random, 0, batch - 1), t}, 0);
  }
  if (!policy) return op;
  op.policy = {.clip_low = 0.2f, .clip_high = 0.28f};
  op.advantages = halves(&in->advantages);
  op.old_logprobs = halves(&in->old_logprobs);
  MoveFrom(op, *in, random, in->old_logprobs);
  op.tally = memory.New(DType::kF32, {PolicyTally::kCount});
  for (int64_t i = 0; i < PolicyTally::kCount; ++i) Set(op.tally, {i}, 3 + static_cast<double>(i));
  op.tally_update = PickUpdate(random);
  if (Flip(random)) return op;
  op.policy.kl = 0.125f;
  op.reference_logprobs = halves(&in->reference_logprobs);
  MoveFrom(op, *in, random, in->reference_logprobs);
  return op;
}

}  // namespace

void PolicyLossContract(const Subject& subject) {
  Random random(61);
  for (int repeat = 0; repeat < 80; ++repeat) {
    Memory memory;
    StepScalars scalars = MakeScalars();
    scalars.token_parity = repeat % 2;
    scalars.loss_scale = repeat % 3 == 0 ? 8 : 1;
    InUse in;
    CrossEntropyOp<TensorView> op =
        MakeCase(memory, random, scalars.token_parity, repeat % 4 != 0, &in);
    op.scalars = memory.NewScalars(scalars);
    op.loss_sum = memory.New(DType::kF64, {1});
    Set(op.loss_sum, {}, 12.5);
    op.output = repeat % 5 == 0 ? LossOutput::kLossOnly : LossOutput::kLossAndGradient;
    op.loss_update = PickUpdate(random);
    if (Flip(random)) op.loss_weight = 0.3;
    Expectation expected;
    for (int64_t r = 0; r < op.logits.dim(0); ++r)
      AddRow(op, in, r, op.loss_weight * scalars.inv_valid_tokens * scalars.loss_scale, &expected);
    if (op.loss_update == Update::kAccumulate) expected.loss.value += 12.5;
    for (size_t i = 0; op.tally && i < expected.tally.size(); ++i)
      if (op.tally_update == Update::kAccumulate)
        expected.tally[i].value += 3 + static_cast<double>(i);
    const TensorView before = memory.Clone(op.logits);
    Run(subject, memory, subject.table.cross_entropy, op);
    CheckNear(op.loss_sum, {expected.loss}, "loss");
    if (op.tally) CheckNear(op.tally, expected.tally, "tally");
    if (op.output == LossOutput::kLossAndGradient)
      CheckNear(op.logits, expected.gradient, "logit gradient");
    else
      CHECK(SameBits(op.logits, before));
  }
}

}  // namespace millrace::test
