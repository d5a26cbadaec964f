// The training loop on in-process ranks: what it says about a step whose update was
// skipped, and to a profiler.
#include "runtime/run/training/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/config/load.h"
#include "runtime/exec/engine.h"
#include "runtime/run/training/call_record.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/support/range_recorder.h"
#include "tests/support/ranks.h"

namespace millrace {
namespace {

struct Heard : StepObserver {
  std::vector<StepReport> steps;
  std::vector<std::string> warnings;
  void OnStep(const StepReport& report) override { steps.push_back(report); }
  void OnWarning(const std::string& text) override { warnings.push_back(text); }
};

// The largest gradient that a float holds, in the first flat parameter of step 1 on every rank:
// finite when a rank scans it, infinite in the sum of two.
void ScanHugeGradient(const FiniteScanOp<TensorView>& op, Stream& stream) {
  if (op.unit == 0 && op.scalars.as<StepScalars>()->step == 1) {
    constexpr float kHuge = 3.0e38f;
    if (op.x.dtype() == DType::kF32)
      op.x.as<float>()[op.inject_index] = kHuge;
    else
      op.x.as<BFloat16>()[op.inject_index] = ToBFloat16(kHuge);
  }
  CpuKernels().finite_scan(op, stream);
}

TEST_CASE("a run that keeps nothing at its end keeps what it saved before", "[train]") {
  for (const auto& [every, kept] : {std::pair<int, std::string>{0, ""}, {2, "step_00000004"}})
    for (const bool asynchronous : {false, true}) {
      CAPTURE(every, asynchronous);
      const TempDir temp;
      const std::vector<ConfigText> texts = {
          {"test.json", fmt::format(R"({{
        "model": {{"family": "gpt2", "layers": 1, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8}},
        "data": {{"kind": "synthetic"}}, "run": {{"dir": "{}"}},
        "train": {{"steps": 5, "micro_batch": 2}},
        "checkpoint": {{"every": {}, "keep": 1, "at_end": false, "asynchronous": {}}}}})",
                                    temp / "run", every, asynchronous)}};
      const LoadedConfig loaded = LoadConfigTexts(texts, {}, ConfigContext{.world = 1});
      test::TestRanks().Run(1, [&](const test::RankSetup& setup) {
        Session session(loaded.config, setup.environment(), {{"train"}, true});
        TrainOptions options;
        options.machine = FindMachine("cpu");
        Train(session, options, std::atomic<bool>(false), {});
      });
      std::string found;
      if (const auto folder = temp / "run/checkpoints"; std::filesystem::exists(folder))
        for (const auto& entry : std::filesystem::directory_iterator(folder))
          found += entry.path().filename().string();
      CHECK(found == kept);
    }
}

TEST_CASE("what no data file has of a step's targets is refused before anything is read",
          "[training]") {
  for (const std::string set : {"train.loss=policy_gradient", "train.loss_weights=true"}) {
    const std::vector<ConfigText> texts = {{"test.json", R"({
      "model": {"family": "gpt2", "layers": 1, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8},
      "data": {"kind": "tokens", "path": "nowhere"}})"}};
    const LoadedConfig loaded = LoadConfigTexts(texts, std::vector{set}, ConfigContext{.world = 1});
    test::TestRanks().Run(1, [&](const test::RankSetup& setup) {
      CHECK_THROWS_WITH(Session(loaded.config, setup.environment(), {{"train"}, true}),
                        Catch::Matchers::Contains("in no data file"));
      // A program that gives it to the engine has no data here.
      Session session(loaded.config, setup.environment(), {{"train"}, false});
      const std::vector<int32_t> tokens(8 * 9, 3);
      const std::vector<float> values(8 * 8, -3.5f);
      const auto bytes = std::as_bytes(std::span(values));
      std::vector<HostInputs::Input> inputs = {{"tokens", std::as_bytes(std::span(tokens))}};
      const bool policy = set == "train.loss=policy_gradient";
      for (const char* name :
           policy ? std::vector{"old_logprobs", "advantages"} : std::vector{"weights"})
        inputs.push_back({name, bytes});
      session.InitWeights();
      const StepScalars scalars =
          session.engine().Step(HostInputs(inputs), 0, {64, policy ? 64 : 3.5 * 64});
      StepReport report;
      DescribeTallies(session.engine(), report);
      REQUIRE(report.policy.has_value() == policy);
      if (!policy) return;
      CHECK(report.policy->clip_fraction == 0);
      CHECK(scalars.loss == Approx(3.5 * report.policy->ratio).epsilon(1e-6));
      CHECK(report.policy->ratio != 1);
    });
  }
}

