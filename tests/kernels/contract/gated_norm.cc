#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/contract/gated.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

struct Case {
  int64_t rows, groups, columns;  // of a group
};

// GPUs have kernels of their own for bf16 throughout, by how wide a group is; from some thousand
// rows on, threads have several.
bool AllBF16(int repeat) { return repeat % 4 == 1; }

Case PickCase(Random& random, int repeat) {
  if (repeat == 5) return {2100, 2, Pick(random, 100, 256)};
  if (repeat == 21) return {2100, 1, Pick(random, 257, 512)};
  if (repeat == 29) return {9, 2, Pick(random, 1025, 1100)};
  if (repeat == 37) return {2100, 1, Pick(random, 513, 1024)};
  return {repeat % 8 == 7   ? 0
          : repeat % 8 == 3 ? 150
                            : Pick(random, 1, 9),
          Pick(random, 1, 4),
          repeat % 9 == 0   ? Pick(random, 510, 1100)
          : AllBF16(repeat) ? Pick(random, 200, 1100)
                            : PickSize(random)};
}

DType PickDType(Random& random, int repeat) {
  return AllBF16(repeat) ? DType::kBF16 : PickFloat(random);
}

// v of one group, with bounds: the product of y and silu(z).
struct GatedRow {
  std::vector<double> v, bound;
  double rstd = 0;
};

GatedRow RowOf(const TensorView& y, const TensorView& z, int64_t r, int64_t begin, int64_t n,
               double eps) {
  GatedRow row;
  double squares = 0;
  for (int64_t c = begin; c < begin + n; ++c) {
    const Gated silu = SiluOf(Get(z, r, c));
    const double v = Get(y, r, c) * silu.value;
    row.v.push_back(v);
    row.bound.push_back(std::abs(Get(y, r, c)) * silu.value_bound + 2 * kU * std::abs(v));
    squares += v * v;
  }
  row.rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  return row;
}

// A sum of n squares, each with the relative error of its v, which is at most this: |z| < 5.
constexpr double kValueRelative = (8 + 4 * 5 + 2) * kU;

template <class Op>
void FillOperands(Random& random, Memory& memory, const Case& c, int repeat, Op& op) {
  const int64_t all = c.groups * c.columns;
  op.y =
      memory.NewRandom(random, PickDType(random, repeat), {c.rows, all}, PickRowStrides(random), 2);
  op.z =
      memory.NewRandom(random, PickDType(random, repeat), {c.rows, all}, PickRowStrides(random), 4);
  op.weight = memory.NewRandom(random, PickFloat(random), {all});
}

}  // namespace

void GatedNormContract(const Subject& subject) {
  Random random(70);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const Case c = PickCase(random, repeat);
    Memory memory;
    GatedNormOp<TensorView> op{};
    op.eps = Flip(random) ? 1e-5f : 1e-3f;
    FillOperands(random, memory, c, repeat, op);
    op.out = Flip(random) ? op.y
                          : memory.New(PickDType(random, repeat), {c.rows, c.groups * c.columns},
                                       PickRowStrides(random));
    op.rstd = memory.New(DType::kF32, {c.rows, c.groups});
    Reference out, rstd;
    const double relative = (static_cast<double>(c.columns) + 8) * kU + kValueRelative;
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t g = 0; g < c.groups; ++g) {
        const GatedRow row = RowOf(op.y, op.z, r, g * c.columns, c.columns, op.eps);
        rstd.push_back({row.rstd, row.rstd * relative});
        for (int64_t i = 0; i < c.columns; ++i) {
          const double weight = Get(op.weight, g * c.columns + i), value = row.v[i] * row.rstd;
          out.push_back({value * weight,
                         std::abs(weight) *
                             (row.bound[i] * row.rstd + (relative + 3 * kU) * std::abs(value))});
        }
      }
    INFO("rows " << c.rows << ", groups " << c.groups << " of " << c.columns);
    Run(subject, memory, subject.table.gated_norm, op);
    CheckNear(op.rstd, rstd, "rstd");
    CheckNear(op.out, out, "out");
  }
}

