// millrace eval and generate: a trained state at work.
#include <fmt/format.h>

#include <cmath>
#include <iostream>

#include "runtime/api/training.h"
#include "runtime/base/error.h"
#include "tools/cli/command.h"
#include "tools/cli/text.h"

namespace millrace {
namespace {

ResumedRun Load(RankContext& context, Session& session, const std::string& checkpoint) {
  const ResumedRun loaded = LoadForUse(session.engine(), session.config().run.dir, checkpoint, IdentityOf(session));
  if (context.leader()) std::cerr << fmt::format("millrace: weights of step {} from {}", loaded.step, loaded.path) << std::endl;
  return loaded;
}

}  // namespace

int EvalVerb(const EvalArguments& arguments) {
  const PlanSelection plans{false, true, false};
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    Session session(context.config.config, context.environment, {plans, true});
    const ResumedRun loaded = Load(context, session, arguments.checkpoint);
    const double loss = session.Evaluate();
    if (context.leader())
      std::cout << fmt::format("{{\"step\": {}, \"eval_loss\": {}, \"perplexity\": {}}}", loaded.step, loss, std::exp(loss)) << std::endl;
    return 0;
  });
}

int GenerateVerb(const GenerateArguments& arguments) {
  const PlanSelection plans{false, false, true};
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    Session session(context.config.config, context.environment, {plans, false});
    Load(context, session, arguments.checkpoint);
    if (context.leader()) std::cerr << "millrace: no key/value cache yet: each token runs the whole window" << std::endl;
    const std::vector<int32_t> tokens = session.Generate(TokensOfText(arguments.prompt), arguments.tokens,
                                                         {arguments.temperature, arguments.top_k, static_cast<uint64_t>(arguments.seed)});
    if (context.leader()) std::cout << arguments.prompt << PrintableText(tokens) << std::endl;
    return 0;
  });
}

}  // namespace millrace
