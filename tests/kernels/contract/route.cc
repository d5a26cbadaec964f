#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// Keys that differ by less are equal: of equal logits and biases, which lie on a grid.
constexpr double kEqual = 1e-9;

struct Case {
  int64_t rows, experts, top_k;
  RouteAttrs attrs;
};

Case PickCase(Random& random, int repeat) {
  constexpr int64_t kGroups[] = {1, 1, 2, 4, 8};
  Case c;
  c.attrs.score = repeat % 2 == 0 ? RouterKind::kSoftmax : RouterKind::kSigmoid;
  c.attrs.groups = kGroups[repeat % 5];
  c.attrs.top_groups = Pick(random, 1, c.attrs.groups);
  c.attrs.normalise = Flip(random);
  c.attrs.scaling = Flip(random) ? 1 : 2.5;
  const int64_t size = repeat % 7 == 6 ? 128 : Pick(random, 1, 40);  // of a group
  c.experts = c.attrs.groups * size;
  c.top_k = Pick(random, 1, std::min<int64_t>(kMaxTopK, size * c.attrs.top_groups));
  c.rows = repeat % 9 == 8 ? 0 : Pick(random, 1, 40);
  return c;
}

// Multiples of 1/4 in [0, 5]: ties are frequent, and no two sums of scores are nearly equal.
TensorView GridLogits(Memory& memory, Random& random, const Case& c) {
  const TensorView logits = memory.New(DType::kF32, {c.rows, c.experts});
  ForEach(logits.layout,
          [&](const Index& i) { Set(logits, i, static_cast<double>(Pick(random, 0, 20)) / 4); });
  return logits;
}

struct Scores {
  std::vector<double> value;
  double relative;  // error of an f32 evaluation
};

Scores ScoresOf(const TensorView& logits, int64_t row, RouterKind kind) {
  const int64_t experts = logits.dim(1);
  std::vector<double> x;
  for (int64_t e = 0; e < experts; ++e) x.push_back(Get(logits, row, e));
  const double largest = *std::max_element(x.begin(), x.end()),
               smallest = *std::min_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) {
    v = kind == RouterKind::kSoftmax ? std::exp(v - largest) : 1 / (1 + std::exp(-v));
    sum += v;
  }
  if (kind == RouterKind::kSigmoid) return {x, (8 + 4 * largest) * kU};
  for (double& v : x) v /= sum;
  // e^z within 4u and (z)u of its argument; a sum by lanes of 32; a division.
  return {x, (16 + largest - smallest + static_cast<double>(experts) / 32) * kU};
}

// Indices from the largest key on, the lower one of equals first.
std::vector<int64_t> Sorted(const std::vector<double>& keys) {
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)] + kEqual;
  });
  return order;
}

std::vector<int64_t> ChoiceOf(const std::vector<double>& keys, const Case& c) {
  const int64_t size = c.experts / c.attrs.groups;
  std::vector<double> values;
  for (int64_t g = 0; g < c.attrs.groups; ++g) {
    std::vector<double> group(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    values.push_back(group[0] + (size > 1 ? group[1] : 0));
  }
  std::vector<int64_t> groups = Sorted(values);
  groups.resize(static_cast<size_t>(c.attrs.top_groups));
  std::vector<int64_t> choice;
  for (const int64_t e : Sorted(keys))
    if (std::find(groups.begin(), groups.end(), e / size) != groups.end()) choice.push_back(e);
  choice.resize(static_cast<size_t>(c.top_k));
  return choice;
}

RouteOp<TensorView> MakeRoute(Memory& memory, Random& random, const Case& c) {
  RouteOp<TensorView> op{};
  static_cast<RouteAttrs&>(op) = c.attrs;
  op.logits = GridLogits(memory, random, c);
  op.ids = memory.New(DType::kI32, {c.rows, c.top_k});
  op.weights = memory.New(DType::kF32, {c.rows, c.top_k});
  return op;
}

// Of the experts in op.ids.
void CheckWeights(const RouteOp<TensorView>& op, const Case& c) {
  Reference weights;
  for (int64_t r = 0; r < c.rows; ++r) {
    const Scores s = ScoresOf(op.logits, r, op.score);
    const auto score = [&](int64_t k) { return s.value[static_cast<size_t>(Get(op.ids, r, k))]; };
    double sum = 0;
    for (int64_t k = 0; k < c.top_k; ++k) sum += score(k);
    for (int64_t k = 0; k < c.top_k; ++k) {
      const double value = score(k) / (op.normalise ? sum : 1) * c.attrs.scaling;
      weights.push_back(
          {value, (2 * s.relative + (4 + static_cast<double>(c.top_k)) * kU) * value});
    }
  }
  CheckNear(op.weights, weights, "weights");
}

void CheckRoute(const RouteOp<TensorView>& op, const Case& c) {
  int64_t wrong = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> keys = ScoresOf(op.logits, r, op.score).value;
    for (int64_t e = 0; e < c.experts; ++e)
      if (op.bias) keys[static_cast<size_t>(e)] += Get(op.bias, e);
    const std::vector<int64_t> choice = ChoiceOf(keys, c);
    for (int64_t k = 0; k < c.top_k; ++k)
      wrong += Get(op.ids, r, k) != static_cast<double>(choice[static_cast<size_t>(k)]);
  }
  REQUIRE(wrong == 0);
  CheckWeights(op, c);
}

