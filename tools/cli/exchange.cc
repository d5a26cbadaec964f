// millrace import and export: Hugging Face folders.
#include "runtime/run/huggingface/exchange.h"

#include <fmt/core.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/config/load.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "runtime/run/data/run_tokenizer.h"
#include "runtime/run/training/training.h"
#include "tools/cli/command.h"

namespace millrace {
namespace {

// Weights in and out need the state of a rank, and no plan of a step: the smallest arena has it.
const PlanSelection kPlans{"generate"};

int64_t Parameters(const Session& session) {
  int64_t count = 0;
  for (const UnitSpec& unit : session.run().spec.units)
    for (const ParamSpec& param : unit.params) count += param.numel();
  return count;
}

}  // namespace

int ImportVerb(const ExchangeArguments& arguments) {
  ConfigArguments config = arguments.config;
  config.sets.push_back("model.init_from=" + arguments.folder);
  return RunOnRanks(config, kPlans, [&](RankContext& context) {
    const Config& c = context.config.config;
    const std::unique_ptr<RunLock> lock = LockRun(context);
    const std::string root = (std::filesystem::path(c.run.dir) / "checkpoints").string();
    MR_REQUIRE(
        ErrorCode::kConfig, ListCheckpoints(root).empty(),
        "run.dir {} holds checkpoints already; an import begins a run and needs another run.dir",
        c.run.dir);
    Session session(c, context.environment, {kPlans, false});
    session.InitWeights();
    const std::string path =
        SaveRun(session.engine(), c.run.dir, {}, IdentityOf(session), c.checkpoint.keep).folder;
    if (!context.leader()) return 0;
    nlohmann::json model = ParseJson(ConfigToJson(c)).at("model");
    model.erase("init_from");
    std::cout << fmt::format(
                     "imported {} parameters from {} as step 0: {}\nto train it on, the "
                     "configuration needs these keys, or model.init_from: {}",
                     Parameters(session), arguments.folder, path,
                     DumpJson(nlohmann::json{{"model", model}}))
              << std::endl;
    return 0;
  });
}

int ExportVerb(const ExchangeArguments& arguments) {
  return RunOnRanks(arguments.config, kPlans, [&](RankContext& context) {
    const Config& c = context.config.config;
    Session session(c, context.environment, {kPlans, false});
    const ResumedRun loaded =
        LoadForUse(session.engine(), c.run.dir, arguments.checkpoint, IdentityOf(session));
    for (const std::string& warning : loaded.warnings)
      context.log.Warning(LogScope::kAllRanks, warning);
    ExportOptions options;
    if (const auto tokenizer = TokenizerOf(c)) options.tokenizer_json = tokenizer->json();
    ExportHuggingFace(session.engine(), session.run().spec, c.model, arguments.folder, options);
    if (context.leader())
      std::cout << fmt::format("exported {} parameters of step {} ({}) to {}", Parameters(session),
                               loaded.progress.step, loaded.path, arguments.folder)
                << std::endl;
    return 0;
  });
}

}  // namespace millrace
