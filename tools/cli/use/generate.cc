// millrace generate: answers to prompts, drawn by all data ranks.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/exec/engine.h"
#include "runtime/infer/deal_samples.h"
#include "runtime/infer/generate_all.h"
#include "runtime/run/generate/engine_token_model.h"
#include "runtime/run/generate/inference_plans.h"
#include "runtime/run/generate/window_token_model.h"
#include "runtime/run/model_options.h"
#include "tools/cli/command.h"
#include "tools/cli/use/answers.h"
#include "tools/cli/use/prompts.h"
#include "tools/cli/use/tokenizer_codec.h"
#include "tools/cli/use/use.h"

namespace millrace {
namespace {

void RequirePossible(const ModelConfig& model, const std::vector<Prompt>& prompts, bool stream) {
  MR_REQUIRE(ErrorCode::kConfig, !model.BalancedGate(),
             "model.moe.gate is {}, which is for benchmarks; only a model whose gate is {} can "
             "generate",
             Name(model.moe.gate), Name(GateKind::kRouter));
  if (!stream) return;  // each is answered, or refused, by itself
  for (const int32_t token : prompts.front().request.prompt)
    MR_REQUIRE(ErrorCode::kConfig, token < model.Vocab(),
               "--prompt holds the token {}, but model.vocab is {}", token, model.Vocab());
}

// The model's tokens of what was given as text. What names a token ends an answer as text, too.
void Encode(const TextCodec& codec, Prompt& prompt) {
  if (!prompt.text.empty()) prompt.request.prompt = codec.Encode(prompt.text);
  for (const std::string& stop : prompt.stop)
    if (const auto token = codec.StopToken(stop)) prompt.request.stop_tokens.push_back(*token);
}

bool IsGiven(const LoadedConfig& config, std::string_view section) {
  return std::any_of(config.origin.begin(), config.origin.end(), [&](const auto& key) {
    return key.first.starts_with(section) && key.second != "default";
  });
}

// Prompts that are answered in one way.
struct Group {
  std::string why_window;       // why each token runs the whole window; "": caches serve
  std::vector<size_t> prompts;  // by number
};

// Which way follows from a prompt and the run alone, not from what else is asked for.
// Error(kConfig): inference.* was given, and cannot be.
std::vector<Group> GroupsOf(const RankContext& context, const std::vector<Prompt>& prompts) {
  const LoadedConfig& loaded = context.config;
  const Config& config = loaded.config;
  const std::string why =
      WhyNoCaches(config, ModelOptionsOf(config), context.environment.traits.backend);
  MR_REQUIRE(ErrorCode::kConfig, why.empty() || !IsGiven(loaded, "inference."),
             "inference.* is given, which is for caches: {}", why);
  const int64_t most = config.inference.MaxLength(config.model.seq_len);
  Group cached, window{why, {}};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const GenerationRequest& request = prompts[i].request;
    const int64_t length =
        std::ssize(request.prompt) + (prompts[i].has_length ? request.max_tokens : 1);
    // Beyond a limit that was asked for it is refused.
    const bool fits = length <= most || IsGiven(loaded, "inference.max_length");
    if (why.empty() && !fits && window.why_window.empty())
      window.why_window = fmt::format(
          "a prompt and its answer have {} positions, inference.max_length is {}", length, most);
    (why.empty() && fits ? cached : window).prompts.push_back(i);
  }
  std::vector<Group> groups;
  for (Group& group : {std::ref(cached), std::ref(window)})
    if (!group.prompts.empty()) groups.push_back(std::move(group));
  return groups;
}

PlanSelection PlansOf(const std::vector<Group>& groups) {
  PlanSelection plans;
  for (const Group& group : groups)
    plans.push_back(group.why_window.empty() ? std::string(kInferencePlans) : "generate");
  return plans;
}

std::unique_ptr<TokenModel> ModelOf(const Group& group, Session& session) {
  if (!group.why_window.empty()) {
    session.log().Info(LogScope::kAllRanks,
                       "without caches, each token runs the whole window: " + group.why_window);
    return std::make_unique<WindowTokenModel>(session);
  }
  auto cached = std::make_unique<EngineTokenModel>(session.engine(), session.config());
  cached->Enter();
  return cached;
}

// The group's requests that its model can answer, by the numbers of their prompts; what it refuses.
struct Answerable {
  std::vector<size_t> prompts;
  std::vector<GenerationRequest> requests;
};
Answerable Sift(const Group& group, const std::vector<Prompt>& prompts, const Config& config,
                const TokenModelLimits& limits, bool stream, std::map<size_t, Refusal>* refused) {
  Answerable found;
  for (const size_t i : group.prompts) {
    GenerationRequest request = prompts[i].request;
    if (config.data.end_of_document)  // a document's end is an answer's
      request.stop_tokens.push_back(static_cast<int32_t>(*config.data.end_of_document));
    if (!prompts[i].has_length)
      request.max_tokens = std::clamp<int64_t>(limits.max_length - std::ssize(request.prompt), 1,
                                               request.max_tokens);
    const auto refusal = RefusalOf(request, limits);
    MR_REQUIRE(ErrorCode::kConfig, !refusal || !stream, "generate: {}", refusal->message);
    if (refusal) {
      (*refused)[i] = *refusal;
      continue;
    }
    found.prompts.push_back(i);
    found.requests.push_back(std::move(request));
  }
  return found;
}

// What this rank draws, by round. A round has this many times as many samples of a rank as it draws
// at once.
std::vector<std::vector<Share>> RoundsOf(const std::vector<GenerationRequest>& requests,
                                         const TokenModelLimits& limits, const Session& session,
                                         bool on_their_own) {
  constexpr int64_t kTimes = 4;
  const int64_t ranks = session.run().layout.mesh.data_ranks();
  return DealSamples(requests, on_their_own ? ranks : 1, on_their_own ? session.data_rank() : 0,
                     kTimes * limits.slots);
}

// Of the ranks that count, one of those that draw the same samples. Collective.
Generator::PromptTokens SumOver(Communicator& ranks, bool counts,
                                const Generator::PromptTokens& own) {
  static_assert(std::is_trivially_copyable_v<Generator::PromptTokens>);
  Generator::PromptTokens sum;
  const std::string payload(reinterpret_cast<const char*>(&own), counts ? sizeof(own) : 0);
  for (const std::string& part : ranks.HostAllGather(payload)) {
    Generator::PromptTokens of{};
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(&of));
    sum.computed += of.computed;
    sum.shared += of.shared;
  }
  return sum;
}

}  // namespace

