#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// Half a unit in the last place of what is stored in between, relative.
double RoundingOf(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : kU; }

RowLinearOp<TensorView> PickOp(const Subject& subject, bool in_order, Random& random,
                               Memory& memory) {
  const bool cuda = subject.backend == Backend::kCuda;
  const DType dtype = cuda ? DType::kBF16 : PickFloat(random);
  // One pack, a warp's and one more, several passes of it; more units than a block has warps.
  constexpr int64_t kDepths[] = {8, 24, 256, 264, 768, 2312};
  const int64_t depth = cuda ? kDepths[Pick(random, 0, 5)] : PickSize(random);
  RowLinearOp<TensorView> op{};
  op.norm = static_cast<RowNorm>(Pick(random, in_order ? 1 : 0, 2));
  op.finish = static_cast<RowFinish>(Pick(random, 0, in_order ? 1 : 3));
  op.in_order = in_order;
  op.eps = Flip(random) ? 1e-5f : 1e-2f;
  op.constant = Flip(random);
  op.x = memory.NewRandom(random, dtype, {1, depth}, Strides::kDense, 3);
  if (Flip(random)) {
    op.residual = memory.NewRandom(random, dtype, {1, depth});
    op.sum = memory.New(dtype, {1, depth});
  }
  if (op.norm != RowNorm::kNone) op.norm_weight = memory.NewRandom(random, dtype, {depth});
  if (op.norm == RowNorm::kLayer) op.norm_bias = memory.NewRandom(random, dtype, {depth});
  int64_t columns = PickSize(random) * (in_order ? 8 : 1);
  if (op.finish == RowFinish::kSwiglu) columns *= 2;
  if (op.finish == RowFinish::kRotate) {
    const int64_t half = Pick(random, 1, 9), heads = Pick(random, 1, 5), length = 6;
    columns = heads * 2 * half;
    op.turned = Pick(random, 0, heads);
    op.at = memory.NewTokens(random, {1}, 0, length);
    op.table = memory.NewRandom(random, DType::kF32, {length, half, 2});
  }
  op.weight = memory.NewRandom(random, dtype, {columns, depth});
  // Where a line has few elements that are not zero, a bound is narrow beside each of them.
  if (Flip(random))
    for (int64_t n = 0; n < columns; ++n)
      for (int64_t k = 0; k < depth; ++k)
        if ((n * 7 + k * 5) % depth > 2) Set(op.weight, {n, k}, 0);
  if (Flip(random)) op.bias = memory.NewRandom(random, dtype, {columns});
  const bool widens = op.finish == RowFinish::kNone && Flip(random);
  op.out = memory.New(widens ? DType::kF32 : dtype,
                      {1, op.finish == RowFinish::kSwiglu ? columns / 2 : columns});
  return op;
}

// y with the bound of norm.h's formulas and of being stored.
Reference NormedOf(const RowLinearOp<TensorView>& op) {
  const TensorView& s = op.sum ? op.sum : op.x;
  const int64_t depth = s.dim(1);
  const auto n = static_cast<double>(depth);
  SumOf sum;
  for (int64_t k = 0; k < depth; ++k) sum.Add(Get(s, 0, k));
  const bool layer = op.norm == RowNorm::kLayer;
  const double mean = layer ? sum.value / n : 0, mean_bound = layer ? sum.bound(2) / n : 0;
  double squares = 0;
  for (int64_t k = 0; k < depth; ++k) squares += std::pow(Get(s, 0, k) - mean, 2);
  const double rstd = 1 / std::sqrt(squares / n + op.eps), relative = (n + 8) * kU;
  Reference y;
  for (int64_t k = 0; k < depth; ++k) {
    const double x = Get(s, 0, k);
    if (op.norm == RowNorm::kNone) {
      y.push_back({x, 0});
      continue;
    }
    const double weight = Get(op.norm_weight, k), bias = op.norm_bias ? Get(op.norm_bias, k) : 0,
                 scaled = (x - mean) * rstd * weight, value = scaled + bias;
    const double bound = (mean_bound + kU * std::abs(x - mean)) * std::abs(rstd * weight) +
                         (relative + 3 * kU) * std::abs(scaled) + kU * std::abs(value);
    y.push_back({value, bound + RoundingOf(s.dtype()) * (std::abs(value) + bound)});
  }
  return y;
}

