// What the tests of mr_generate and mr_stream share: requests, and answers as values.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/runtime/api/c/linked.h"

namespace millrace::test {

inline mr_run_options WithInference(const std::string& config) {
  mr_run_options options = OptionsOf(config);
  options.use_inference = 1;
  return options;
}

struct Answer {
  int64_t request, sample;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int32_t finish;
  uint64_t version;
  int64_t top;
  std::vector<int32_t> top_tokens;  // [tokens.size(), top]
  std::vector<float> top_logprobs;
};

// All answers to the requests; `outcome` is the call's.
inline std::vector<Answer> Generate(mr_run* run, const std::vector<mr_request>& requests,
                                    Outcome* outcome) {
  std::vector<const mr_request*> pointers;
  for (const mr_request& request : requests) pointers.push_back(&request);
  mr_answers* answers = nullptr;
  *outcome = Take(mr_generate(run, pointers.data(), std::ssize(pointers), &answers));
  const std::unique_ptr<mr_answers, decltype(&mr_answers_free)> owned(answers, mr_answers_free);
  std::vector<Answer> all;
  for (int64_t i = 0; i < mr_answers_count(answers); ++i) {
    mr_answer answer = Sized<mr_answer>();
    mr_status_free(mr_answers_get(answers, i, &answer));
    all.push_back({answer.request,
                   answer.sample,
                   {answer.tokens, answer.tokens + answer.count},
                   {answer.logprobs, answer.logprobs + answer.count},
                   answer.finish,
                   answer.weight_version,
                   answer.top,
                   {answer.top_tokens, answer.top_tokens + answer.count * answer.top},
                   {answer.top_logprobs, answer.top_logprobs + answer.count * answer.top}});
  }
  mr_answer none = Sized<mr_answer>();
  REQUIRE_CODE(mr_answers_get(answers, std::ssize(all), &none), MR_INVALID_ARGUMENT);
  return all;
}
inline std::vector<Answer> Generate(mr_run* run, const std::vector<mr_request>& requests) {
  Outcome outcome;
  std::vector<Answer> answers = Generate(run, requests, &outcome);
  INFO(outcome.message);
  REQUIRE(outcome.code == MR_OK);
  return answers;
}

// Kept by the caller while it is used.
inline mr_request RequestOf(const std::vector<int32_t>& prompt, int64_t tokens, float temperature) {
  mr_request request = Sized<mr_request>();
  request.prompt = prompt.data();
  request.prompt_tokens = std::ssize(prompt);
  request.max_tokens = tokens;
  request.temperature = temperature;
  request.seed = 7;
  return request;
}

}  // namespace millrace::test