// Every expert has as many pairs as any other, or one more, and a row no expert twice.
void BalancedCase(const Subject& subject, Memory& memory, RouteOp<TensorView> op, const Case& c) {
  op.gate = GateKind::kBalanced;
  Run(subject, memory, subject.table.route, op);
  std::vector<int64_t> pairs(static_cast<size_t>(c.experts));
  int64_t twice = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    std::set<double> ids;
    for (int64_t k = 0; k < c.top_k; ++k) {
      ids.insert(Get(op.ids, r, k));
      ++pairs.at(static_cast<size_t>(Get(op.ids, r, k)));
    }
    twice += static_cast<int64_t>(ids.size()) != c.top_k;
  }
  CHECK(twice == 0);
  const auto [least, most] = std::minmax_element(pairs.begin(), pairs.end());
  CHECK(*most - *least <= 1);
  CheckWeights(op, c);
}

void NanCase(const Subject& subject, Random& random, Case c) {
  Memory memory;
  c.rows = 3;
  RouteOp<TensorView> op = MakeRoute(memory, random, c);
  std::vector<int64_t> bad;
  for (int64_t r = 0; r < c.rows; ++r) {
    bad.push_back(Pick(random, 0, c.experts - 1));
    Set(op.logits, {r, bad.back()}, std::numeric_limits<double>::quiet_NaN());
  }
  // Of a softmax all scores are NaN then. Groups may leave no other expert.
  const bool others =
      op.score == RouterKind::kSigmoid && op.top_groups == op.groups && c.top_k < c.experts;
  Run(subject, memory, subject.table.route, op);
  for (int64_t r = 0; r < c.rows; ++r) {
    std::set<double> ids;
    for (int64_t k = 0; k < c.top_k; ++k) ids.insert(Get(op.ids, r, k));
    CHECK(static_cast<int64_t>(ids.size()) == c.top_k);
    CHECK(*ids.begin() >= 0);
    CHECK(*ids.rbegin() < static_cast<double>(c.experts));
    if (others) CHECK(!ids.contains(static_cast<double>(bad[static_cast<size_t>(r)])));
  }
}

