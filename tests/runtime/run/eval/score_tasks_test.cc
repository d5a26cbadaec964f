// Tasks scored by a session: what lm-eval has of the same model, at any batch and world, and within
// a run.
#include "runtime/run/eval/score_tasks.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/config/load.h"
#include "runtime/run/training/training.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

using nlohmann::json;

const std::string kGolden = "tests/golden/lm_eval/";
const std::vector<std::string> kTasks = {"hellaswag:" + kGolden + "examples.jsonl",
                                         "ppl:" + kGolden + "texts.jsonl"};

// The model of tests/golden/lm_eval.
Config ConfigOf(int world, const std::vector<std::string>& sets) {
  const std::vector<ConfigText> texts = {{"test.json", R"({
    "model": {"family": "llama", "layers": 2, "d_model": 48, "heads": 4, "kv_heads": 2, "ffn": 96,
              "vocab": 256, "seq_len": 128, "init_std": 0.3},
    "data": {"kind": "synthetic"},
    "train": {"seed": 7, "steps": 4},
    "checkpoint": {"every": 0}})"}};
  return LoadConfigTexts(texts, sets, ConfigContext{.world = world}).config;
}

std::vector<TaskResult> Score(int world, int64_t micro_batch, int64_t limit = 0,
                              const std::vector<std::string>& sets = {},
                              const std::vector<std::string>& specs = kTasks) {
  std::vector<std::string> all = {"train.micro_batch=" + std::to_string(micro_batch)};
  all.insert(all.end(), sets.begin(), sets.end());
  const Config config = ConfigOf(world, all);
  std::vector<TaskResult> results;
  test::TestRanks().Run(world, [&](const test::RankSetup& setup) {
    Session session(config, setup.environment(), {{"score"}, false});
    session.InitWeights();
    for (const OpenTask& task : OpenTasks(config, specs, limit)) {
      TaskResult result = ScoreTask(session, task);
      if (session.rank() == 0) results.push_back(std::move(result));
    }
  });
  return results;
}

TEST_CASE("a random model has the log-probabilities and choices that lm-eval has of it", "[eval]") {
  const json golden = ParseJson(ReadBytes(kGolden + "golden.json"));
  const std::vector<TaskResult> results = Score(1, 8);
  const json &choices = golden["hellaswag"], &documents = golden["ppl"];
  REQUIRE(results[0].examples.size() == choices["examples"].size());
  for (size_t i = 0; i < results[0].examples.size(); ++i) {
    CAPTURE(i);
    const json line = ParseJson(results[0].examples[i]);
    CHECK((line["choice"] == line["label"]) == (choices["acc"][i] == 1.0));
    CHECK((line["choice_norm"] == line["label"]) == (choices["acc_norm"][i] == 1.0));
    // Both in f32: up to 60 terms of about 8.
    for (size_t a = 0; a < 4; ++a)
      CHECK(line["log_probs"][a].get<double>() ==
            Approx(choices["examples"][i][a].get<double>()).epsilon(2e-6));
  }
  for (size_t i = 0; i < results[1].examples.size(); ++i)
    CHECK(ParseJson(results[1].examples[i])["log_prob"].get<double>() ==
          Approx(documents["examples"][i][0].get<double>()).epsilon(2e-6));
  CHECK(results[0].scores.task == "hellaswag:examples.jsonl");
  CHECK(results[1].scores.task == "ppl:texts.jsonl");
  CHECK(InWords(results[0].scores) ==
        "acc 0.2083, acc_norm 0.2500 (24 examples, rules of lm-eval)");
}

