// What is behind a mr_answers: arrays that live as long as the handle.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/api/c/run_functions.h"
#include "runtime/infer/generate_all.h"

namespace millrace {

struct AnswerArrays {
  struct Answer {
    int64_t request = 0, sample = 0;
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    int64_t top = 0;
    std::vector<int32_t> top_tokens;  // [tokens.size(), top]
    std::vector<float> top_logprobs;
    int32_t finish = MR_FINISH_LENGTH;
    uint64_t weight_version = 0;
  };
  std::vector<Answer> all;
};

// Both are the caller's, for mr_answers_free.
mr_answers* NewAnswers(const std::vector<GeneratedAnswer>& answers);
// Of answers that another library has given, and frees.
mr_answers* CopyOf(const RunFunctions& maker, const mr_answers* answers);

}  // namespace millrace
