// millrace eval, and how a trained state is loaded for use.
#include "tools/cli/use/use.h"

#include <fmt/core.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"

namespace millrace {

ResumedRun LoadWeights(RankContext& context, Session& session, const std::string& checkpoint) {
  return LoadWeights(context, session, session.config().run.dir, checkpoint);
}

ResumedRun LoadWeights(RankContext& context, Session& session, const std::string& run_dir,
                       const std::string& checkpoint) {
  ResumedRun loaded = LoadForUse(session.engine(), run_dir, checkpoint, IdentityOf(session));
  for (const std::string& warning : loaded.warnings)
    context.log.Warning(LogScope::kAllRanks, warning);
  context.log.Info(LogScope::kAllRanks,
                   fmt::format("weights of step {} from {}", loaded.progress.step, loaded.path));
  for (const std::string& change : loaded.changes)
    if (change.starts_with("data.tokenizer")) context.log.Warning(LogScope::kAllRanks, change);
  if (session.config().model.BalancedGate())
    context.log.Warning(LogScope::kAllRanks,
                        "model.moe.gate=balanced: a fixed pattern chooses experts, not the router");
  return loaded;
}

int EvalVerb(const EvalArguments& arguments) {
  const PlanSelection plans{"eval"};
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    Session session(context.config.config, context.environment, {plans, true});
    const ResumedRun loaded = LoadWeights(context, session, arguments.checkpoint);
    const Session::HeldOutLoss held_out = session.EvaluateHeldOut();
    nlohmann::ordered_json line = {{"step", loaded.progress.step},
                                   {"eval_loss", FiniteOrNull(held_out.loss)},
                                   {"perplexity", FiniteOrNull(std::exp(held_out.loss))},
                                   {"targets", held_out.targets}};
    for (const SourceLoss& source : held_out.sources)
      line["source_eval_loss"][source.name] = FiniteOrNull(source.loss);
    if (session.config().model.BalancedGate()) line["gate"] = "balanced";
    if (context.leader()) std::cout << DumpJson(line, {.replace = true}) << std::endl;
    return 0;
  });
}

}  // namespace millrace
