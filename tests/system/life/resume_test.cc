// A run that is stopped and resumed at each third step is the run that was never stopped.
#include <catch2/catch.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/data/checkpoint/checkpoint_manifest.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/system/options.h"

namespace millrace::test {
namespace {

constexpr int64_t kSteps = 9, kLeg = 3;

RunIdentity IdentityOf(const Trial& trial) {
  return {ModelOptionsOf(trial.config), "tokens of samples", 0,
          trial.config.train.GlobalBatch(trial.config.parallel.DataRanks(trial.world)), "{}"};
}

// Every leg in fresh engines, from what the one before has saved; `change` may alter options that
// bits do not depend on.
Outcome RunInLegs(const Trial& trial, const std::function<void(Trial&, int64_t leg)>& change) {
  const TempDir dir;
  Outcome whole;
  for (int64_t leg = 0; leg < kSteps / kLeg; ++leg) {
    Trial now = trial;
    change(now, leg);
    std::vector<StepCounters> counters(static_cast<size_t>(trial.world));
    std::vector<StepScalars> scalars;
    RunEngines(now, [&](RankContext& rank) {
      const auto resumed =
          ResumeRun(rank.engine, dir.path(), leg == 0 ? ResumePolicy::kAuto : ResumePolicy::kMust,
                    IdentityOf(now));
      MR_CHECK_EQ(resumed.has_value(), leg > 0, "resumed");
      if (!resumed) rank.engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
      if (resumed) {
        MR_CHECK_EQ(resumed->progress.step, leg * kLeg, "resumed at step");
        MR_CHECK(resumed->warnings.empty(), "warned: {}", resumed->warnings.front());
      }
      for (int64_t step = leg * kLeg; step < (leg + 1) * kLeg; ++step) {
        const StepScalars s = StepOn(rank, now.config, step);
        if (rank.rank == 0) scalars.push_back(s);
      }
      const RunProgress progress{(leg + 1) * kLeg, (leg + 1) * kLeg * IdentityOf(now).global_batch};
      SaveRun(rank.engine, dir.path(), progress, IdentityOf(now), 1);
      const std::string params = ParamHash(rank.engine), optimizer = OptimizerHash(rank.engine);
      counters[static_cast<size_t>(rank.rank)] = rank.engine.counters();
      if (rank.rank != 0) return;
      whole.param_hash = params;
      whole.optimizer_hash = optimizer;
    });
    whole.scalars.insert(whole.scalars.end(), scalars.begin(), scalars.end());
    whole.counters = counters;
  }
  return whole;
}

void CheckResume(Trial trial) {
  trial.steps = kSteps;
  const Outcome reference = RunTrial(trial);
  const Outcome same = RunInLegs(trial, [](Trial&, int64_t) {});
  REQUIRE(same.Bits() == reference.Bits());
  for (size_t r = 0; r < reference.counters.size(); ++r)
    REQUIRE(same.counters[r] == reference.counters[r]);

  const std::vector<Option> options = BitwiseOptions();
  const Outcome changed = RunInLegs(
      trial, [&](Trial& now, int64_t leg) { options[static_cast<size_t>(leg * 5 + 1)].set(now); });
  REQUIRE(changed.Bits() == reference.Bits());
}

TEST_CASE("stopped and resumed at each third step, a run is the run that was never stopped") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
      for (const auto& [world, replicate] :
           {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 1}, {4, 2}, {2, 2}}) {
        INFO("world " << world << " replicate " << replicate);
        Trial trial =
            MakeBase(family, family == ModelConfig::Family::kGpt2, precision, world, 2).trial;
        trial.config.parallel.replicate = replicate;
        CheckResume(trial);
      }
}

TEST_CASE("so it is in fp16, whose scale falls and grows on the way") {
  for (const auto& [world, replicate] : {std::pair{1, 1}, {3, 1}, {2, 2}}) {
    INFO("world " << world << " replicate " << replicate);
    Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp16All, world, 2).trial;
    trial.config.parallel.replicate = replicate;
    trial.config.precision.loss_scale = {.init_scale = 0x1p21, .growth_interval = 2};
    trial.steps = kSteps;
    const Outcome whole = RunTrial(trial);
    REQUIRE(whole.scalars.back().scale_downs > 0);
    REQUIRE(whole.scalars.back().adam_t > 2);
    CheckResume(trial);
  }
}

