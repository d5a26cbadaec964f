#include "runtime/api/c/answers.h"

#include <fmt/core.h>

#include <iterator>
#include <memory>
#include <utility>

#include "runtime/api/c/handle_table.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"

namespace millrace {
namespace {

HandleTable<mr_answers, AnswerArrays>& Handles() {
  return HandleTable<mr_answers, AnswerArrays>::Get();
}

}  // namespace

mr_answers* NewAnswers(const std::vector<GeneratedAnswer>& answers) {
  auto arranged = std::make_shared<AnswerArrays>();
  for (size_t r = 0; r < answers.size(); ++r) {
    if (answers[r].refusal) throw CallError(MR_INTERNAL, answers[r].refusal->message);
    for (size_t s = 0; s < answers[r].samples.size(); ++s) {
      const GeneratedSample& sample = answers[r].samples[s];
      AnswerArrays::Answer& answer = arranged->all.emplace_back();
      answer.request = static_cast<int64_t>(r);
      answer.sample = static_cast<int64_t>(s);
      for (const SampledToken& token : sample.tokens) {
        answer.tokens.push_back(token.token);
        answer.logprobs.push_back(token.logprob);
        answer.top = std::ssize(token.top);  // of each token the same
        for (const auto& [likely, logprob] : token.top) {
          answer.top_tokens.push_back(likely);
          answer.top_logprobs.push_back(logprob);
        }
      }
      answer.finish = sample.finish == FinishReason::kStop ? MR_FINISH_STOP : MR_FINISH_LENGTH;
      answer.weight_version = sample.weight_version;
    }
  }
  return Handles().Add(std::move(arranged));
}

mr_answers* CopyOf(const RunFunctions& maker, const mr_answers* answers) {
  auto copy = std::make_shared<AnswerArrays>();
  for (int64_t i = 0, count = maker.mr_answers_count(answers); i < count; ++i) {
    mr_answer from{};
    from.size = sizeof from;
    if (mr_status* const status = maker.mr_answers_get(answers, i, &from)) {
      const CallError error(mr_status_code(status), mr_status_message(status));
      mr_status_free(status);
      throw error;
    }
    copy->all.push_back(
        {.request = from.request,
         .sample = from.sample,
         .tokens = {from.tokens, from.tokens + from.count},
         .logprobs = {from.logprobs, from.logprobs + from.count},
         .top = from.top,
         .top_tokens = {from.top_tokens, from.top_tokens + from.count * from.top},
         .top_logprobs = {from.top_logprobs, from.top_logprobs + from.count * from.top},
         .finish = from.finish,
         .weight_version = from.weight_version});
  }
  return Handles().Add(std::move(copy));
}

}  // namespace millrace

int64_t mr_answers_count(const mr_answers* answers) {
  const auto found = millrace::Handles().Find(answers);
  return found ? std::ssize(found->all) : 0;
}

mr_status* mr_answers_get(const mr_answers* answers, int64_t index, mr_answer* answer) {
  return millrace::Guarded([&] {
    const auto found = millrace::Handles().Require(answers, "answers");
    millrace::RequireSized(answer, "answer");
    if (index < 0 || index >= std::ssize(found->all))
      throw millrace::CallError(
          MR_INVALID_ARGUMENT, fmt::format("index is {}, of {} answers", index, found->all.size()));
    const millrace::AnswerArrays::Answer& of = found->all[static_cast<size_t>(index)];
    millrace::WriteSized(mr_answer{.size = 0,
                                   .request = of.request,
                                   .sample = of.sample,
                                   .tokens = of.tokens.data(),
                                   .logprobs = of.logprobs.data(),
                                   .count = static_cast<int64_t>(of.tokens.size()),
                                   .finish = of.finish,
                                   .weight_version = of.weight_version,
                                   .top = of.top,
                                   .top_tokens = of.top == 0 ? nullptr : of.top_tokens.data(),
                                   .top_logprobs = of.top == 0 ? nullptr : of.top_logprobs.data()},
                         answer);
  });
}

void mr_answers_free(mr_answers* answers) { millrace::Handles().Remove(answers); }