TEST_CASE(
    "a gradient that overflows in the sum over ranks is skipped and said to be of no single rank",
    "[training]") {
  const int world = 2;
  const std::string replicate = GENERATE("1", "2"), wire = GENERATE("fp32", "bf16");
  CAPTURE(replicate, wire);
  const TempDir temp;
  const std::vector<ConfigText> texts = {{"test.json", R"({
    "model": {"family": "gpt2", "layers": 2, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8},
    "data": {"kind": "synthetic"},
    "train": {"steps": 3, "micro_batch": 2},
    "precision": {"compute": "bf16"}})"}};
  const LoadedConfig loaded = LoadConfigTexts(
      texts,
      std::vector<std::string>{"run.dir=" + temp / "run", "parallel.replicate=" + replicate,
                               "precision.grad_wire=" + wire},
      ConfigContext{.world = world});
  KernelTable kernels = CpuKernels();
  kernels.finite_scan = ScanHugeGradient;
  Heard heard[world];
  test::TestRanks().Run(world, [&](const test::RankSetup& setup) {
    Environment environment = setup.environment();
    environment.kernels = &kernels;
    Session session(loaded.config, environment, {{"train"}, true});
    Train(session, {FindMachine("cpu"), {}}, std::atomic<bool>(false), {&heard[session.rank()]});
  });
  REQUIRE(heard[1].steps.empty());  // rank 0 speaks
  REQUIRE(heard[0].warnings ==
          std::vector<std::string>{
              "step 2: non-finite sum of gradients over the ranks, finite on each of them; the "
              "update was skipped on all ranks (1 skipped so far)"});
  REQUIRE(heard[0].steps.size() == 3);
  for (const StepReport& step : heard[0].steps) {
    CAPTURE(step.step);
    CHECK(step.applied == (step.step != 2));
    CHECK(step.skipped == (step.step >= 2 ? 1 : 0));
    CHECK(std::isfinite(step.loss));
    CHECK(std::isfinite(step.grad_norm) == (step.step != 2));
  }
}

TEST_CASE(
    "what stands in a checkpoint's place is a warning like a full disk; a broken invariant is none",
    "[training]") {
  // A mistake of the program's own in the second save.
  struct Broken : FileSystem {
    int MakeFolder(const std::string& path) override {
      if (path.find("/tmp.4.") != path.npos)
        throw Error(ErrorCode::kInternal, "a broken invariant");
      return FileSystem::MakeFolder(path);
    }
  };
  struct Occupying : Heard {
    std::string folder;  // made after step 3
    void OnStep(const StepReport& report) override {
      Heard::OnStep(report);
      if (report.step == 3 && !folder.empty()) std::filesystem::create_directories(folder);
    }
  };
  for (const bool asynchronous : {false, true}) {
    CAPTURE(asynchronous);
    const TempDir temp;
    const std::vector<ConfigText> texts = {{"test.json", R"({
      "model": {"family": "gpt2", "layers": 1, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8},
      "data": {"kind": "synthetic"},
      "train": {"steps": 8, "micro_batch": 2},
      "checkpoint": {"every": 2, "keep": 9}})"}};
    const auto train = [&](const std::string& dir, FileSystem& files, Occupying& heard) {
      const LoadedConfig loaded = LoadConfigTexts(
          texts,
          std::vector<std::string>{"run.dir=" + dir, std::string("checkpoint.asynchronous=") +
                                                         (asynchronous ? "true" : "false")},
          ConfigContext{.world = 1});
      test::TestRanks().Run(1, [&](const test::RankSetup& setup) {
        Session session(loaded.config, setup.environment(), {{"train"}, true});
        TrainOptions options;
        options.machine = FindMachine("cpu");
        options.files = &files;
        Train(session, options, std::atomic<bool>(false), {&heard});
      });
    };
    Occupying heard;
    heard.folder = temp / "run/checkpoints/step_00000004";
    FileSystem sound;
    train(temp / "run", sound, heard);
    CHECK(heard.steps.size() == 8);
    CHECK(heard.warnings == std::vector<std::string>{"step 4: not saved: rank 0: " + heard.folder +
                                                     " exists already; training goes on"});
    Broken broken;
    Occupying other;
    CHECK_THROWS_WITH(train(temp / "other", broken, other),
                      Catch::Contains("step 4: not saved: rank 0: a broken invariant"));
    CHECK(other.warnings.empty());
  }
}