// p as stored.
Reference ProductOf(const RowLinearOp<TensorView>& op) {
  const Reference y = NormedOf(op);
  Reference p;
  for (int64_t n = 0; n < op.weight.dim(0); ++n) {
    SumOf sum;
    double of_y = 0;
    for (int64_t k = 0; k < op.weight.dim(1); ++k) {
      const Expected& of = y[static_cast<size_t>(k)];
      const double weight = Get(op.weight, n, k);
      sum.Add(of.value * weight);
      of_y += of.bound * std::abs(weight);
    }
    // In order tensor cores cut off the sum of each sixteen terms.
    const double steps = static_cast<double>(op.weight.dim(1)) / 16 + 2,
                 rounded = op.in_order ? steps * 4 * kU * sum.magnitude : sum.bound(),
                 value = sum.value + (op.bias ? Get(op.bias, n) : 0),
                 bound = rounded + of_y + kU * std::abs(value);
    p.push_back({value, bound + RoundingOf(op.x.dtype()) * (std::abs(value) + bound)});
  }
  return p;
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

Reference OutOf(const RowLinearOp<TensorView>& op) {
  const Reference p = ProductOf(op);
  if (op.finish == RowFinish::kNone) return p;
  Reference out = p;
  if (op.finish == RowFinish::kGelu) {  // whose slope is at most 1.13
    for (Expected& e : out)
      e = {Gelu(e.value), 1.13 * e.bound + 16 * kU * (std::abs(e.value) + e.bound)};
    return out;
  }
  if (op.finish == RowFinish::kSwiglu) {
    const size_t half = p.size() / 2;
    out.resize(half);
    for (size_t i = 0; i < half; ++i) {  // silu's slope is at most 1.1
      const Expected &gate = p[i], &up = p[half + i];
      const double silu = gate.value / (1 + std::exp(-gate.value)), value = silu * up.value;
      out[i] = {
          value,
          1.1 * gate.bound * (std::abs(up.value) + up.bound) + std::abs(silu) * up.bound +
              16 * kU * (std::abs(gate.value) + gate.bound) * (std::abs(up.value) + up.bound)};
    }
    return out;
  }
  const int64_t half = op.table.dim(1), at = static_cast<int64_t>(Get(op.at, 0));
  for (int64_t head = 0; head < op.turned; ++head)
    for (int64_t i = 0; i < half; ++i) {
      const auto low = static_cast<size_t>(head * 2 * half + i),
                 high = low + static_cast<size_t>(half);
      const double c = Get(op.table, at, i, 0), s = Get(op.table, at, i, 1);
      const auto turned = [](const Expected& a, double by, const Expected& b, double with) {
        const double value = a.value * by + b.value * with,
                     size = std::abs(a.value * by) + std::abs(b.value * with),
                     bound = a.bound * std::abs(by) + b.bound * std::abs(with);
        return Expected{value, bound + 3 * kU * (size + bound)};
      };
      out[low] = turned(p[low], c, p[high], -s);
      out[high] = turned(p[high], c, p[low], s);
    }
  return out;
}

}  // namespace

void RowLinearContract(const Subject& subject, bool in_order) {
  Random random(45);
  for (int repeat = 0; repeat < 120; ++repeat) {
    Memory memory;
    const RowLinearOp<TensorView> op = PickOp(subject, in_order, random, memory);
    INFO("K " << op.x.dim(1) << ", N " << op.weight.dim(0) << ", norm " << static_cast<int>(op.norm)
              << ", finish " << static_cast<int>(op.finish));
    Run(subject, memory, subject.table.row_linear, op);
    if (op.sum) {
      Reference sum;
      for (int64_t k = 0; k < op.x.dim(1); ++k) {
        const double value = Get(op.x, 0, k) + Get(op.residual, 0, k);
        sum.push_back({value, kU * std::abs(value)});
      }
      CheckNear(op.sum, sum, "sum");
    }
    CheckNear(op.out, OutOf(op), "row_linear");
  }
}

}  // namespace millrace::test