TEST_CASE("scores have the same bits at any batch size and number of ranks", "[eval]") {
  const std::vector<TaskResult> reference = Score(1, 1);
  for (const auto& [world, micro_batch] : {std::pair{1, 2}, {1, 5}, {2, 3}, {3, 1}}) {
    if (!test::HaveDevices(world)) continue;
    CAPTURE(world, micro_batch);
    const std::vector<TaskResult> results = Score(world, micro_batch);
    for (size_t t = 0; t < results.size(); ++t) {
      CHECK(results[t].examples == reference[t].examples);
      CHECK(results[t].scores.values == reference[t].scores.values);
      CHECK(results[t].scores.hash == reference[t].scores.hash);
    }
  }
  const std::vector<TaskResult> first = Score(1, 4, 3);
  CHECK(first[0].scores.examples == 3);
  CHECK(first[0].examples ==
        std::vector<std::string>(reference[0].examples.begin(), reference[0].examples.begin() + 3));
  CHECK(first[0].scores.hash != reference[0].scores.hash);
}

// Rows begin at places of a product that no tile divides.
TEST_CASE("so they have in windows of an odd length, and with bf16", "[eval]") {
  for (const std::string compute : {"fp32", "bf16"}) {
    const auto score = [&](int64_t micro_batch) {
      return Score(1, micro_batch, 0,
                   {"model.seq_len=37", "model.d_model=72", "model.ffn=111", "model.vocab=259",
                    "precision.compute=" + compute},
                   {kTasks[1]})[0]
          .examples;
    };
    const std::vector<std::string> reference = score(1);
    for (const int64_t micro_batch : {2, 3, 7, 16}) {
      CAPTURE(compute, micro_batch);
      CHECK(score(micro_batch) == reference);
    }
  }
}

TEST_CASE("a model of token files is not scored on bytes", "[eval]") {
  const std::vector<std::string> sets = {"data.kind=tokens", "data.path=x", "model.vocab=300"};
  RequireError(ErrorCode::kConfig, {"hellaswag:", "token files", "data.tokenizer"},
               [&] { OpenTasks(ConfigOf(1, sets), kTasks, 0); });
  RequireError(ErrorCode::kData, {"x.bin"},  // of ids: only the file is missing
               [&] { OpenTasks(ConfigOf(1, sets), {"hellaswag:x.bin"}, 0); });
  RequireError(ErrorCode::kConfig, {"token files"}, [&] {
    OpenTasks(ConfigOf(1, {R"(data.sources=[{"path": "a"}, {"path": "b", "kind": "tokens"}])",
                           "data.kind=text"}),
              kTasks, 0);
  });
}

TEST_CASE("a run is scored every K steps and at its end, and is the same run", "[eval]") {
  const TempDir dir;
  const auto train = [&](const std::string& folder, const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"run.dir=" + folder, "train.micro_batch=1"};
    sets.insert(sets.end(), more.begin(), more.end());
    const Config config = ConfigOf(1, sets);
    test::TestRanks().Run(1, [&](const test::RankSetup& setup) {
      PlanSelection plans = {"train"};
      if (config.eval.tasks) plans.push_back("score");
      Session session(config, setup.environment(), {plans, true});
      TrainOptions options;
      options.machine = FindMachine("cpu");
      const std::atomic<bool> never = false;
      millrace::Train(session, options, never, {});
    });
    return ParseJson(ReadBytes(folder + "/summary.json"));
  };
  const json plain = train(dir / "plain", {}),
             scored = train(dir / "scored",
                            {"eval.tasks=" + json(kTasks).dump(), "eval.every=3", "eval.limit=2"});
  CHECK(scored["param_hash"] == plain["param_hash"]);
  std::ifstream in(dir / "scored/metrics.jsonl");
  std::vector<json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(ParseJson(line));
  REQUIRE(lines.size() == 4);
  for (size_t i = 0; i < lines.size(); ++i) CHECK(lines[i].contains("scores") == (i >= 2));
  const json &third = lines[2]["scores"]["ppl:texts.jsonl"],
             &last = lines[3]["scores"]["ppl:texts.jsonl"];
  CHECK(third["examples"] == 2);
  CHECK(third["rules"] == "lm-eval");
  CHECK(third["hash"] == last["hash"]);
  CHECK(third["bits_per_byte"] != last["bits_per_byte"]);
  CHECK(lines[3]["scores"].contains("hellaswag:examples.jsonl"));
}

}  // namespace
}  // namespace millrace
