// What a model scores in an evaluation task (runtime/run/eval).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

struct EvalScores {
  std::string task;   // "hellaswag:FILE.jsonl", without the file's folder
  std::string rules;  // "llm.c", "lm-eval"
  int64_t examples = 0;
  std::string hash;  // of what was scored: figures of other hashes are of other examples
  std::vector<std::pair<std::string, double>> values;  // "acc", ...
};

}  // namespace millrace
