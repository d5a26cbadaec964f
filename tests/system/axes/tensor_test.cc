// Blocks split over the tensor axis, beside the same model whole: split_trial.h.
#include <catch2/catch.hpp>

#include "runtime/exec/logical_tensors.h"
#include "tests/system/axes/split_trial.h"

namespace millrace::test {
namespace {

Trial TrialOf(ModelConfig::Family family, const SplitShape& shape, int64_t of) {
  return SplitTrial(family, shape, of, 6);
}

constexpr ModelConfig::Family kFamilies[] = {
    ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama, ModelConfig::Family::kNemotronH};

TEST_CASE("a model split over ranks trains as the whole one does", "[tensor]") {
  for (const auto family : kFamilies)
    for (const int64_t tensor : {2, 3}) {
      const Outcome whole = RunTrial(TrialOf(family, {}, tensor));
      for (const SplitShape& shape : {SplitShape{1, 1, 1, tensor, 1},
                                      {1, 1, 1, tensor, 3},
                                      {1, 2, 1, tensor, 1},
                                      {2, 1, 1, tensor, 2},
                                      {2, 2, 1, tensor, 1}}) {
        if (shape.world() > 8) continue;
        INFO("replicate " << shape.replicate << " shard " << shape.shard << " tensor "
                          << shape.tensor << " accumulate " << shape.accumulate);
        const Trial trial = TrialOf(family, shape, tensor);
        const Outcome split = RunTrial(trial);
        RequireClose(split, whole);
        // Whose closed forms are stated for blocks of an attention and an MLP.
        if (family != ModelConfig::Family::kNemotronH) RequireCounters(trial, split);
      }
    }
}

TEST_CASE("a model split over ranks trains by Muon as the whole one does", "[tensor][muon]") {
  for (const auto family : kFamilies) {
    const auto trial_of = [&](const SplitShape& shape) {
      Trial trial = TrialOf(family, shape, 2);
      trial.config.optimizer.name = OptimizerKind::kMuon;
      return trial;
    };
    const Outcome whole = RunTrial(trial_of({}));
    for (const SplitShape& shape : {SplitShape{1, 1, 1, 2, 1},
                                    {1, 1, 1, 2, 3},
                                    {1, 2, 1, 2, 1},
                                    {2, 1, 1, 2, 2},
                                    {2, 2, 1, 2, 1}}) {
      INFO("replicate " << shape.replicate << " shard " << shape.shard << " tensor " << shape.tensor
                        << " accumulate " << shape.accumulate);
      const Trial trial = trial_of(shape);
      const Outcome split = RunTrial(trial);
      RequireClose(split, whole);
      if (family != ModelConfig::Family::kNemotronH) RequireCounters(trial, split);
    }
  }
}

// Each rank multiplies some rows of a weight that no rank splits, and several ranks the same ones.
TEST_CASE("ranks that share key and value heads train alike, and no option changes a bit",
          "[tensor]") {
  for (const int64_t kv_heads : {1, 2}) {
    const auto trial_of = [&](const SplitShape& shape, int64_t strips) {
      Trial trial = TrialOf(ModelConfig::Family::kLlama, shape, 2);
      trial.config.model.heads = 8;
      trial.config.model.kv_heads = kv_heads;
      trial.config.model.ffn = 32;
      trial.config.model.seq_len = 8;
      trial.config.parallel.tensor_strips = strips;
      trial.steps = 3;
      return trial;
    };
    const Outcome whole = RunTrial(trial_of({}, 1));
    for (const SplitShape& shape : {SplitShape{1, 1, 1, 2, 2}, {1, 1, 1, 4, 2}}) {
      if (kv_heads % shape.tensor == 0) continue;
      Trial plain = trial_of(shape, 2);
      INFO("kv_heads " << kv_heads << " tensor " << shape.tensor);
      RequireClose(RunTrial(plain), whole);
      SetPrecision(plain.config, Precision::kBf16All);
      const std::string bits = RunTrial(plain).Bits();
      for (const Option& option : BitwiseOptions()) {
        INFO(option.name);
        Trial trial = plain;
        option.set(trial);
        if (Valid(trial)) CHECK(RunTrial(trial).Bits() == bits);
      }
    }
  }
}

TEST_CASE("evaluation and logits of a split model are those of the whole one", "[tensor]") {
  for (const auto family : kFamilies)
    for (const SplitShape& shape : {SplitShape{1, 1, 1, 2, 1}, {1, 2, 1, 2, 1}})
      CheckEvaluation([&](const SplitShape& s) { return TrialOf(family, s, 2); }, shape, 4);
}

TEST_CASE("a checkpoint of any mesh loads at any other, value by value", "[tensor]") {
  for (const auto family : kFamilies)
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All}) {
      const auto loads = [&](const SplitShape& shape) { return TrialOf(family, shape, 2); };
      const auto saves = [&](const SplitShape& shape) {
        Trial trial = loads(shape);
        SetPrecision(trial.config, precision);
        return trial;
      };
      RequireCheckpointsLoad(
          saves, loads, {{}, {1, 1, 1, 2, 1}, {1, 2, 1, 2, 1}, {2, 1, 1, 2, 1}, {1, 3, 1, 1, 1}});
    }
  const auto by_muon = [](const SplitShape& shape) {
    Trial trial = TrialOf(ModelConfig::Family::kGpt2, shape, 2);
    trial.config.optimizer.name = OptimizerKind::kMuon;
    return trial;
  };
  RequireCheckpointsLoad(by_muon, by_muon, {{}, {1, 1, 1, 2, 1}, {1, 2, 1, 2, 1}, {1, 3, 1, 1, 1}});
}

// The same values begin a run on every mesh.
TEST_CASE("a split model begins with the whole one's weights", "[tensor]") {
  for (const auto family : kFamilies) {
    std::vector<std::string> hashes;
    for (const SplitShape& shape :
         {SplitShape{}, {1, 1, 1, 2, 1}, {1, 2, 1, 2, 1}, {2, 1, 1, 2, 1}}) {
      RunEngines(TrialOf(family, shape, 2), [&](RankContext& rank) {
        rank.engine.InitWeights(11);
        const std::string hash = ParamHash(rank.engine);
        if (rank.rank == 0) hashes.push_back(hash);
      });
    }
    REQUIRE(hashes == std::vector<std::string>(hashes.size(), hashes[0]));
  }
}

TEST_CASE("sizes that the tensor axis does not divide are refused, with those that would",
          "[tensor]") {
  const auto refusal = [](const std::function<void(Config&)>& change) {
    return RefusalOf(TrialOf(ModelConfig::Family::kLlama, {.tensor = 2}, 2), change);
  };
  using Catch::Contains;
  CHECK(refusal([](Config&) {}).empty());
  CHECK_THAT(refusal([](Config& c) { c.model.ffn = 31; }),
             Contains("model.ffn 31") && Contains("tensor can be 1"));
  CHECK_THAT(refusal([](Config& c) { c.model.seq_len = 7; }), Contains("model.seq_len 7"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.tensor = 4; }),
             Contains("model.heads 6") && Contains("tensor can be 1, 2"));
  CHECK_THAT(refusal([](Config& c) { c.parallel.shard = 2; }),
             Contains("shard * replicate * tensor"));
}

}  // namespace
}  // namespace millrace::test