TEST_CASE("a profiler sees what a run does: its phases, its steps within them, and their ops",
          "[training]") {
  const TempDir temp;
  const std::vector<ConfigText> texts = {{"test.json", R"({
    "model": {"family": "gpt2", "layers": 2, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8},
    "data": {"kind": "synthetic", "eval_batches": 1},
    "train": {"steps": 3, "micro_batch": 2, "eval_every": 2},
    "checkpoint": {"every": 2}})"}};
  const LoadedConfig loaded = LoadConfigTexts(
      texts, std::vector<std::string>{"run.dir=" + temp / "run"}, ConfigContext{.world = 1});
  test::RangeRecorder recorder;
  test::TestRanks().Run(1, [&](const test::RankSetup& setup) {
    Environment environment = setup.environment();
    environment.ranges = &recorder;
    Heard heard;
    Session session(loaded.config, environment, {{"train", "eval"}, true});
    Train(session, {FindMachine("cpu"), {}}, std::atomic<bool>(false), {&heard});
  });
  CHECK(recorder.closed());
  // Down to a step's own, without what is said of it and what it reads.
  std::vector<std::string> phases;
  for (const std::string& range : recorder.seen)
    if (std::count(range.begin(), range.end(), '|') < 2 &&
        range.find("reading tokens") == range.npos && range.find("writing messages") == range.npos)
      phases.push_back(range);
  CHECK(phases == std::vector<std::string>{
                      "setting up", "training", "training|loading a checkpoint",
                      "training|making the initial weights", "training|evaluating",
                      "training|step 1", "training|step 2", "training|evaluating",
                      "training|saving a checkpoint", "training|step 3", "training|evaluating",
                      "training|saving a checkpoint", "training|ending"});
  for (const char* range : {"training|step 3|matmul h.1/mlp.up",
                            "training|evaluating|matmul h.1/mlp.up", "training|reading tokens"})
    CHECK_THAT(recorder.seen, Catch::VectorContains(std::string(range)));
}

TEST_CASE("a session's watchdog asks the transport, and says what it says", "[training]") {
  const TempDir temp;
  const std::vector<ConfigText> texts = {{"test.json", R"({
    "model": {"family": "gpt2", "layers": 1, "d_model": 16, "heads": 2, "vocab": 37, "seq_len": 8},
    "execution": {"watchdog_s": 60},
    "data": {"kind": "synthetic"}})"}};
  const LoadedConfig loaded = LoadConfigTexts(
      texts, std::vector<std::string>{"run.dir=" + temp / "run"}, ConfigContext{.world = 2});
  std::promise<std::string> said;
  std::promise<void> made;  // rank 1's session, whose construction is a collective
  const auto work = [&](const test::RankSetup& setup) {
    Environment environment = setup.environment();
    if (setup.comms.rank() == 1)
      environment.on_stall = [&](const std::string& verdict) { said.set_value(verdict); };
    else
      environment.on_stall = [](const std::string&) {};
    Session session(loaded.config, environment, {{"train"}, true});
    if (session.rank() == 0) {
      made.get_future().wait();
      return session.engine().comms().Abort("the test pulls a cable");
    }
    made.set_value();
    const PhaseScope training = session.Phase(RunPhase::kTraining);
    std::future<std::string> verdict = said.get_future();
    if (verdict.wait_for(std::chrono::seconds(40)) != std::future_status::ready)
      throw std::runtime_error("nothing was said");
    CHECK_THAT(verdict.get(), Catch::Contains("the transport of rank 1 is broken: ") &&
                                  Catch::Contains("the test pulls a cable"));
  };
  test::TestRanks().Run(2, work);
}

}  // namespace
}  // namespace millrace