namespace {

struct GradReference {
  Reference d_y, d_z;
  std::vector<SumOf> d_weight;
  std::vector<double> weight_error;
};

// rstd is an operand: what the forward left.
void AddGroup(const GatedNormGradOp<TensorView>& op, int64_t r, int64_t g, int64_t n,
              GradReference& to) {
  const double rstd = Get(op.rstd, r, g);
  const GatedRow row = RowOf(op.y, op.z, r, g * n, n, 0);
  SumOf product;
  double product_error = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = g * n + i;
    const double weighted = Get(op.d_out, r, c) * Get(op.weight, c);
    product.Add(weighted * row.v[i] * rstd);
    product_error += std::abs(weighted) * rstd * row.bound[i];
    to.d_weight[c].Add(Get(op.d_out, r, c) * row.v[i] * rstd);
    to.weight_error[c] += std::abs(Get(op.d_out, r, c)) * rstd * row.bound[i];
  }
  const auto count = static_cast<double>(n);
  const double mean = product.value / count,
               mean_bound = (product.bound(6) + product_error) / count;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = g * n + i;
    const double weighted = Get(op.d_out, r, c) * Get(op.weight, c), vhat = row.v[i] * rstd;
    const double d_v = (weighted - vhat * mean) * rstd;
    const double d_v_bound =
        rstd * (std::abs(vhat) * mean_bound + std::abs(mean) * rstd * row.bound[i] +
                4 * kU * (std::abs(weighted) + std::abs(vhat * mean)));
    const double y = Get(op.y, r, c);
    const Gated silu = SiluOf(Get(op.z, r, c));
    const auto push = [&](Reference& list, double factor, double factor_bound) {
      list.push_back({d_v * factor, d_v_bound * std::abs(factor) + std::abs(d_v) * factor_bound +
                                        3 * kU * std::abs(d_v * factor)});
    };
    push(to.d_y, silu.value, silu.value_bound);
    push(to.d_z, y * silu.derivative, std::abs(y) * silu.derivative_bound);
  }
}

}  // namespace

void GatedNormGradContract(const Subject& subject) {
  Random random(71);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const Case c = PickCase(random, repeat);
    const int64_t all = c.groups * c.columns;
    Memory memory;
    GatedNormGradOp<TensorView> op{};
    FillOperands(random, memory, c, repeat, op);
    op.d_out =
        memory.NewRandom(random, PickDType(random, repeat), {c.rows, all}, PickRowStrides(random));
    op.rstd = memory.New(DType::kF32, {c.rows, c.groups});
    ForEach(op.rstd.layout, [&](const Index& i) {
      Set(op.rstd, i, 0.5 + 0.1 * static_cast<double>((i[0] + 3 * i[1]) % 7));
    });
    op.d_y = Flip(random)
                 ? op.d_out
                 : memory.New(PickDType(random, repeat), {c.rows, all}, PickRowStrides(random));
    op.d_z = memory.New(PickDType(random, repeat), {c.rows, all}, PickRowStrides(random));
    const int64_t rest = PickSize(random);
    if (Flip(random))
      op.rest = memory.New(PickFloat(random), {c.rows, rest}, PickRowStrides(random));
    op.d_weight = memory.NewRandom(random, PickFloat(random), {all});
    op.weight_update = PickUpdate(random);
    GradReference reference;
    reference.d_weight.resize(static_cast<size_t>(all));
    reference.weight_error.resize(static_cast<size_t>(all));
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t g = 0; g < c.groups; ++g) AddGroup(op, r, g, c.columns, reference);
    Reference d_weight;
    for (int64_t i = 0; i < all; ++i) {
      SumOf& sum = reference.d_weight[i];
      if (op.weight_update == Update::kAccumulate) sum.Add(Get(op.d_weight, i));
      d_weight.push_back({sum.value, sum.bound(4) + reference.weight_error[i]});
    }
    INFO("rows " << c.rows << ", groups " << c.groups << " of " << c.columns);
    Run(subject, memory, subject.table.gated_norm_grad, op);
    CheckNear(op.d_y, reference.d_y, "d_y");
    CheckNear(op.d_z, reference.d_z, "d_z");
    CheckNear(op.d_weight, d_weight, "d_weight");
    if (op.rest) ForEach(op.rest.layout, [&](const Index& i) { CHECK(Get(op.rest, i) == 0); });
  }
}

}  // namespace millrace::test
