// millrace eval --task: scores of a trained state.
#include <fmt/core.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/eval_spec.h"
#include "runtime/data/file_system.h"
#include "runtime/run/eval/score_tasks.h"
#include "tools/cli/command.h"
#include "tools/cli/use/use.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

void Require(const EvalArguments& arguments) {
  for (const std::string& task : arguments.tasks) {
    const std::string wrong = WhyNoTask(task);
    MR_REQUIRE(ErrorCode::kConfig, wrong.empty(), "--task: {}", wrong);
  }
  MR_REQUIRE(ErrorCode::kConfig, arguments.examples.empty() || arguments.tasks.size() == 1,
             "--examples is one file, and takes one --task, not {}", arguments.tasks.size());
}

Json LineOf(const Config& config, const EvalScores& scores, const ResumedRun& loaded) {
  Json line = {{"step", loaded.progress.step}, {"checkpoint", loaded.path},
               {"task", scores.task},          {"rules", scores.rules},
               {"examples", scores.examples},  {"hash", scores.hash}};
  for (const auto& [name, value] : scores.values) line[name] = FiniteOrNull(value);
  if (config.model.BalancedGate()) line["gate"] = "balanced";
  return line;
}

void WriteExamples(const std::string& path, const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  WriteFileAtomically(FileSystem::Posix(), path, text);
}

}  // namespace

int EvalTasksVerb(const EvalArguments& arguments) {
  Require(arguments);
  const PlanSelection plans{"score"};
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    const Config& config = context.config.config;
    const std::vector<OpenTask> tasks =
        OpenTasks(config, arguments.tasks, arguments.limit.value_or(0));
    Session session(config, context.environment, {plans, false});
    const ResumedRun loaded = LoadWeights(context, session, arguments.checkpoint);
    for (const OpenTask& task : tasks) {
      const TaskResult result = ScoreTask(session, task);
      if (!context.leader()) continue;
      std::cout << DumpJson(LineOf(config, result.scores, loaded), {.replace = true}) << std::endl;
      if (!arguments.examples.empty()) WriteExamples(arguments.examples, result.examples);
    }
    return 0;
  });
}

}  // namespace millrace
