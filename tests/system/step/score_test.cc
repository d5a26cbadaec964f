// The terms of the loss, one by one: with the bits that evaluation and training sum, whatever the
// family, and however ranks share sequences.
#include "runtime/run/eval/score.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/ops/context_rows.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

// By rank: terms of all tokens of its data rank, and what its evaluation summed. Of rank 0 a step's
// mean loss behind that.
struct Scored {
  std::vector<std::vector<double>> losses;
  std::vector<std::vector<int32_t>> likeliest;  // in the places of the terms
  std::vector<double> sums;
  double step = 0;
};

// In each place the likeliest token is put for the target: no other one that is tried there may be
// likelier, and where it is the target already its term stays.
void CheckLikeliest(Engine& engine, const Config& config, const std::vector<int32_t>& tokens,
                    const std::vector<double>& losses, const std::vector<int32_t>& likeliest) {
  const int64_t length = config.model.seq_len;
  // The last target of a row is no input: it alone can change without changing the others' rows.
  std::vector<int32_t> changed = tokens;
  for (int64_t b = 0; b < config.train.micro_batch; ++b)
    changed[static_cast<size_t>(b * (length + 1) + length)] =
        likeliest[static_cast<size_t>(b * length + length - 1)];
  const std::vector<double> best = TokenLosses(engine, changed);
  for (int64_t b = 0; b < config.train.micro_batch; ++b) {
    const auto last = static_cast<size_t>(b * length + length - 1);
    MR_CHECK(best[last] <= losses[last], "row {}: the likeliest token's term is {}, {}'s {}", b,
             best[last], tokens[static_cast<size_t>(b * (length + 1) + length)], losses[last]);
    // Of V tokens the likeliest has at least 1/V.
    MR_CHECK(best[last] <= std::log(static_cast<double>(config.model.Vocab())) + 1e-6,
             "row {}: {} is no likeliest token: {}", b, likeliest[last], best[last]);
  }
}

Scored ScoreFirstBatch(Trial trial) {
  trial.plans = {"train", "eval", "score", "score_likeliest"};
  Scored scored;
  scored.losses.resize(static_cast<size_t>(trial.world));
  scored.likeliest.resize(static_cast<size_t>(trial.world));
  scored.sums.resize(static_cast<size_t>(trial.world));
  RunEngines(trial, [&](RankContext& rank) {
    const auto r = static_cast<size_t>(rank.rank);
    rank.engine.InitWeights(7);
    std::vector<int32_t> tokens = BatchOf(trial.config, rank.world, rank.rank, 0);
    tokens.resize(
        static_cast<size_t>(trial.config.train.micro_batch * (trial.config.model.seq_len + 1)));
    scored.losses[r] = TokenLosses(rank.engine, tokens);
    scored.sums[r] = rank.engine.EvalLossSum(tokens);
    MR_CHECK(TokenLosses(rank.engine, tokens) == scored.losses[r], "scores twice");
    TokenScores scores = ScoresOfTokens(rank.engine, tokens);
    MR_CHECK(scores.losses == scored.losses[r], "scores with the likeliest tokens");
    scored.likeliest[r] = std::move(scores.likeliest);
    CheckLikeliest(rank.engine, trial.config, tokens, scored.losses[r], scored.likeliest[r]);
    const double step = StepOn(rank, trial.config, 0).loss;
    if (rank.rank == 0) scored.step = step;
  });
  return scored;
}

