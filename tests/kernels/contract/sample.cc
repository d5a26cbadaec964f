#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/ops/sample_ops.h"
#include "kernels/ops/sample_row.h"
#include "runtime/base/philox.h"
#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"

namespace millrace::test {
namespace {

// An op over `rows` rows of logits, with room for the `most` likeliest tokens.
SampleOp<TensorView> MakeOp(Memory& memory, const TensorView& logits, int64_t vocab,
                            const std::vector<SampleParams>& params, int64_t most) {
  const int64_t rows = logits.dim(0);
  SampleOp<TensorView> op{};
  op.vocab = vocab;
  op.logits = logits;
  op.params = memory.New(DType::kI64, {rows, kSampleWords});
  if (!params.empty())  // memcpy takes no null pointer
    std::memcpy(op.params.data, params.data(), params.size() * sizeof(SampleParams));
  op.token = memory.New(DType::kI32, {rows});
  op.logprob = memory.New(DType::kF32, {rows});
  if (most > 0) {
    op.top_ids = memory.New(DType::kI32, {rows, most});
    op.top_logprobs = memory.New(DType::kF32, {rows, most});
  }
  return op;
}

SampleParams RandomParams(Random& random, int64_t vocab, int64_t most) {
  SampleParams p;
  constexpr float kTemperatures[] = {0, 0.05f, 0.7f, 1, 1.9f, 40};
  p.temperature = kTemperatures[Pick(random, 0, 5)];
  if (Flip(random)) p.top_k = static_cast<int32_t>(Pick(random, 1, vocab + 2));
  if (Flip(random)) p.top_p = static_cast<float>(Pick(random, 1, 1000)) / 1000;
  if (Flip(random)) p.min_p = static_cast<float>(Pick(random, 0, 1000)) / 3000;
  p.seed = random();
  p.drawn = Pick(random, 0, 1) * Pick(random, 0, int64_t{1} << 40);
  p.top = static_cast<int32_t>(Pick(random, 0, most));
  if (Pick(random, 0, 5) == 0) p.given = static_cast<int32_t>(Pick(random, 1, vocab));
  return p;
}

// By the definition, in double: which tokens may be drawn.
struct Choice {
  std::vector<int32_t> order;       // ids, likeliest first
  std::vector<double> probability;  // of order[i], before cuts
  double log_sum = 0;               // of the logits as they are
  size_t kept = 0;                  // so many first ones
  bool close = false;               // a cut falls within rounding of another
};

Choice ChoiceOf(const std::vector<double>& logits, const SampleParams& p) {
  constexpr double kClose = 1e-5;
  Choice c;
  c.order.resize(logits.size());
  std::iota(c.order.begin(), c.order.end(), 0);
  std::stable_sort(c.order.begin(), c.order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const double max = logits[static_cast<size_t>(c.order[0])];
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - max);
  c.log_sum = max + std::log(sum);
  c.kept = p.temperature == 0 ? 1 : logits.size();
  const double temperature = p.temperature == 0 ? 1 : static_cast<double>(p.temperature);
  for (const int32_t id : c.order)
    c.probability.push_back(std::exp((logits[static_cast<size_t>(id)] - max) / temperature));
  if (p.top_k > 0) c.kept = std::min(c.kept, static_cast<size_t>(p.top_k));
  if (p.top_p < 1) {
    const double all =
        std::accumulate(c.probability.begin(), c.probability.begin() + std::ptrdiff_t(c.kept), 0.0);
    double running = 0;
    for (size_t i = 0; i < c.kept; ++i) {
      running += c.probability[i];
      c.close |= std::abs(running / all - double(p.top_p)) < kClose;
      if (running >= double(p.top_p) * all) c.kept = i + 1;
    }
  }
  for (size_t i = 0; i < c.kept; ++i) {
    c.close |= p.min_p > 0 && std::abs(c.probability[i] - double(p.min_p)) < kClose;
    if (c.probability[i] < double(p.min_p)) c.kept = i;
  }
  c.kept = std::max<size_t>(c.kept, 1);
  return c;
}

// The token is one whose stretch of the running sum of probabilities holds the draw.
void CheckDraw(const Choice& c, const SampleParams& p, int32_t token) {
  const auto at =
      static_cast<size_t>(std::find(c.order.begin(), c.order.end(), token) - c.order.begin());
  REQUIRE(at < c.kept);
  const auto running = [&](size_t n) {
    return std::accumulate(c.probability.begin(), c.probability.begin() + std::ptrdiff_t(n), 0.0);
  };
  const PhiloxCounter words = PhiloxBlock(p.seed, kSampleStream, static_cast<uint64_t>(p.drawn));
  const double u = (double(words[0]) + double(words[1]) * 0x1p-32) * 0x1p-32, all = running(c.kept);
  CHECK(running(at) / all <= u + 1e-5);
  CHECK(running(at + 1) / all >= u - 1e-5);
}

bool IsCrowded(int repeat) { return repeat % 15 == 1; }

// Small rows have ties, zeros of both signs among them. Of long ones some have thousands of ties,
// or thousands of logits close to each other and one far away.
TensorView RandomLogits(Random& random, Memory& memory, int64_t rows, int64_t vocab, int repeat) {
  const TensorView logits =
      memory.NewRandom(random, PickFloat(random), {rows, vocab + Pick(random, 0, 9)},
                       PickRowStrides(random), repeat % 5 == 4 ? 60 : 6);
  ForEach(logits.layout, [&](const Index& i) {
    if (i[1] >= vocab) return Set(logits, i, 1e30);  // padding may hold anything
    if (IsCrowded(repeat) && repeat % 2 == 0) return Set(logits, i, std::trunc(Get(logits, i) / 4));
    if (IsCrowded(repeat)) return Set(logits, i, i[1] == 77 ? 50 : Get(logits, i) / 512);
    if (repeat % 2 == 0) Set(logits, i, std::trunc(Get(logits, i)) / 2);
  });
  return logits;
}

}  // namespace

void SampleContract(const Subject& subject) {
  Random random(77);
  int drawn = 0, given = 0, close = 0, ties = 0;
  constexpr int kAmongOthers = 150;
  constexpr int64_t kAlone[] = {50257, 128256, 3000, 20000};  // one row of so many
  for (int repeat = 0; repeat < kAmongOthers + 20; ++repeat) {
    CAPTURE(repeat);
    Memory memory;
    const bool alone = repeat >= kAmongOthers;
    const int64_t rows = alone ? 1 : Pick(random, 0, 4), most = Pick(random, 0, 3) * 4,
                  vocab = alone               ? kAlone[repeat % 4]
                          : IsCrowded(repeat) ? Pick(random, 5000, 9000)
                          : repeat == 77      ? 200000
                          : repeat % 10 == 0  ? Pick(random, 1000, 6000)
                                              : PickSize(random);
    const TensorView logits = RandomLogits(random, memory, rows, vocab, repeat);
    const int64_t bad = rows > 0 && repeat % 8 == 3 ? Pick(random, 0, rows - 1) : -1;
    constexpr double kBad[] = {NAN, INFINITY, -INFINITY};
    if (bad >= 0) Set(logits, {bad, Pick(random, 0, vocab - 1)}, kBad[repeat / 8 % 3]);
    std::vector<SampleParams> params;
    for (int64_t r = 0; r < rows; ++r) params.push_back(RandomParams(random, vocab, most));
    const SampleOp<TensorView> op = MakeOp(memory, logits, vocab, params, most);
    Run(subject, memory, subject.table.sample, op);
    Reference top_logprobs;
    for (int64_t r = 0; r < rows; ++r) {
      CAPTURE(r);
      const SampleParams& p = params[static_cast<size_t>(r)];
      const auto token = static_cast<int32_t>(Get(op.token, r));
      if (r == bad) {
        CHECK(token == kNoToken);
        CHECK(std::isnan(Get(op.logprob, r)));
        for (int64_t i = 0; i < most; ++i) {
          CHECK(Get(op.top_ids, r, i) == kNoToken);
          CHECK(std::isnan(Get(op.top_logprobs, r, i)));
        }
        continue;
      }
      std::vector<double> row;
      for (int64_t v = 0; v < vocab; ++v) row.push_back(Get(op.logits, r, v));
      const Choice choice = ChoiceOf(row, p);
      REQUIRE((token >= 0 && token < vocab));
      close += choice.close;
      if (p.given > 0) {
        CHECK(token == p.given - 1);
        ++given;
      } else if (!choice.close) {
        CheckDraw(choice, p, token);
        ++drawn;
      }
      ties += choice.order.size() > 1 && choice.probability[0] == choice.probability[1];
      const double bound = (double(vocab) + 40 * 60) * kU;  // of a sum of exponentials
      const auto log_probability = [&](int32_t id) {
        return row[static_cast<size_t>(id)] - choice.log_sum;
      };
      CHECK(Get(op.logprob, r) == Approx(log_probability(token)).epsilon(2 * kU).margin(bound));
      for (int64_t i = 0; i < most; ++i) {
        const bool there = i < std::min<int64_t>(p.top, vocab);
        CAPTURE(i);
        REQUIRE(Get(op.top_ids, r, i) == (there ? choice.order[static_cast<size_t>(i)] : kNoToken));
        const double expected = there ? log_probability(choice.order[static_cast<size_t>(i)]) : 0;
        CHECK(Get(op.top_logprobs, r, i) == Approx(expected).epsilon(2 * kU).margin(bound));
      }
      // The host's, and so the same on every backend; and alone as among others.
      std::vector<float> host(row.begin(), row.end());
      CHECK(SampleToken(host, p) == token);
    }
  }
  CHECK(drawn > 150);
  CHECK(given > 20);
  CHECK(close < drawn / 5);
  CHECK(ties > 20);
}

namespace {

// Pearson's statistic of `counts` against these probabilities.
double ChiSquare(const std::vector<int64_t>& counts, const std::vector<double>& probabilities) {
  const auto n = double(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = n * probabilities[i];
    sum += (double(counts[i]) - expected) * (double(counts[i]) - expected) / expected;
  }
  return sum;
}

std::vector<double> Softmax(const std::vector<double>& logits, double temperature) {
  std::vector<double> p;
  for (const double x : logits) p.push_back(std::exp(x / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace

// 40,000 draws from eight tokens, by the number of the draw and by the seed: below the quantile of
// 0.999 of 7 degrees of freedom. The same draws are far above it for a temperature 5% off.
void SampleFrequencies(const Subject& subject) {
  const std::vector<double> logits = {0.5, 2, -1, 1.25, 0, 1.5, -0.5, 1};
  constexpr int64_t kDraws = 40000, kVocab = 8;
  constexpr float kTemperature = 0.8f;
  for (const bool by_seed : {false, true}) {
    CAPTURE(by_seed);
    Memory memory;
    const TensorView rows = memory.New(DType::kF32, {kDraws, kVocab});
    ForEach(rows.layout, [&](const Index& i) { Set(rows, i, logits[static_cast<size_t>(i[1])]); });
    std::vector<SampleParams> params(kDraws);
    for (int64_t r = 0; r < kDraws; ++r) {
      SampleParams& p = params[static_cast<size_t>(r)];
      p.temperature = kTemperature;
      p.seed = by_seed ? static_cast<uint64_t>(r) : 11;
      p.drawn = by_seed ? 3 : r;
    }
    const SampleOp<TensorView> op = MakeOp(memory, rows, kVocab, params, 0);
    Run(subject, memory, subject.table.sample, op);
    std::vector<int64_t> counts(kVocab);
    for (int64_t r = 0; r < kDraws; ++r) ++counts[static_cast<size_t>(Get(op.token, r))];
    CHECK(ChiSquare(counts, Softmax(logits, kTemperature)) < 24.3);
    CHECK(ChiSquare(counts, Softmax(logits, kTemperature * 1.05)) > 24.3);
  }
}

}  // namespace millrace::test
