#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Case {
  int64_t rows, heads, kv_heads, depth;
  int64_t normed() const { return heads + kv_heads; }
  int64_t columns() const { return (heads + 2 * kv_heads) * depth; }
};

Case PickCase(Random& random, int repeat) {
  constexpr int64_t kDepths[] = {1, 2, 7, 32, 33, 64, 128, 129, 256};
  // 700: each of the gradient's warps on a GPU has heads of several rows.
  return {repeat % 8 == 7 ? 0
          : repeat == 3   ? 700
                          : Pick(random, 1, 9),
          Pick(random, 1, 5), Pick(random, 1, 3), repeat == 3 ? 16 : kDepths[repeat % 9]};
}

void ForwardCase(const Subject& subject, Random& random, const Case& c) {
  Memory memory;
  HeadNormOp<TensorView> op{};
  op.heads = c.heads;
  op.kv_heads = c.kv_heads;
  op.eps = Flip(random) ? 1e-5f : 1e-6f;
  op.x =
      memory.NewRandom(random, PickFloat(random), {c.rows, c.columns()}, PickRowStrides(random), 3);
  op.q_weight = memory.NewRandom(random, PickFloat(random), {c.depth});
  op.k_weight = memory.NewRandom(random, PickFloat(random), {c.depth});
  op.out = memory.New(op.x.dtype(), {c.rows, c.columns()}, PickRowStrides(random));
  op.rstd = memory.New(DType::kF32, {c.rows, c.normed()});
  Reference out, statistics;
  // rstd from D squares is relatively within (D + 8) u.
  const double relative = (static_cast<double>(c.depth) + 8) * kU;
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t h = 0; h < c.heads + 2 * c.kv_heads; ++h) {
      double squares = 0;
      for (int64_t i = 0; i < c.depth; ++i) squares += std::pow(Get(op.x, r, h * c.depth + i), 2);
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(c.depth) + op.eps);
      if (h < c.normed()) statistics.push_back({rstd, rstd * relative});
      for (int64_t i = 0; i < c.depth; ++i) {
        const double x = Get(op.x, r, h * c.depth + i);
        const double y = x * rstd * Get(h < c.heads ? op.q_weight : op.k_weight, i);
        out.push_back(h < c.normed() ? Expected{y, (relative + 3 * kU) * std::abs(y)}
                                     : Expected{x, 0});
      }
    }
  Run(subject, memory, subject.table.head_norm, op);
  CheckNear(op.out, out, "head norm");
  CheckNear(op.rstd, statistics, "rstd");
}

struct GradReference {
  Reference d_x;
  std::vector<SumOf> weights[2];
  std::vector<double> extra[2];  // of the terms
};

// d_x = rstd (g - xhat mean(g xhat)), g = d_out weight, the mean over a head.
GradReference ReferenceOf(const HeadNormGradOp<TensorView>& op, const Case& c) {
  GradReference reference;
  for (int which = 0; which < 2; ++which) {
    reference.weights[which].resize(static_cast<size_t>(c.depth));
    reference.extra[which].resize(static_cast<size_t>(c.depth));
  }
  const auto n = static_cast<double>(c.depth);
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t h = 0; h < c.heads + 2 * c.kv_heads; ++h) {
      const int which = h < c.heads ? 0 : 1;
      const bool normed = h < c.normed();
      const double rstd = normed ? Get(op.rstd, r, h) : 0;
      SumOf g_xhat;
      for (int64_t i = 0; i < c.depth && normed; ++i) {
        const double dy = Get(op.d_out, r, h * c.depth + i),
                     xhat = Get(op.x, r, h * c.depth + i) * rstd;
        g_xhat.Add(dy * Get(which == 0 ? op.q_weight : op.k_weight, i) * xhat);
        reference.weights[which][static_cast<size_t>(i)].Add(dy * xhat);
        reference.extra[which][static_cast<size_t>(i)] += 3 * kU * std::abs(dy * xhat);
      }
      for (int64_t i = 0; i < c.depth; ++i) {
        const double dy = Get(op.d_out, r, h * c.depth + i);
        if (!normed) {
          reference.d_x.push_back({dy, 0});
          continue;
        }
        const double own = dy * Get(which == 0 ? op.q_weight : op.k_weight, i),
                     xhat = Get(op.x, r, h * c.depth + i) * rstd, mean = g_xhat.value / n;
        const double value = (own - xhat * mean) * rstd;
        reference.d_x.push_back({value, rstd * (5 * kU * (std::abs(own) + std::abs(xhat * mean)) +
                                                std::abs(xhat) * g_xhat.bound(10) / n) +
                                            2 * kU * std::abs(value)});
      }
    }
  return reference;
}

void CheckWeight(const TensorView& got, const TensorView& old, Update update,
                 std::vector<SumOf> sums, const std::vector<double>& extra, const char* name) {
  Reference reference;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (update == Update::kAccumulate) sums[i].Add(Get(old, static_cast<int64_t>(i)));
    reference.push_back({sums[i].value, sums[i].bound() + extra[i]});
  }
  CheckNear(got, reference, name);
}

void GradCase(const Subject& subject, Random& random, const Case& c) {
  Memory memory;
  HeadNormGradOp<TensorView> op{};
  op.heads = c.heads;
  op.kv_heads = c.kv_heads;
  op.x =
      memory.NewRandom(random, PickFloat(random), {c.rows, c.columns()}, PickRowStrides(random), 2);
  op.d_out =
      memory.NewRandom(random, PickFloat(random), {c.rows, c.columns()}, PickRowStrides(random));
  op.q_weight = memory.NewRandom(random, PickFloat(random), {c.depth});
  op.k_weight = memory.NewRandom(random, PickFloat(random), {c.depth});
  op.rstd = memory.New(DType::kF32, {c.rows, c.normed()});
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t h = 0; h < c.normed(); ++h)
      Set(op.rstd, {r, h}, 0.5 + 0.1 * static_cast<double>((r + 3 * h) % 7));
  op.d_x = Flip(random)
               ? op.d_out
               : memory.New(op.d_out.dtype(), {c.rows, c.columns()}, PickRowStrides(random));
  op.q_update = PickUpdate(random);
  op.k_update = PickUpdate(random);
  op.d_q_weight = memory.NewRandom(random, PickFloat(random), {c.depth});
  op.d_k_weight = memory.NewRandom(random, PickFloat(random), {c.depth});
  const TensorView old_q = memory.Clone(op.d_q_weight), old_k = memory.Clone(op.d_k_weight);
  const GradReference reference = ReferenceOf(op, c);
  Run(subject, memory, subject.table.head_norm_grad, op);
  CheckNear(op.d_x, reference.d_x, "d_x");
  CheckWeight(op.d_q_weight, old_q, op.q_update, reference.weights[0], reference.extra[0],
              "d_q_weight");
  CheckWeight(op.d_k_weight, old_k, op.k_update, reference.weights[1], reference.extra[1],
              "d_k_weight");
}

}  // namespace

void HeadNormContract(const Subject& subject) {
  Random random(12);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Case c = PickCase(random, repeat);
    INFO("rows " << c.rows << ", heads " << c.heads << " + 2 * " << c.kv_heads << " of "
                 << c.depth);
    ForwardCase(subject, random, c);
    GradCase(subject, random, c);
  }
}

}  // namespace millrace::test