void GradCase(const Subject& subject, Memory& memory, Random& random,
              const RouteOp<TensorView>& forward, const Case& c) {
  RouteGradOp<TensorView> op{};
  static_cast<RouteAttrs&>(op) = c.attrs;
  op.logits = forward.logits, op.ids = forward.ids;
  op.d_weights = memory.NewRandom(random, DType::kF32, {c.rows, c.top_k});
  const int64_t groups = c.rows % 3 == 0 && Flip(random) ? 3 : 1;
  if (Flip(random)) op.balance = memory.NewRandom(random, DType::kF32, {groups, c.experts});
  op.d_logits = memory.New(PickFloat(random), {c.rows, c.experts});
  Reference reference;
  for (int64_t r = 0; r < c.rows; ++r) {
    const Scores s = ScoresOf(op.logits, r, op.score);
    const auto chosen = [&](int64_t k) { return static_cast<size_t>(Get(op.ids, r, k)); };
    double divisor = op.normalise ? 0 : 1, along = 0, along_size = 0;
    for (int64_t k = 0; op.normalise && k < c.top_k; ++k) divisor += s.value[chosen(k)];
    for (int64_t k = 0; op.normalise && k < c.top_k; ++k) {
      const double term = Get(op.d_weights, r, k) * s.value[chosen(k)] / divisor;
      along += term;
      along_size += std::abs(term);
    }
    std::vector<double> d(s.value.size()), size(s.value.size());
    double mean = 0, mean_size = 0;
    for (int64_t k = 0; k < c.top_k; ++k) {
      const size_t e = chosen(k);
      d[e] = (Get(op.d_weights, r, k) - along) / divisor * c.attrs.scaling;
      size[e] = (std::abs(Get(op.d_weights, r, k)) + along_size) / divisor * c.attrs.scaling;
      mean += d[e] * s.value[e];
      mean_size += size[e] * s.value[e];
    }
    const bool softmax = op.score == RouterKind::kSoftmax;
    double all = 0, probable = 0, probable_size = 0;
    for (size_t e = 0; e < d.size() && op.balance; ++e) {
      const double b = Get(op.balance, r / (c.rows / groups), static_cast<int64_t>(e));
      all += softmax ? 0 : s.value[e];
      probable += b * s.value[e];
      probable_size += std::abs(b) * s.value[e];
    }
    for (size_t e = 0; e < d.size() && op.balance; ++e) {
      const double b = Get(op.balance, r / (c.rows / groups), static_cast<int64_t>(e));
      d[e] += softmax ? b : (b - probable / all) / all;
      size[e] += softmax ? std::abs(b) : (std::abs(b) + probable_size / all) / all;
    }
    mean += softmax ? probable : 0;
    mean_size += softmax ? probable_size : 0;
    // Each of up to four factors has the relative error of a score; sums of K terms, and by lanes
    // over the experts.
    const double relative =
        4 * s.relative +
        (16 + 2 * static_cast<double>(c.top_k) + static_cast<double>(c.experts) / 16) * kU;
    for (size_t e = 0; e < d.size(); ++e) {
      const double v = s.value[e], value = softmax ? v * (d[e] - mean) : d[e] * v * (1 - v);
      // 1 - s has an absolute error of 2u.
      reference.push_back({value, relative * v * (size[e] + (softmax ? mean_size : 0))});
    }
  }
  Run(subject, memory, subject.table.route_grad, op);
  CheckNear(op.d_logits, reference, "d_logits");
}

void StatsCase(const Subject& subject, Memory& memory, Random& random,
               const RouteOp<TensorView>& forward, const Case& c) {
  RouterStatsOp<TensorView> op{};
  op.score = c.attrs.score;
  op.logits = forward.logits, op.ids = forward.ids;
  const int64_t groups = c.rows % 2 == 0 ? 2 : 1, rows = c.rows / groups;
  op.update = PickUpdate(random);
  op.stats = memory.New(DType::kF32, {groups, 2, c.experts});
  ForEach(op.stats.layout, [&](const Index& i) { Set(op.stats, i, static_cast<double>(i[2])); });
  const bool adds = op.update == Update::kAccumulate;
  Reference reference;
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<SumOf> counts(static_cast<size_t>(c.experts)), sums = counts;
    double relative = 0;
    for (int64_t r = g * rows; r < (g + 1) * rows; ++r) {
      const Scores s = ScoresOf(op.logits, r, op.score);
      const double all = op.score == RouterKind::kSoftmax
                             ? 1
                             : std::accumulate(s.value.begin(), s.value.end(), 0.0);
      for (size_t e = 0; e < s.value.size(); ++e) sums[e].Add(s.value[e] / all);
      for (int64_t k = 0; k < c.top_k; ++k) counts[static_cast<size_t>(Get(op.ids, r, k))].Add(1);
      relative = std::max(relative, 2 * s.relative);
    }
    relative += (4 + static_cast<double>(c.experts) / 32) * kU;
    for (size_t e = 0; e < counts.size(); ++e)
      reference.push_back({counts[e].value + (adds ? static_cast<double>(e) : 0), 0});
    for (size_t e = 0; e < sums.size(); ++e) {
      const double before = adds ? static_cast<double>(e) : 0, value = sums[e].value + before;
      reference.push_back({value, sums[e].bound() + relative * sums[e].magnitude + kU * value});
    }
  }
  Run(subject, memory, subject.table.router_stats, op);
  CheckNear(op.stats, reference, "stats");
}