TEST_CASE("so it is where models or sequences are split over ranks") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
      for (const Base& base : SplitBases(family, precision)) {
        INFO(base.name);
        REQUIRE(Valid(base.trial));
        CheckResume(base.trial);
      }
}

TEST_CASE("so it is where weights are gathered in FP8, or in some legs alone") {
  for (const auto family : {ModelConfig::Family::kGpt2, ModelConfig::Family::kLlama})
    for (const LinearEncoding linear : {LinearEncoding::kFp8Tensor, LinearEncoding::kFp8Block})
      for (const auto& [world, replicate] : {std::pair{1, 1}, {3, 1}, {4, 2}}) {
        INFO("world " << world << " replicate " << replicate);
        Trial trial =
            MakeBase(family, family == ModelConfig::Family::kGpt2, Precision::kBf16, world, 2)
                .trial;
        trial.config.parallel.replicate = replicate;
        trial.config.precision.linear = linear;
        trial.config.precision.gather = WeightGather::kLinear;
        CheckResume(trial);
        trial.steps = kSteps;
        const Outcome other = RunInLegs(trial, [](Trial& now, int64_t leg) {
          if (leg == 1) now.config.precision.gather = WeightGather::kCompute;
        });
        REQUIRE(other.Bits() == RunTrial(trial).Bits());
      }
}

// Experts whose routers have biases.
Trial WithExperts(Precision precision, int world, int64_t accumulate) {
  Trial trial =
      MakeBase(ModelConfig::Family::kNemotronH, false, precision, world, accumulate).trial;
  trial.config.model.pattern = "E*-E";
  trial.config.model.moe = {.experts = 6, .top_k = 2, .ffn = 9, .bias_rate = 0.01};
  return trial;
}

TEST_CASE("so it is where routers have biases") {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
    for (const auto& [world, replicate] : {std::pair{1, 1}, {3, 1}, {4, 2}}) {
      Trial trial = WithExperts(precision, world, 2);
      trial.config.parallel.replicate = replicate;
      CheckResume(trial);
    }
}

Trial ByMuon(Precision precision, int world, int64_t accumulate) {
  Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, precision, world, accumulate).trial;
  trial.config.optimizer.name = OptimizerConfig::Kind::kMuon;
  return trial;
}

Trial ByGroups(Precision precision, int world, int64_t accumulate) {
  Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, precision, world, accumulate).trial;
  SetGroups(trial.config, /*muon=*/true);
  return trial;
}

TEST_CASE("so it is by Muon") {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
    for (const auto& [world, replicate] : {std::pair{1, 1}, {3, 1}, {4, 2}}) {
      Trial trial = ByMuon(precision, world, 2);
      trial.config.parallel.replicate = replicate;
      CheckResume(trial);
    }
}

TEST_CASE("so it is with groups of parameters, frozen ones among them") {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
    for (const auto& [world, replicate] : {std::pair{1, 1}, {3, 1}, {4, 2}}) {
      Trial trial = ByGroups(precision, world, 2);
      trial.config.parallel.replicate = replicate;
      CheckResume(trial);
    }
}

// Saves two steps of `from`, and goes on as `to`: what is said, or why that is refused.
std::vector<std::string> GoOn(const Trial& from, const Trial& to) {
  const TempDir dir;
  RunEngines(from, [&](RankContext& rank) {
    rank.engine.InitWeights(3);
    for (int64_t step = 0; step < 2; ++step) StepOn(rank, from.config, step);
    SaveRun(rank.engine, dir.path(), {2, 12}, IdentityOf(from), 2);
  });
  std::vector<std::string> said;
  try {
    RunEngines(to, [&](RankContext& rank) {
      const auto resumed = ResumeRun(rank.engine, dir.path(), ResumePolicy::kMust, IdentityOf(to));
      MR_CHECK_EQ(StepOn(rank, to.config, 2).adam_t, 3, "updates");
      if (rank.rank == 0) said = resumed->changes;
    });
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kConfig);
    said = {error.what()};
  }
  return said;
}

