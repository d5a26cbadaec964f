#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// Statistics of one row with the bounds of norm.h's formulas. The mean is a sum of C
// terms. The error of the mean drops out of the variance to first order, so rstd is
// relatively within (C + 8) u.
struct RowStatistics {
  double mean = 0, mean_bound = 0, rstd = 0, rstd_relative = 0;
};

RowStatistics StatisticsOf(const TensorView& s, int64_t r, NormKind kind, double eps) {
  RowStatistics stat;
  const auto columns = static_cast<double>(s.dim(1));
  SumOf sum;
  double squares = 0;
  for (int64_t c = 0; c < s.dim(1); ++c) sum.Add(Get(s, r, c));
  if (kind == NormKind::kLayer) {
    stat.mean = sum.value / columns;
    stat.mean_bound = sum.bound(2) / columns;
  }
  for (int64_t c = 0; c < s.dim(1); ++c) squares += std::pow(Get(s, r, c) - stat.mean, 2);
  stat.rstd = 1 / std::sqrt(squares / columns + eps);
  stat.rstd_relative = (columns + 8) * kU;
  return stat;
}

void CheckNormResult(const NormOp<TensorView>& op, const TensorView& s) {
  Reference out, mean, rstd;
  for (int64_t r = 0; r < s.dim(0); ++r) {
    const RowStatistics stat = StatisticsOf(s, r, op.kind, op.eps);
    mean.push_back({stat.mean, stat.mean_bound});
    rstd.push_back({stat.rstd, stat.rstd * stat.rstd_relative});
    for (int64_t c = 0; c < s.dim(1); ++c) {
      const double x = Get(s, r, c), weight = Get(op.weight, c),
                   bias = op.bias ? Get(op.bias, c) : 0;
      const double scaled = (x - stat.mean) * stat.rstd * weight;
      const double bound =
          (stat.mean_bound + kU * std::abs(x - stat.mean)) * std::abs(stat.rstd * weight) +
          (stat.rstd_relative + 3 * kU) * std::abs(scaled) + kU * std::abs(scaled + bias);
      out.push_back({scaled + bias, bound});
    }
  }
  CheckNear(op.out, out, "norm");
  if (op.mean) CheckNear(op.mean, mean, "mean");
  if (op.rstd) CheckNear(op.rstd, rstd, "rstd");
}

}  // namespace

void NormContract(const Subject& subject) {
  Random random(10);
  for (int repeat = 0; repeat < 60; ++repeat) {
    Memory memory;
    const int64_t rows = repeat % 8 == 7 ? 0 : Pick(random, 1, 9);
    const int64_t columns = repeat % 9 == 0 ? Pick(random, 510, 1100) : PickSize(random);
    NormOp<TensorView> op{};
    op.kind = Flip(random) ? NormKind::kLayer : NormKind::kRms;
    op.eps = Flip(random) ? 1e-5f : 1e-6f;
    op.x = memory.NewRandom(random, PickFloat(random), {rows, columns}, PickRowStrides(random), 3);
    op.weight = memory.NewRandom(random, PickFloat(random), {columns});
    if (op.kind == NormKind::kLayer) {
      op.bias = memory.NewRandom(random, PickFloat(random), {columns});
      op.mean = memory.New(DType::kF32, {rows});
    }
    op.out = memory.New(PickFloat(random), {rows, columns}, PickRowStrides(random));
    op.rstd = memory.New(DType::kF32, {rows});
    // Of the sum: none, new, in x, in the residual.
    const int place = static_cast<int>(Pick(random, 0, 3));
    if (place > 0) {
      op.residual =
          memory.NewRandom(random, PickFloat(random), {rows, columns}, PickRowStrides(random));
      op.sum = place == 1   ? memory.New(PickFloat(random), {rows, columns}, PickRowStrides(random))
               : place == 2 ? op.x
                            : op.residual;
    }
    if (!op.residual) {
      Run(subject, memory, subject.table.norm, op);
      CheckNormResult(op, op.x);
      continue;
    }
    // The fused op against add, then norm of the stored sum: the same bits.
    AddOp<TensorView> add{{},
                          memory.Clone(op.x),
                          memory.Clone(op.residual),
                          memory.New(op.sum.dtype(), {rows, columns})};
    NormOp<TensorView> separate = op;
    separate.x = add.out;
    separate.residual = separate.sum = {};
    separate.out = memory.New(op.out.dtype(), {rows, columns});
    separate.rstd = memory.New(DType::kF32, {rows});
    if (op.mean) separate.mean = memory.New(DType::kF32, {rows});
    Run(subject, memory, subject.table.add, add);
    Run(subject, memory, subject.table.norm, separate);
    Run(subject, memory, subject.table.norm, op);
    CHECK(SameBits(op.sum, add.out));
    CHECK(SameBits(op.out, separate.out));
    CHECK(SameBits(op.rstd, separate.rstd));
    if (op.mean) CHECK(SameBits(op.mean, separate.mean));
    CheckNormResult(op, op.sum);
  }
}