void BalanceCase(const Subject& subject, Memory& memory, Random& random) {
  const int64_t groups = Pick(random, 1, 5), experts = PickSize(random);
  RouterBalanceOp<TensorView> op{};
  op.factor = 0.25, op.loss_weight = 3;
  op.rows = Pick(random, 1, 50), op.tokens = 4 * op.rows;
  op.loss_update = PickUpdate(random);
  op.stats = memory.NewRandom(random, DType::kF32, {groups, 2, experts}, Strides::kDense, 9);
  op.balance = memory.New(DType::kF32, {groups, experts});
  op.loss_sum = memory.New(DType::kF64, {1});
  Set(op.loss_sum, {0}, 7);
  StepScalars scalars = MakeScalars();
  scalars.loss_scale = 8;
  op.scalars = memory.NewScalars(scalars);
  double loss = op.loss_update == Update::kAccumulate ? 7 : 0;
  Reference balance;
  ForEach(op.balance.layout, [&](const Index& i) {
    const double count = Get(op.stats, i[0], 0, i[1]);
    loss += static_cast<double>(op.rows) * op.factor * count * Get(op.stats, i[0], 1, i[1]);
    balance.push_back({op.loss_weight * scalars.inv_valid_tokens * static_cast<double>(op.tokens) *
                           op.factor * count * scalars.loss_scale,
                       0x1p-37 * std::abs(count)});
  });
  Run(subject, memory, subject.table.router_balance, op);
  CheckNear(op.balance, balance, "balance");
  // In double: at most 400 terms of at most 50 * 81 / 4.
  CHECK(std::abs(Get(op.loss_sum) - loss) < 1e-9);
}

template <class F>
void ForCases(uint64_t seed, F&& f) {
  Random random(seed);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Case c = PickCase(random, repeat);
    INFO(Name(c.attrs.score) << ": " << c.rows << " rows, " << c.top_k << " of " << c.experts
                             << " experts, " << c.attrs.top_groups << " of " << c.attrs.groups
                             << " groups, normalise " << c.attrs.normalise);
    Memory memory;
    f(memory, random, c, MakeRoute(memory, random, c));
  }
}

}  // namespace

void RouteContract(const Subject& subject) {
  ForCases(60, [&](Memory& memory, Random& random, const Case& c, RouteOp<TensorView> op) {
    if (Flip(random)) {
      op.bias = memory.New(DType::kF32, {c.experts});
      ForEach(op.bias.layout, [&](const Index& i) {
        Set(op.bias, i, static_cast<double>(Pick(random, -2, 2)) / 8);
      });
    }
    Run(subject, memory, subject.table.route, op);
    CheckRoute(op, c);
    NanCase(subject, random, c);
    BalancedCase(subject, memory, op, c);
  });
}

void RouteGradContract(const Subject& subject) {
  ForCases(61, [&](Memory& memory, Random& random, const Case& c, const RouteOp<TensorView>& op) {
    Run(subject, memory, subject.table.route, op);
    GradCase(subject, memory, random, op, c);
  });
}

void RouterBalanceContract(const Subject& subject) {
  ForCases(67, [&](Memory& memory, Random& random, const Case& c, const RouteOp<TensorView>& op) {
    Run(subject, memory, subject.table.route, op);
    StatsCase(subject, memory, random, op, c);
    BalanceCase(subject, memory, random);
  });
}

}  // namespace millrace::test
