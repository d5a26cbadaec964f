#include "tests/runtime/run/training_run.h"

#include <fmt/format.h>

#include <fstream>

#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "tests/support/ranks.h"

namespace millrace::test {
namespace {

using Json = nlohmann::json;

struct Observer : StepObserver {
  std::function<void(const StepReport&)> on_step = [](const StepReport&) {};
  std::vector<std::string> warnings;
  void OnStep(const StepReport& report) override { on_step(report); }
  void OnWarning(const std::string& text) override { warnings.push_back(text); }
};

}  // namespace

TrainingRun::TrainingRun(int world, std::vector<std::string> sets)
    : world_(world), sets_(std::move(sets)) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += fmt::format("Sentence {} says that {} and {} are it.\n", i, i, i + 7);
  WriteBytes(dir_ / "data.txt", text);
  sets_.push_back("run.dir=" + folder());
  sets_.push_back("data.path=" + dir_ / "data.txt");
}

std::vector<std::string> TrainingRun::Train(const std::vector<TrainFault>& faults,
                                            const std::function<void(const StepReport&)>& on_step,
                                            std::atomic<bool>* stop) const {
  const LoadedConfig loaded = Loaded();
  std::vector<Observer> observers(static_cast<size_t>(world_));
  if (on_step) observers[0].on_step = on_step;
  std::atomic<bool> never = false;
  TestRanks().Run(world_, [&](const RankSetup& setup) {
    const bool evaluates = loaded.config.train.eval_every > 0;
    Session session(loaded.config, setup.environment(),
                    {evaluates ? PlanSelection{"train", "eval"} : PlanSelection{"train"}, true});
    TrainOptions options;
    options.machine = FindMachine("cpu");
    TrainFaults injected(faults, session.engine(), loaded.config.model.Vocab());
    millrace::Train(session, options, stop == nullptr ? never : *stop,
                    {&injected, &observers[static_cast<size_t>(session.rank())]});
  });
  return observers[0].warnings;
}

std::vector<std::string> TrainingRun::Alone(
    const std::vector<std::pair<int64_t, int64_t>>& steps) const {
  const LoadedConfig loaded = Loaded();
  std::vector<std::string> hashes;
  TestRanks().Run(world_, [&](const RankSetup& setup) {
    Session session(loaded.config, setup.environment(), {{"train"}, true});
    session.InitWeights();
    for (const auto& [step, data] : steps)
      session.engine().Step(session.batcher().Step(data - 1, session.data_rank()), step - 1,
                            session.batcher().valid_tokens());
    const std::string params = ParamHash(session.engine()),
                      optimizer = OptimizerHash(session.engine());
    if (session.rank() == 0) hashes = {params, optimizer};
  });
  return hashes;
}

Json TrainingRun::Summary() const { return Json::parse(ReadBytes(folder() + "/summary.json")); }

std::vector<std::string> TrainingRun::Hashes() const {
  const Json summary = Summary();
  return {summary["param_hash"], summary["optimizer_hash"]};
}

std::vector<Json> TrainingRun::Lines() const {
  std::ifstream in(folder() + "/metrics.jsonl");
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) {
    Json json = Json::parse(line);
    for (const char* key : {"step_ms", "enqueue_us", "tokens_per_s", "mfu", "peak_bytes",
                            "save_stall_ms", "save_ms", "saved_step"})
      json.erase(key);
    lines.push_back(json);
  }
  return lines;
}

LoadedConfig TrainingRun::Loaded() const {
  const std::vector<ConfigText> texts = {{"test.json", R"({
      "model": {"family": "gpt2", "layers": 2, "d_model": 16, "heads": 2, "seq_len": 16},
      "data": {"kind": "text"},
      "optimizer": {"lr": 1e-2, "schedule": {"kind": "constant", "warmup": 0, "min_lr": 0}},
      "train": {"steps": 12, "micro_batch": 2},
      "checkpoint": {"every": 4}})"}};
  return LoadConfigTexts(texts, sets_, ConfigContext{.world = world_});
}

}  // namespace millrace::test
