// Worlds with one global batch read the same windows in the same steps, exactly, and so have the
// same losses, up to the order of sums.
#include <catch2/catch.hpp>
#include <set>

#include "runtime/run/data/batcher.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

constexpr int64_t kGlobalBatch = 12, kWindows = 29, kSteps = 6;

// Windows that say who they are: every id of window w, at t, follows from both.
class NumberedWindows final : public TokenSource {
 public:
  explicit NumberedWindows(const ModelConfig& model) : model_(model) {}
  int64_t seq_len() const noexcept override { return model_.seq_len; }
  int64_t windows() const noexcept override { return kWindows; }
  void Read(int64_t window, int32_t* out) const override {
    for (int64_t t = 0; t <= model_.seq_len; ++t)
      out[t] = static_cast<int32_t>((window * 5 + t * t * (1 + window % 3)) % model_.Vocab());
  }
  std::string Describe() const override { return "numbered windows"; }
  std::string Fingerprint() const override { return "numbered windows"; }

 private:
  const ModelConfig model_;
};

StepLayout LayoutOf(const Trial& trial) {
  return {trial.world, trial.config.train.micro_batch, *trial.config.train.accumulate};
}

std::vector<Trial> Trials() {
  std::vector<Trial> trials;
  for (const int world : {1, 2, 3, 4})
    for (const int64_t accumulate : {1, 2, 3}) {
      if (kGlobalBatch % (world * accumulate) != 0) continue;
      Trial trial =
          MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32, world, accumulate).trial;
      trial.config.train.micro_batch = kGlobalBatch / (world * accumulate);
      trial.config.optimizer.eps = 1e-3;
      trials.push_back(trial);
    }
  return trials;
}

// The rows of one step in sample order.
std::vector<std::vector<int32_t>> RowsOf(const Batcher& batcher, int64_t step) {
  const StepLayout& layout = batcher.layout();
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(layout.GlobalBatch()));
  for (int64_t rank = 0; rank < layout.world; ++rank) {
    const std::vector<int32_t> tokens = batcher.Step(step, rank);
    const int64_t width =
        static_cast<int64_t>(tokens.size()) / (layout.accumulate * layout.micro_batch);
    for (int64_t m = 0; m < layout.accumulate; ++m)
      for (int64_t b = 0; b < layout.micro_batch; ++b) {
        const auto* row = tokens.data() + (m * layout.micro_batch + b) * width;
        rows[static_cast<size_t>((m * layout.world + rank) * layout.micro_batch + b)].assign(
            row, row + width);
      }
  }
  return rows;
}

TEST_CASE("every world deals out the same windows in the same order, each once per epoch") {
  const auto source =
      std::make_shared<NumberedWindows>(TinyConfig(ModelConfig::Family::kGpt2).model);
  std::vector<std::vector<std::vector<int32_t>>> reference;
  for (const Trial& trial : Trials()) {
    const Batcher batcher(source, 9, LayoutOf(trial));
    REQUIRE(batcher.valid_tokens() == kGlobalBatch * source->seq_len());
    std::vector<std::vector<std::vector<int32_t>>> steps;
    for (int64_t step = 0; step < kSteps; ++step) steps.push_back(RowsOf(batcher, step));
    if (reference.empty()) reference = steps;
    REQUIRE(steps == reference);
  }
  std::vector<std::vector<int32_t>> stream;
  for (const auto& step : reference) stream.insert(stream.end(), step.begin(), step.end());
  const std::set<std::vector<int32_t>> epoch(stream.begin(), stream.begin() + kWindows),
      next(stream.begin() + kWindows, stream.begin() + 2 * kWindows);
  REQUIRE(epoch.size() == static_cast<size_t>(kWindows));
  REQUIRE(next == epoch);
  REQUIRE(!std::equal(stream.begin(), stream.begin() + kWindows,
                      stream.begin() + kWindows));  // in another order
}

TEST_CASE(
    "the loss stream of one global batch is the same in every world, to the rounding of its sums") {
  const auto source =
      std::make_shared<NumberedWindows>(TinyConfig(ModelConfig::Family::kGpt2).model);
  std::vector<double> reference;
  for (const Trial& trial : Trials()) {
    std::vector<double> losses;
    RunEngines(trial, [&](RankContext& rank) {
      const Batcher batcher(source, 9, LayoutOf(trial));  // for one thread at a time
      rank.engine.InitWeights(5);
      for (int64_t step = 0; step < kSteps; ++step) {
        const StepScalars scalars =
            rank.engine.Step(batcher.Step(step, rank.rank), step, batcher.valid_tokens());
        if (rank.rank == 0) losses.push_back(scalars.loss);
      }
    });
    if (reference.empty()) reference = losses;
    for (size_t step = 0; step < losses.size(); ++step)
      REQUIRE(losses[step] == Approx(reference[step]).epsilon(1e-6));
    REQUIRE(losses.back() < losses.front());
  }
}

}  // namespace
}  // namespace millrace::test