TEST_CASE("a run goes on with other groups, but without moments it does not") {
  const Trial from = ByGroups(Precision::kFp32, 2, 1);
  const auto with = [&](const std::function<void(OptimizerGroups&)>& change, int world = 2) {
    Trial to = from;
    to.world = world;
    change(*to.config.optimizer.groups);
    return GoOn(from, to);
  };
  const auto contains = [](const std::vector<std::string>& said, const std::string& text) {
    return said.size() == 1 && said.front().find(text) != std::string::npos;
  };
  CHECK(with([](OptimizerGroups&) {}).empty());
  CHECK(with([](OptimizerGroups& groups) {
          groups[1].lr = 0.25, groups[2].weight_decay = 0;
        }).empty());
  // Frozen from here on: a part of a unit, and all of one, whose flat has the same name.
  const std::string loaded = "the same values are loaded";
  CHECK(contains(
      with([](OptimizerGroups& groups) { groups[0].parameters.push_back("h.1.attn.*"); }), loaded));
  CHECK(with([](OptimizerGroups& groups) { groups[0].parameters.push_back("embed*"); }).empty());
  // Trained from here on: likewise, and at another world.
  for (const int world : {2, 3}) {
    CHECK(contains(
        with([](OptimizerGroups& groups) { groups[0].parameters[1] = "h.2.attn.q*"; }, world),
        "h.2.attn.proj.weight is updated by adamw, but "));
    CHECK(contains(
        with([](OptimizerGroups& groups) { groups[0].parameters[0] = "h.0.ln_1.*"; }, world),
        "has no adam_m of it: it was frozen, or had another rule"));
    CHECK(contains(
        with([](OptimizerGroups& groups) { groups[3].name = OptimizerKind::kAdamW; }, world),
        "h.3.mlp.up.weight is updated by adamw, but "));
  }
}

TEST_CASE("so it is where experts are on ranks of their own") {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16All})
    for (const Base& base : ExpertBases(precision)) {
      INFO(base.name);
      CheckResume(base.trial);
    }
}

TEST_CASE("another world, mesh or precision loads the same logical values") {
  const std::string kind = GENERATE("plain", "experts", "muon", "groups");
  const auto make = [&](Precision precision, int world) {
    return kind == "experts" ? WithExperts(precision, world, 1)
           : kind == "muon"  ? ByMuon(precision, world, 1)
           : kind == "groups"
               ? ByGroups(precision, world, 1)
               : MakeBase(ModelConfig::Family::kGpt2, true, precision, world, 1).trial;
  };
  const TempDir dir;
  const Trial from = make(Precision::kFp32, 3);
  std::string saved;
  RunEngines(from, [&](RankContext& rank) {
    rank.engine.InitWeights(3);
    for (int64_t step = 0; step < 2; ++step) StepOn(rank, from.config, step);
    SaveRun(rank.engine, dir.path(), {2, 12}, IdentityOf(from), 2);
    const std::string hash = ParamHash(rank.engine) + OptimizerHash(rank.engine);
    if (rank.rank == 0) saved = hash;
  });
  for (const auto& [world, replicate] : {std::pair{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}})
    for (const Precision precision : {Precision::kFp32, Precision::kBf16All}) {
      Trial to = make(precision, world);
      to.config.parallel.replicate = replicate;
      std::vector<std::string> loaded(static_cast<size_t>(world));
      std::vector<int64_t> adam_t(static_cast<size_t>(world));
      RunEngines(to, [&](RankContext& rank) {
        ResumeRun(rank.engine, dir.path(), ResumePolicy::kMust, IdentityOf(to));
        loaded[static_cast<size_t>(rank.rank)] =
            ParamHash(rank.engine) + OptimizerHash(rank.engine);
        adam_t[static_cast<size_t>(rank.rank)] = StepOn(rank, to.config, 2).adam_t;
      });
      REQUIRE(loaded == std::vector<std::string>(static_cast<size_t>(world), saved));
      REQUIRE(adam_t == std::vector<int64_t>(static_cast<size_t>(world), 3));
    }
}

// Resumes from what another version would have saved: a manifest whose counters `edit` has changed,
// rank by rank. Returns the counters of each rank, and what rank 0 says.
std::pair<std::vector<StepCounters>, std::vector<std::string>> ResumedWith(
    const std::function<nlohmann::json(const nlohmann::json&)>& edit) {
  const TempDir dir;
  const Trial trial = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32, 2, 1).trial;
  std::string folder;
  RunEngines(trial, [&](RankContext& rank) {
    rank.engine.InitWeights(3);
    for (int64_t step = 0; step < 2; ++step) StepOn(rank, trial.config, step);
    const std::string saved = SaveRun(rank.engine, dir.path(), {2, 8}, IdentityOf(trial), 2).folder;
    if (rank.rank == 0) folder = saved;
  });
  CheckpointManifest manifest = ReadManifest(folder);
  nlohmann::json user = nlohmann::json::parse(manifest.user);
  for (nlohmann::json& of_rank : user.at("counters")) of_rank = edit(of_rank);
  manifest.user = user.dump();
  WriteBytes(folder + "/" + kManifestName, PrintManifest(manifest));
  std::pair<std::vector<StepCounters>, std::vector<std::string>> result;
  result.first.resize(2);
  RunEngines(trial, [&](RankContext& rank) {
    const auto resumed = ResumeRun(rank.engine, dir.path(), ResumePolicy::kMust, IdentityOf(trial));
    result.first[static_cast<size_t>(rank.rank)] = rank.engine.counters();
    if (rank.rank == 0) result.second = resumed->changes;
  });
  return result;
}

