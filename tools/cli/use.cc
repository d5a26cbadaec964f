// millrace eval and generate: a trained state at work.
#include <fmt/core.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/run/training.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"

namespace millrace {
namespace {

ResumedRun Load(RankContext& context, Session& session, const std::string& checkpoint) {
  ResumedRun loaded =
      LoadForUse(session.engine(), session.config().run.dir, checkpoint, IdentityOf(session));
  context.log.Info(LogScope::kAllRanks,
                   fmt::format("weights of step {} from {}", loaded.progress.step, loaded.path));
  return loaded;
}

// JSON has no infinity: a loss that is not a number, or a perplexity past the largest double, is
// null.
nlohmann::ordered_json Number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

int EvalVerb(const EvalArguments& arguments) {
  const PlanSelection plans{"eval"};
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    Session session(context.config.config, context.environment, {plans, true});
    const ResumedRun loaded = Load(context, session, arguments.checkpoint);
    const double loss = session.Evaluate();
    if (context.leader())
      std::cout << DumpJson(nlohmann::ordered_json{{"step", loaded.progress.step},
                                                   {"eval_loss", Number(loss)},
                                                   {"perplexity", Number(std::exp(loss))}})
                << std::endl;
    return 0;
  });
}

int GenerateVerb(const GenerateArguments& arguments) {
  const PlanSelection plans{"generate"};
  const std::vector<int32_t> prompt = TokensOfText(arguments.prompt);
  MR_REQUIRE(ErrorCode::kConfig, !prompt.empty(),
             "--prompt is empty; generation goes on from at least one byte");
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    const int64_t vocab = context.config.config.model.Vocab();
    for (const int32_t token : prompt)
      MR_REQUIRE(ErrorCode::kConfig, token < vocab,
                 "--prompt holds the byte {}, but model.vocab is {}", token, vocab);
    Session session(context.config.config, context.environment, {plans, false});
    Load(context, session, arguments.checkpoint);
    context.log.Info(LogScope::kAllRanks,
                     "no key/value cache yet: each token runs the whole window");
    const std::vector<int32_t> tokens = session.Generate(
        prompt, arguments.tokens,
        {arguments.temperature, arguments.top_k, static_cast<uint64_t>(arguments.seed)});
    if (context.leader()) std::cout << arguments.prompt << PrintableText(tokens) << std::endl;
    return 0;
  });
}

}  // namespace millrace
