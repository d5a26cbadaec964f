#include "tools/cli/use/answers.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Answers::Answers(const std::vector<Prompt>& prompts, const TextCodec& codec, const Speaker& speaker)
    : prompts_(prompts), codec_(codec), speaker_(speaker) {
  for (const Prompt& prompt : prompts)
    answers_.emplace_back(static_cast<size_t>(prompt.request.samples), Answer(prompt.stop));
}

void Answers::Begin() const {
  if (speaker_.streams) Show(prompts_.front().text);
}

void Answers::Take(const PromptSample& of, const GenerationEvent& event, Generator& generator) {
  Answer& answer = answers_[of.prompt][of.sample];
  if (event.token) {
    ++tokens_;
    answer.tokens.push_back(*event.token);
    const bool stops = event.stop_length > 0;
    Add(answer, stops ? "" : answer.cut.Add(codec_.Decode({&event.token->token, 1})));
  }
  if (answer.cut.stopped() && answer.finish.empty()) {
    answer.finish = Name(FinishReason::kStop);
    if (!event.finish) generator.Cancel(event.request, event.sample);
  }
  if (!event.finish) return;
  if (answer.finish.empty()) answer.finish = Name(*event.finish);
  Add(answer, answer.cut.stopped() ? "" : answer.cut.End());
  answer.line = LineOf(of, answer);
  ended_.push_back(of);
  Print();
}

void Answers::Exchange(Communicator& ranks) {
  Json mine{{"tokens", 0}, {"ended", Json::array()}};
  if (speaker_.hands_over && !speaker_.prints) {
    mine["tokens"] = tokens_ - exchanged_;
    for (const auto& [prompt, sample] : ended_)
      mine["ended"].push_back({prompt, sample, answers_[prompt][sample].line});
  }
  exchanged_ = tokens_;
  ended_.clear();
  for (const std::string& text : ranks.HostAllGather(DumpJson(mine))) {
    if (!speaker_.prints) continue;
    const Json theirs = ParseOrderedJson(text);
    tokens_ += theirs["tokens"].get<int64_t>();
    for (const Json& one : theirs["ended"])
      answers_.at(one[0].get<size_t>()).at(one[1].get<size_t>()).line = one[2].get<std::string>();
  }
  exchanged_ = tokens_;
  Print();
}

void Answers::Print(const std::map<size_t, Refusal>& refused) {
  refused_ = refused;
  Print();
}

void Answers::Print() {
  for (; speaker_.prints && next_ < answers_.size(); ++next_) {
    const auto refusal = refused_.find(next_);
    if (refusal != refused_.end()) {
      Say(RefusalLine(refusal->second));
      continue;
    }
    for (const Answer& answer : answers_[next_])
      if (answer.line.empty()) return;
    for (const Answer& answer : answers_[next_])
      if (!speaker_.streams) Say(answer.line);
  }
}

void Answers::Add(Answer& answer, const std::string& shown) const {
  answer.text += shown;
  if (speaker_.streams) Show(codec_.Shown(shown));
}

void Answers::Show(const std::string& text) const {
  if (speaker_.prints && !text.empty()) std::cout << text << std::flush;
}

void Answers::Say(const std::string& line) const { std::cout << line << std::endl; }

std::string Answers::RefusalLine(const Refusal& refusal) const {
  return DumpJson(Json{{"index", next_},
                       {"error", {{"reason", Name(refusal.reason)}, {"message", refusal.message}}}},
                  {.replace = true});
}

std::string Answers::LineOf(const PromptSample& of, const Answer& answer) const {
  const Prompt& prompt = prompts_[of.prompt];
  Json line{{"index", of.prompt}, {"sample", of.sample}};
  if (!prompt.text.empty()) line["prompt"] = prompt.text;
  line["text"] = answer.text;
  line["finish"] = answer.finish;
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array();
  for (const SampledToken& token : answer.tokens) {
    tokens.push_back(token.token);
    logprobs.push_back(token.logprob);
    Json& likeliest = top.emplace_back(Json::array());
    for (const auto& [id, logprob] : token.top) likeliest.push_back({id, logprob});
  }
  line["tokens"] = std::move(tokens);
  line["logprobs"] = std::move(logprobs);
  if (prompt.request.sampling.top > 0) line["top_logprobs"] = std::move(top);
  return DumpJson(line, {.replace = true});
}

}  // namespace millrace
