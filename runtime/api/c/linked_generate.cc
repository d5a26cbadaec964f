// Answers of a linked run to prompts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <new>
#include <optional>

#include "runtime/api/c/event_callback.h"
#include "runtime/api/c/linked_run.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"

namespace millrace {
namespace {

GenerationRequest RequestOf(const mr_request* given, const std::string& name, int64_t most_top) {
  const mr_request whole = ReadSized(given, name.c_str());
  const auto require = [&](bool holds, const char* what) {
    if (!holds) throw CallError(MR_INVALID_ARGUMENT, name + what);
  };
  constexpr int64_t kMost = int64_t{1} << 31;
  require(whole.prompt_tokens >= 0 && whole.prompt_tokens < kMost &&
              (whole.prompt != nullptr || whole.prompt_tokens == 0),
          ".prompt is NULL, or its length is none");
  require(whole.stop_count >= 0 && whole.stop_count < kMost &&
              (whole.stop_tokens != nullptr || whole.stop_count == 0),
          ".stop_tokens is NULL, or their number is none");
  if (whole.top_logprobs < 0 || whole.top_logprobs > most_top)
    throw CallError(MR_INVALID_ARGUMENT, fmt::format("{}.top_logprobs is {}; allowed is 0 to {}",
                                                     name, whole.top_logprobs, most_top));
  GenerationRequest request;
  request.prompt.assign(whole.prompt, whole.prompt + whole.prompt_tokens);
  request.max_tokens = whole.max_tokens;
  request.samples = whole.samples == 0 ? 1 : whole.samples;
  request.sampling = {.temperature = whole.temperature,
                      .top_k = whole.top_k,
                      .top_p = whole.top_p == 0 ? 1 : whole.top_p,
                      .min_p = whole.min_p,
                      .seed = whole.seed,
                      .top = static_cast<int32_t>(whole.top_logprobs)};
  request.stop_tokens.assign(whole.stop_tokens, whole.stop_tokens + whole.stop_count);
  return request;
}

// Equal where requests are.
std::string TextOf(const std::vector<GenerationRequest>& requests) {
  std::string text;
  for (const GenerationRequest& r : requests)
    text += fmt::format("[{}] [{}] {} {} {} {} {} {} {} {}\n", fmt::join(r.prompt, ","),
                        fmt::join(r.stop_tokens, ","), r.max_tokens, r.samples,
                        r.sampling.temperature, r.sampling.top_k, r.sampling.top_p,
                        r.sampling.min_p, r.sampling.seed, r.sampling.top);
  return text;
}

}  // namespace

// Ranks that draw each token together have to draw the same. All ranks hear of those that do not.
void LinkedRun::RequireSameRequests(const std::vector<GenerationRequest>& requests) {
  const Mesh& mesh = session_->run().layout.mesh;
  if (mesh.Size(Axis::kTensor) == 1) return;
  std::vector<std::string> all;
  Touch([&] { all = meeting_->HostAllGather(TextOf(requests)); });
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const int first = mesh.Group(rank, Axis::kTensor).front();
    if (all[static_cast<size_t>(rank)] != all[static_cast<size_t>(first)])
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("ranks {} and {} have other requests, and generate together: "
                                  "parallel.tensor is {}",
                                  first, rank, mesh.Size(Axis::kTensor)));
  }
}

std::vector<GenerationRequest> LinkedRun::CheckedRequests(const mr_request* const* requests,
                                                          int64_t count) const {
  RequireWeights();
  RequireArena();
  if (!generates_)
    throw CallError(MR_INVALID_ARGUMENT,
                    "the run was made without use_inference: it has no plans to generate by");
  if (count < 0 || (requests == nullptr && count > 0))
    throw CallError(MR_INVALID_ARGUMENT,
                    fmt::format("requests is {}, and count {}",
                                requests == nullptr ? "NULL" : "not NULL", count));
  std::vector<GenerationRequest> checked;
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("requests[{}]", i);
    checked.push_back(RequestOf(requests[i], name, generates_->limits().top));
    constexpr int64_t kMostSamples = GeneratorOptions{}.max_waiting;
    if (checked.back().samples > kMostSamples)
      throw CallError(MR_INVALID_ARGUMENT, fmt::format("{}.samples is {}; at most {} wait at once",
                                                       name, checked.back().samples, kMostSamples));
    if (const auto refusal = RefusalOf(checked.back(), generates_->limits()))
      throw CallError(MR_INVALID_ARGUMENT, fmt::format("{}: {}", name, refusal->message));
  }
  return checked;
}

std::vector<GeneratedAnswer> LinkedRun::GenerateChecked(
    const std::vector<GenerationRequest>& requests, const OnEvent& on_event) {
  RequireSameRequests(requests);
  std::vector<GeneratedAnswer> answers;
  Touch([&] {
    const PhaseScope phase = session_->Phase(RunPhase::kGenerating);
    generates_->Enter();  // the weights of now
    Generator generator(*generates_,
                        on_event ? GeneratorOptions{} : PromptsFirst(generates_->limits()));
    generator.SetWeightVersion(version_);
    try {
      answers = GenerateAll(generator, requests, [&](size_t request, const GenerationEvent& event) {
        if (on_event) on_event(generator, request, event);
      });
    } catch (const CallError&) {  // of a callback, between turns: peers go on with theirs
      generates_->Finish();
      throw;
    } catch (const std::bad_alloc&) {  // nobody waits for it, and no weight has changed
      if (meeting_->world_size() > 1) throw;
      generates_->Finish();
      throw CallError(MR_DOES_NOT_FIT, fmt::format("no host memory for the answers to {} requests",
                                                   requests.size()));
    }
    generates_->Finish();
  });
  return answers;
}

std::vector<GeneratedAnswer> LinkedRun::Generate(const mr_request* const* requests, int64_t count,
                                                 const void* out) {
  std::vector<GenerationRequest> checked;
  Agree("mr_generate", [&] {
    if (out == nullptr) throw CallError(MR_INVALID_ARGUMENT, "out is NULL");
    checked = CheckedRequests(requests, count);
  });
  return GenerateChecked(checked, nullptr);
}

void LinkedRun::Stream(const mr_request* const* requests, int64_t count,
                       const mr_stream_options* options) {
  std::vector<GenerationRequest> checked;
  std::optional<EventCallback> callback;
  Agree("mr_stream", [&] {
    callback.emplace(ReadSized(options, "options"));
    checked = CheckedRequests(requests, count);
    // A callback that ends an answer on one rank would leave the others waiting for it.
    if (const int ranks = session_->run().layout.mesh.Size(Axis::kTensor); ranks > 1)
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("parallel.tensor is {}: ranks that generate together have no "
                                  "streams; mr_generate answers them",
                                  ranks));
  });
  GenerateChecked(checked, [&](Generator& generator, size_t request, const GenerationEvent& event) {
    if (callback->Say(request, event)) generator.Cancel(event.request, event.sample);
  });
}

}  // namespace millrace
