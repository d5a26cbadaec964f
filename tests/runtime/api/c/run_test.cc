// A run through its life: steps, folders, evaluations, many runs of one process.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local_world.h"
#include "runtime/api/backend.h"
#include "runtime/config/load.h"
#include "runtime/run/training/training.h"
#include "tests/runtime/api/c/answers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

std::vector<double> Losses(mr_run* run, int64_t from, int64_t to) {
  std::vector<double> losses;
  for (int64_t step = from; step < to; ++step) {
    const std::vector<int32_t> tokens = Tokens(step);
    const mr_batch batch = BatchOf(tokens);
    mr_step_result result = Sized<mr_step_result>();
    REQUIRE_CODE(mr_step(run, &batch, &result), MR_OK);
    REQUIRE(result.step == step + 1);
    REQUIRE(result.applied == 1);
    REQUIRE(result.targets == kRows * (kRowTokens - 1));
    losses.push_back(result.loss);
  }
  return losses;
}

TEST_CASE("a run that was saved and loaded goes on with its bits", "[api][c]") {
  const TempDir folder;
  const Linked run(TinyConfig());
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<double> first = Losses(run, 0, 3);
  REQUIRE(first[2] != first[0]);
  REQUIRE_CODE(mr_save(run, folder.path().c_str()), MR_OK);
  const std::vector<double> straight = Losses(run, 3, 6);

  const Linked again(TinyConfig());
  REQUIRE_CODE(mr_load(again, folder.path().c_str()), MR_OK);
  REQUIRE(again.Info().step == 3);
  REQUIRE(Losses(again, 3, 6) == straight);

  // Where there is nothing to load, or what is of another model, the run is as it was.
  const mr_info before = again.Info();
  REQUIRE_CODE(mr_load(again, (folder / "nothing").c_str()), MR_CHECKPOINT);
  const Linked other(
      R"({"model": {"family": "llama", "layers": 1, "d_model": 20, "heads": 2, "ffn": 28,
          "seq_len": 8, "vocab": 37}, "train": {"micro_batch": 3, "accumulate": 2}})");
  REQUIRE_CODE(mr_load(other, folder.path().c_str()), MR_CONFIG);
  REQUIRE_CODE(mr_save(other, folder.path().c_str()), MR_INVALID_ARGUMENT);  // no weights yet
  REQUIRE(again.Info().weight_version == before.weight_version);
  REQUIRE(again.Info().step == 6);
  REQUIRE_CODE(mr_save(again, (folder / "then").c_str()), MR_OK);
  // An import begins to write, and leaves none.
  REQUIRE_CODE(mr_import(again, (folder / "nothing").c_str()), MR_DATA);
  REQUIRE(again.Info().weight_version == 0);
  REQUIRE(again.Step(0).first.code == MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_save(again, folder.path().c_str()), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_load(again, (folder / "then").c_str()), MR_OK);
  REQUIRE(again.Info().step == 6);
  REQUIRE_CODE(mr_init(again), MR_OK);
  REQUIRE(Losses(again, 0, 3) == first);
}

// The newest checkpoint of a folder is that of the greatest step, and older ones go.
TEST_CASE("a save neither loses itself nor what others have saved", "[api][c]") {
  const TempDir folder;
  const auto saved = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "run/checkpoints"))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::string run_dir = folder / "run";
  const Linked run(TinyConfig(R"("checkpoint": {"keep": 2})"));
  REQUIRE_CODE(mr_init(run), MR_OK);
  for (const int64_t step : {0, 2, 4}) {
    Losses(run, step, step + 2);
    REQUIRE_CODE(mr_save(run, run_dir.c_str()), MR_OK);
  }
  const std::vector<std::string> kept = {"step_00000004", "step_00000006"};
  REQUIRE(saved() == kept);
  REQUIRE_CODE(mr_save(run, run_dir.c_str()), MR_OK);  // it is there
  const Outcome loaded = Take(mr_load(run, run_dir.c_str()));
  REQUIRE(loaded.code == MR_OK);
  REQUIRE_CODE(mr_save(run, run_dir.c_str()), MR_OK);  // and still
  REQUIRE_CODE(mr_init(run), MR_OK);
  Losses(run, 0, 3);
  const Outcome below = Take(mr_save(run, run_dir.c_str()));
  CHECK(below.code == MR_CHECKPOINT);
  CHECK_THAT(below.message, Contains("step_00000006 is there, and this run is at step 3"));
  Losses(run, 3, 6);
  CHECK(Take(mr_save(run, run_dir.c_str())).code == MR_CHECKPOINT);  // of this step, another's
  Losses(run, 6, 7);
  const Linked other(
      R"({"model": {"family": "llama", "layers": 1, "d_model": 20, "heads": 2, "ffn": 28,
          "seq_len": 8, "vocab": 37}, "train": {"micro_batch": 3, "accumulate": 2}})");
  REQUIRE_CODE(mr_init(other), MR_OK);
  Losses(other, 0, 9);
  const Outcome of_another = Take(mr_save(other, run_dir.c_str()));
  CHECK(of_another.code == MR_CONFIG);
  CHECK_THAT(of_another.message, Contains("of another model"));
  REQUIRE(saved() == kept);
  REQUIRE_CODE(mr_save(run, run_dir.c_str()), MR_OK);
  REQUIRE(saved() == std::vector<std::string>{"step_00000006", "step_00000007"});
}