int GenerateVerb(const GenerateArguments& arguments) {
  std::vector<Prompt> prompts = PromptsOf(arguments, ByteCodec());  // mistakes are said first
  const bool stream =
      prompts.size() == 1 && arguments.file.empty() && !arguments.json && arguments.samples == 1;
  return RunOnRanks(arguments.config, {"generate"}, [&](RankContext& context) {
    const Config& config = context.config.config;
    const std::unique_ptr<TextCodec> codec = CodecOf(config);
    for (Prompt& prompt : prompts) Encode(*codec, prompt);
    RequirePossible(config.model, prompts, stream);
    const std::vector<Group> groups = GroupsOf(context, prompts);
    Session session(config, context.environment, {PlansOf(groups), false});
    const ResumedRun loaded = LoadWeights(context, session, arguments.checkpoint);
    const bool speaks = session.run().layout.mesh.Index(session.rank(), Axis::kTensor) == 0;
    Answers answers(prompts, *codec, {context.leader(), stream, speaks});
    std::map<size_t, Refusal> refused;
    Generator::PromptTokens cached;
    const auto begin = std::chrono::steady_clock::now();
    for (const Group& group : groups) {
      const std::unique_ptr<TokenModel> model = ModelOf(group, session);
      const Answerable found = Sift(group, prompts, config, model->limits(), stream, &refused);
      answers.Print(refused);
      answers.Begin();
      Generator generator(*model, {.max_waiting = kMostSamples});
      generator.SetWeightVersion(static_cast<uint64_t>(loaded.progress.step));
      const bool on_their_own = group.why_window.empty();
      for (const auto& round : RoundsOf(found.requests, model->limits(), session, on_their_own)) {
        std::vector<GenerationRequest> requests;
        for (const Share& share : round) requests.push_back(RequestFor(share, found.requests));
        GenerateAll(generator, requests, [&](size_t request, const GenerationEvent& event) {
          const Share& share = round[request];
          answers.Take(
              {found.prompts[share.request], static_cast<size_t>(share.SampleOf(event.sample))},
              event, generator);
        });
        model->Finish();
        if (on_their_own && session.world() > 1) answers.Exchange(session.engine().comms().world());
      }
      const Generator::PromptTokens tokens =
          on_their_own
              ? SumOver(session.engine().comms().world(), speaks, generator.prompt_tokens())
              : generator.prompt_tokens();
      cached.computed += tokens.computed;
      cached.shared += tokens.shared;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (stream && context.leader()) std::cout << std::endl;
    context.log.Info(
        LogScope::kAllRanks,
        fmt::format("{} tokens in {:.2f} s, {:.1f} tokens/s with prompts", answers.tokens(),
                    seconds.count(), static_cast<double>(answers.tokens()) / seconds.count()));
    if (cached.shared > 0)
      context.log.Info(LogScope::kAllRanks,
                       fmt::format("of prompts, {} tokens were computed and {} shared by samples",
                                   cached.computed, cached.shared));
    return refused.empty() ? 0 : ExitCode(ErrorCode::kConfig);
  });
}

}  // namespace millrace