namespace {

struct NormGradReference {
  Reference d_x, d_weight, d_bias;
};

// d_x = rstd (g - mean(g) - xhat mean(g xhat)) + bypass, g = d_out weight; the means have C terms.
NormGradReference ReferenceOf(const NormGradOp<TensorView>& op,
                              const NormSumsOp<TensorView>& sums) {
  const int64_t rows = op.x.dim(0), columns = op.x.dim(1);
  const auto n = static_cast<double>(columns);
  std::vector<SumOf> d_weight(static_cast<size_t>(columns)), d_bias(d_weight);
  std::vector<double> weight_error(static_cast<size_t>(columns));
  NormGradReference reference;
  for (int64_t r = 0; r < rows; ++r) {
    const double mean = op.kind == NormKind::kLayer ? Get(op.mean, r) : 0, rstd = Get(op.rstd, r);
    SumOf g, g_xhat;
    for (int64_t c = 0; c < columns; ++c) {
      const double dy = Get(op.d_out, r, c), x = Get(op.x, r, c), xhat = (x - mean) * rstd;
      g.Add(dy * Get(op.weight, c));
      g_xhat.Add(dy * Get(op.weight, c) * xhat);
      d_weight[c].Add(dy * xhat);
      d_bias[c].Add(dy);
      weight_error[c] += 3 * kU * std::abs(dy * xhat);
    }
    const double mean_g = op.kind == NormKind::kLayer ? g.value / n : 0,
                 mean_g_xhat = g_xhat.value / n;
    for (int64_t c = 0; c < columns; ++c) {
      const double xhat = (Get(op.x, r, c) - mean) * rstd,
                   own = Get(op.d_out, r, c) * Get(op.weight, c);
      const double bypass = op.d_bypass ? Get(op.d_bypass, r, c) : 0;
      const double value = (own - mean_g - xhat * mean_g_xhat) * rstd + bypass;
      const double bound = rstd * (5 * kU * (std::abs(own) + std::abs(mean_g)) + g.bound(4) / n +
                                   std::abs(xhat) * g_xhat.bound(10) / n) +
                           2 * kU * (std::abs(value) + std::abs(bypass));
      reference.d_x.push_back({value, bound});
    }
  }
  const auto finish = [&](const TensorView& view, Update update, SumOf sum, int64_t c,
                          double extra) -> Expected {
    if (update == Update::kAccumulate) sum.Add(Get(view, c));
    return {sum.value, sum.bound() + extra};
  };
  for (int64_t c = 0; c < columns; ++c) {
    reference.d_weight.push_back(
        finish(sums.d_weight, sums.weight_update, d_weight[c], c, weight_error[c]));
    if (sums.d_bias)
      reference.d_bias.push_back(finish(sums.d_bias, sums.bias_update, d_bias[c], c, 0));
  }
  return reference;
}

// `partials` are there; a bias where they have two sums.
NormSumsOp<TensorView> RandomSums(Random& random, Memory& memory, const TensorView& partials) {
  const int64_t columns = partials.dim(2);
  NormSumsOp<TensorView> op{};
  op.partials = partials;
  op.weight_update = PickUpdate(random);
  op.bias_update = PickUpdate(random);
  op.d_weight = memory.NewRandom(random, PickFloat(random), {columns});
  if (partials.dim(1) == 2) op.d_bias = memory.NewRandom(random, PickFloat(random), {columns});
  return op;
}

// Runs the op, and requires of each result one rounding of old + (the sum that is written to an f32
// temporary). Returns what wrote these.
NormSumsOp<TensorView> RunSums(const Subject& subject, Memory& memory,
                               const NormSumsOp<TensorView>& op) {
  const int64_t columns = op.d_weight.dim(0);
  NormSumsOp<TensorView> fresh = op;
  fresh.weight_update = fresh.bias_update = Update::kOverwrite;
  fresh.d_weight = memory.New(DType::kF32, {columns});
  if (op.d_bias) fresh.d_bias = memory.New(DType::kF32, {columns});
  const TensorView old_weight = memory.Clone(op.d_weight);
  const TensorView old_bias = op.d_bias ? memory.Clone(op.d_bias) : TensorView{};
  Run(subject, memory, subject.table.norm_sums, op);
  Run(subject, memory, subject.table.norm_sums, fresh);
  const auto applied = [&](const TensorView& got, const TensorView& old, const TensorView& sum,
                           Update update) {
    const TensorView expected = memory.Clone(old);
    for (int64_t c = 0; c < columns; ++c) {
      const float start = update == Update::kAccumulate ? static_cast<float>(Get(old, c)) : 0.0f;
      const float value = static_cast<float>(Get(sum, c));
      Set(expected, {c}, update == Update::kAccumulate ? start + value : value);
    }
    return SameBits(got, expected);
  };
  CHECK(applied(op.d_weight, old_weight, fresh.d_weight, op.weight_update));
  if (op.d_bias) CHECK(applied(op.d_bias, old_bias, fresh.d_bias, op.bias_update));
  return fresh;
}

}  // namespace