// The rows of a rank in the order of its sum, as indices of [B, T]: of each sequence its two
// chunks, and of each strip of those its part.
std::vector<std::vector<int64_t>> StripsOfRank(const Config& config, int world, int rank) {
  const Mesh mesh = config.parallel.MeshOver(world);
  const int64_t n = mesh.Size(Axis::kContext), c = mesh.Index(rank, Axis::kContext),
                tensor = mesh.Size(Axis::kTensor), place = mesh.Index(rank, Axis::kTensor);
  const int64_t length = config.model.seq_len, rows = length / n;
  const int64_t all = config.train.micro_batch * rows,
                strips = tensor > 1 ? config.parallel.tensor_strips : 1,
                each = all / strips / tensor;
  std::vector<std::vector<int64_t>> order(static_cast<size_t>(strips));
  for (int64_t s = 0; s < strips; ++s)
    for (int64_t i = 0; i < each; ++i) {
      const int64_t row = (s * tensor + place) * each + i, b = row / rows, at = row % rows;
      const int64_t t = PositionOf({c * rows / 2, (2 * n - 1 - c) * rows / 2}, n, rows, at);
      order[static_cast<size_t>(s)].push_back(b * length + t);
    }
  return order;
}

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

void CheckSums(const Base& base) {
  INFO(base.name);
  const Trial& trial = base.trial;
  const Scored scored = ScoreFirstBatch(trial);
  const Mesh mesh = trial.config.parallel.MeshOver(trial.world);
  for (int r = 0; r < trial.world; ++r) {
    CAPTURE(r);
    const std::vector<double>& losses = scored.losses[static_cast<size_t>(r)];
    REQUIRE(std::ssize(losses) == trial.config.train.micro_batch * trial.config.model.seq_len);
    double sum = 0;
    for (const std::vector<int64_t>& strip : StripsOfRank(trial.config, trial.world, r)) {
      double part = 0;
      for (const int64_t i : strip) part += losses[static_cast<size_t>(i)];
      sum += part;
    }
    CHECK(SameBits(sum, scored.sums[static_cast<size_t>(r)]));
    CHECK(*std::min_element(losses.begin(), losses.end()) > 0);
    const int first = mesh.Index(r, kDataAxes);
    for (int other = 0; other < r; ++other)
      if (mesh.Index(other, kDataAxes) == first) {
        CHECK(losses == scored.losses[static_cast<size_t>(other)]);
        CHECK(scored.likeliest[static_cast<size_t>(r)] ==
              scored.likeliest[static_cast<size_t>(other)]);
      }
  }
}

TEST_CASE("scores sum to the loss of evaluation, bit for bit, in every family") {
  using Family = ModelConfig::Family;
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen3, Family::kNemotronH})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
      CheckSums(MakeBase(family, family == Family::kGpt2, precision, 2, 1));
  Base base = MakeBase(Family::kQwen3, false, Precision::kFp32, 2, 1);
  base.trial.config.model.mtp = {.depth = 1, .loss_scale = 0.3};
  CheckSums(base);
}

TEST_CASE("scores sum to the loss of evaluation where ranks share sequences and experts") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Base& base : SplitBases(family, Precision::kFp32)) CheckSums(base);
  for (const Base& base : ExpertBases(Precision::kBf16)) CheckSums(base);
}

// Strips decide which rows a rank has.
TEST_CASE("scores of strips are in the order of tokens") {
  Base base = MakeBase(ModelConfig::Family::kLlama, false, Precision::kFp32, 3, 1);
  MakeTensor(base, 3);
  base.trial.config.parallel.tensor = 3;
  base.trial.config.train.micro_batch = 4;
  base.trial.config.model.seq_len = 12;
  const Scored whole = ScoreFirstBatch(base.trial);
  base.trial.config.parallel.tensor_strips = 2;
  CheckSums(base);
  const Scored strips = ScoreFirstBatch(base.trial);
  for (size_t i = 0; i < whole.losses[0].size(); ++i)
    CHECK(strips.losses[0][i] == Approx(whole.losses[0][i]).epsilon(1e-5));
  CHECK(strips.likeliest[0] == whole.likeliest[0]);
}

TEST_CASE("a training step's loss is the mean of the scores that its weights give") {
  Base base = MakeBase(ModelConfig::Family::kLlama, false, Precision::kBf16, 1, 1);
  const Scored scored = ScoreFirstBatch(base.trial);
  const double inverse = 1.0 / static_cast<double>(ValidTokens(base.trial.config, 1));
  CHECK(SameBits(scored.step, scored.sums[0] * inverse));
}

}  // namespace
}  // namespace millrace::test