TEST_CASE("a checkpoint of a version with other counters is resumed") {
  const auto [counters, said] = ResumedWith([](const nlohmann::json& saved) { return saved; });
  REQUIRE(said.empty());
  REQUIRE(counters[0].comm.all_gathers > 0);
  REQUIRE(counters[0].comm.reduced_bytes > 0);

  // A list, as before counters had names.
  const auto [of_list, nothing] = ResumedWith([](const nlohmann::json& saved) {
    nlohmann::json list = nlohmann::json::array();
    for (const char* name :
         {"bytes_concatenated", "bytes_cast", "bytes_copied", "gathers", "reduces", "all_reduces",
          "bytes_gathered", "bytes_reduced", "bytes_all_reduced", "graph_launches"})
      list.push_back(saved.at(name));
    return list;
  });
  CHECK(of_list == counters);
  CHECK(nothing.empty());

  // Before one of ours was counted, and after one was added that we do not have.
  const auto [of_others, changes] = ResumedWith([](const nlohmann::json& saved) {
    nlohmann::json other = saved;
    other.erase("reduces");
    other["tokens_routed"] = 5;
    return other;
  });
  std::vector<StepCounters> expected = counters;
  for (StepCounters& of_rank : expected) of_rank.comm.reduce_scatters = 0;
  CHECK(of_others == expected);
  REQUIRE(changes.size() == 2);
  CHECK_THAT(changes[0],
             Catch::Matchers::EndsWith("without the counters reduces: they begin at zero"));
  CHECK_THAT(changes[1], Catch::Matchers::EndsWith("does not have: tokens_routed"));
}

// The checksums of a manifest tell damage; who forges one can compute them.
TEST_CASE("a checkpoint whose layout leads nowhere is refused, not followed") {
  const TempDir dir;
  const Trial from = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32, 2, 1).trial;
  std::string folder;
  RunEngines(from, [&](RankContext& rank) {
    rank.engine.InitWeights(3);
    const std::string saved = SaveRun(rank.engine, dir.path(), {0, 0}, IdentityOf(from), 2).folder;
    if (rank.rank == 0) folder = saved;
  });
  const CheckpointManifest original = ReadManifest(folder);
  const Trial to = MakeBase(ModelConfig::Family::kGpt2, true, Precision::kFp32, 1, 1).trial;
  const auto load = [&](const nlohmann::json& user) {
    CheckpointManifest forged = original;
    forged.user = user.dump();
    WriteBytes(folder + "/" + kManifestName, PrintManifest(forged));
    std::string code = "loaded";
    RunEngines(to, [&](RankContext& rank) {
      try {
        ResumeRun(rank.engine, dir.path(), ResumePolicy::kMust, IdentityOf(to));
      } catch (const Error& error) {
        code = Name(error.code());
      }
    });
    return code;
  };
  const nlohmann::json user = nlohmann::json::parse(original.user);
  CHECK(load(user) == "loaded");
  const nlohmann::json::json_pointer shard("/layout/flats/1/shard_numel"),
      begin("/layout/flats/1/params/0/begin");
  const auto with = [&](const auto& place, const nlohmann::json& value) {
    nlohmann::json changed = user;
    changed[place] = value;
    return changed;
  };
  for (const auto& value : {nlohmann::json(0), nlohmann::json(-1), nlohmann::json(INT64_MAX),
                            nlohmann::json("x"), nlohmann::json(user[shard].get<int64_t>() + 64)})
    CHECK(load(with(shard, value)) == "checkpoint");
  for (const int64_t value : {int64_t{-64}, INT64_MAX, int64_t{1} << 40})
    CHECK(load(with(begin, value)) == "checkpoint");
  CHECK(load(with(nlohmann::json::json_pointer("/model"), 7)) == "loaded");  // told to people only
}

}  // namespace
}  // namespace millrace::test