void NormGradContract(const Subject& subject) {
  Random random(11);
  for (int repeat = 0; repeat < 60; ++repeat) {
    Memory memory;
    // 130: more than two blocks of rows.
    const int64_t rows = repeat % 8 == 7 ? 0 : repeat % 8 == 3 ? 130 : Pick(random, 1, 9);
    const int64_t columns = repeat % 9 == 0 ? Pick(random, 510, 1100) : PickSize(random);
    NormGradOp<TensorView> op{};
    op.kind = Flip(random) ? NormKind::kLayer : NormKind::kRms;
    op.d_out = memory.NewRandom(random, PickFloat(random), {rows, columns}, PickRowStrides(random));
    op.x = memory.NewRandom(random, PickFloat(random), {rows, columns}, PickRowStrides(random), 2);
    op.weight = memory.NewRandom(random, PickFloat(random), {columns});
    if (op.kind == NormKind::kLayer)
      op.mean = memory.NewRandom(random, DType::kF32, {rows}, Strides::kDense, 0.3);
    op.rstd = memory.New(DType::kF32, {rows});
    for (int64_t r = 0; r < rows; ++r) Set(op.rstd, {r}, 0.5 + 0.1 * static_cast<double>(r % 7));
    if (Flip(random))
      op.d_bypass =
          memory.NewRandom(random, PickFloat(random), {rows, columns}, PickRowStrides(random));
    const int place = static_cast<int>(Pick(random, 0, 2));  // of d_x: new, in d_out, in the bypass
    op.d_x = place == 1 ? op.d_out
             : place == 2 && op.d_bypass
                 ? op.d_bypass
                 : memory.New(PickFloat(random), {rows, columns}, PickRowStrides(random));
    op.partials = NewPartials(memory, op, Pick(random, 1, 2), subject.backend);
    const NormSumsOp<TensorView> sums = RandomSums(random, memory, op.partials);

    // The same out of place.
    NormGradOp<TensorView> fresh = op;
    fresh.d_out = memory.Clone(op.d_out);
    if (op.d_bypass) fresh.d_bypass = memory.Clone(op.d_bypass);
    fresh.d_x = memory.New(op.d_x.dtype(), {rows, columns});
    fresh.partials = memory.NewLike(op.partials);

    const NormGradReference reference = ReferenceOf(op, sums);
    Run(subject, memory, subject.table.norm_grad, op);
    RunSums(subject, memory, sums);
    CheckNear(op.d_x, reference.d_x, "d_x");
    CheckNear(sums.d_weight, reference.d_weight, "d_weight");
    if (sums.d_bias) CheckNear(sums.d_bias, reference.d_bias, "d_bias");

    Run(subject, memory, subject.table.norm_grad, fresh);
    CHECK(SameBits(op.d_x, fresh.d_x));
    CHECK(SameBits(op.partials, fresh.partials));
  }
}

// Sums of any number of blocks, rounded once: what is left is the order in which doubles are added.
void NormSumsContract(const Subject& subject) {
  Random random(12);
  for (const int64_t blocks : {0, 1, 2, 31, 32, 33, 128, 264})
    for (const int64_t columns : {1, 31, 32, 33, 384, 1000}) {
      INFO(blocks << " blocks of " << columns << " columns");
      Memory memory;
      const TensorView partials =
          memory.NewRandom(random, DType::kF64, {blocks, Pick(random, 1, 2), columns});
      const NormSumsOp<TensorView> fresh =
          RunSums(subject, memory, RandomSums(random, memory, partials));
      const auto reference = [&](int64_t which) {
        Reference sums;
        for (int64_t c = 0; c < columns; ++c) {
          double sum = 0;
          for (int64_t b = 0; b < blocks; ++b)
            sum += partials.as<double>()[(b * partials.dim(1) + which) * columns + c];
          sums.push_back({sum, static_cast<double>(blocks * blocks) * 0x1p-52});
        }
        return sums;
      };
      CheckNear(fresh.d_weight, reference(0), "d_weight");
      if (fresh.d_bias) CheckNear(fresh.d_bias, reference(1), "d_bias");
    }
}

}  // namespace millrace::test