TEST_CASE("a run without a batch takes the steps of the training loop", "[api][c]") {
  const TempDir folder;
  const std::string config =
      TinyConfig(R"("data": {"kind": "synthetic"}, "run": {"dir": ")" + folder.path() + R"("})");
  mr_run_options options = OptionsOf(config);
  options.use_data = 1;
  const Linked run(options);
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  mr_step_result result = Sized<mr_step_result>();
  for (int step = 0; step < 50; ++step) REQUIRE_CODE(mr_step(run, nullptr, &result), MR_OK);
  mr_evaluation evaluation = Sized<mr_evaluation>();
  REQUIRE_CODE(mr_evaluate(run, nullptr, &evaluation), MR_OK);

  const ConfigText text{"config", config};
  const Config loop = LoadConfigTexts({&text, 1}, {}, {.world = 1}).config;
  LocalWorld world(1);
  const auto factory = world.Factory(0);
  const RankDevice device = MakeRankDevice(Backend::kCpu, *factory, NoLog(), loop, {});
  Session session(loop, device.environment, {.plans = {"train", "eval"}});
  const std::atomic<bool> stop = false;
  const TrainResult trained = Train(session, {device.machine}, stop, {});
  REQUIRE(result.loss == *trained.last_loss);
  REQUIRE(evaluation.loss == session.Evaluate());
}

TEST_CASE("an evaluation takes the caller's rows, and its loss is their mean", "[api][c]") {
  const Linked run(TinyConfig());
  REQUIRE_CODE(mr_init(run), MR_OK);
  const auto evaluate = [&](const std::vector<int32_t>& tokens) {
    const mr_batch batch = BatchOf(tokens);
    mr_evaluation evaluation = Sized<mr_evaluation>();
    REQUIRE_CODE(mr_evaluate(run, &batch, &evaluation), MR_OK);
    REQUIRE(evaluation.targets == batch.sequences * (kRowTokens - 1));
    return evaluation.loss;
  };
  const std::vector<int32_t> both = Tokens(4, 0, 2 * kMicro);
  const auto middle = both.begin() + kMicro * kRowTokens;
  const double one = evaluate({both.begin(), middle}), other = evaluate({middle, both.end()});
  REQUIRE(one != other);
  REQUIRE(evaluate(both) == Approx((one + other) / 2).epsilon(1e-12));  // two f64 sums
  // The loss of a step is that before its update. It is f32, an evaluation's f64.
  const double before = evaluate(Tokens(4)), stepped = run.Step(4).second.loss;
  REQUIRE(stepped == Approx(before).epsilon(1e-6));
  REQUIRE(evaluate(Tokens(4)) != Approx(before).epsilon(1e-4));
  REQUIRE(run.Info().step == 1);
}

TEST_CASE("two runs on two threads have the bits of one after the other", "[api][c]") {
  const std::string other = TinyConfig(R"("memory": {"recompute": "block"})");
  const auto train = [](const std::string& config, std::vector<double>* losses) {
    const Linked run(config);
    mr_status_free(mr_init(run));
    for (int64_t step = 0; step < 20; ++step) losses->push_back(run.Step(step).second.loss);
  };
  std::vector<double> one, two, beside_one, beside_two;
  train(TinyConfig(), &one);
  train(other, &two);
  std::thread first(train, TinyConfig(), &beside_one), second(train, other, &beside_two);
  first.join();
  second.join();
  REQUIRE(one.size() == 20);
  REQUIRE(one.back() < one.front());
  REQUIRE(beside_one == one);
  REQUIRE(beside_two == two);
}

int64_t OpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST_CASE("a hundred runs, made, used and destroyed, leave nothing", "[api][c]") {
  const std::string config = TinyConfig();
  const std::vector<int32_t> prompt = {1, 2};
  const auto live = [&](int i) {
    const bool generates = i % 2 == 0;
    const Linked run(generates ? WithInference(config) : OptionsOf(config));
    REQUIRE_CODE(mr_init(run), MR_OK);
    if (generates) REQUIRE(Generate(run, {RequestOf(prompt, 6, 1)}).size() == 1);
    REQUIRE(run.Step(0).first.code == MR_OK);
  };
  for (int i = 0; i < 10; ++i) live(i);  // what is made once per process
  const int64_t files = OpenFiles(), bytes = ResidentBytes();
  const int64_t threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  for (int i = 0; i < 100; ++i) live(i);
  REQUIRE(OpenFiles() == files);
  REQUIRE(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}) == threads);
  // A run has an arena of 0.5 MiB; a hundredth part of each kept would be seen.
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed; it looks for leaks itself
#ifndef __SANITIZE_THREAD__
  REQUIRE(ResidentBytes() - bytes < 100 * 5000);
#endif
#endif
}

}  // namespace
}  // namespace millrace::test
