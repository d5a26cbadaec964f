// mr_stream; mr_generate, and what it gives: arrays that live as long as the handle.
#include <fmt/core.h>

#include <memory>
#include <vector>

#include "runtime/api/c/handles.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"

using millrace::CallError;

struct mr_answers {
  struct Answer {
    int64_t request = 0, sample = 0;
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    int32_t finish = MR_FINISH_LENGTH;
    uint64_t weight_version = 0;
  };
  std::vector<Answer> all;
};

namespace {

std::unique_ptr<mr_answers> Arranged(const std::vector<millrace::GeneratedAnswer>& answers) {
  auto arranged = std::make_unique<mr_answers>();
  for (size_t r = 0; r < answers.size(); ++r) {
    if (answers[r].refusal) throw CallError(MR_INTERNAL, answers[r].refusal->message);
    for (size_t s = 0; s < answers[r].samples.size(); ++s) {
      const millrace::GeneratedSample& sample = answers[r].samples[s];
      mr_answers::Answer& answer = arranged->all.emplace_back();
      answer.request = static_cast<int64_t>(r);
      answer.sample = static_cast<int64_t>(s);
      for (const millrace::SampledToken& token : sample.tokens) {
        answer.tokens.push_back(token.token);
        answer.logprobs.push_back(token.logprob);
      }
      answer.finish =
          sample.finish == millrace::FinishReason::kStop ? MR_FINISH_STOP : MR_FINISH_LENGTH;
      answer.weight_version = sample.weight_version;
    }
  }
  return arranged;
}

}  // namespace

mr_status* mr_generate(mr_run* run, const mr_request* const* requests, int64_t count,
                       mr_answers** out) {
  if (out != nullptr) *out = nullptr;
  return millrace::Guarded([&] {
    const millrace::RunCall call(run);
    if (out == nullptr) throw CallError(MR_INVALID_ARGUMENT, "out is NULL");
    *out = Arranged(call->Generate(requests, count)).release();
  });
}

mr_status* mr_stream(mr_run* run, const mr_request* const* requests, int64_t count,
                     const mr_stream_options* options) {
  return millrace::Guarded([&] {
    const millrace::RunCall call(run);
    call->Stream(requests, count, options);
  });
}

int64_t mr_answers_count(const mr_answers* answers) {
  return answers == nullptr ? 0 : static_cast<int64_t>(answers->all.size());
}

mr_status* mr_answers_get(const mr_answers* answers, int64_t index, mr_answer* answer) {
  return millrace::Guarded([&] {
    millrace::RequireSized(answer, "answer");
    if (index < 0 || index >= mr_answers_count(answers))
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("index is {}, of {} answers", index, mr_answers_count(answers)));
    const mr_answers::Answer& of = answers->all[static_cast<size_t>(index)];
    millrace::WriteSized(mr_answer{.size = 0,
                                   .request = of.request,
                                   .sample = of.sample,
                                   .tokens = of.tokens.data(),
                                   .logprobs = of.logprobs.data(),
                                   .count = static_cast<int64_t>(of.tokens.size()),
                                   .finish = of.finish,
                                   .weight_version = of.weight_version},
                         answer);
  });
}

void mr_answers_free(mr_answers* answers) { delete answers; }
