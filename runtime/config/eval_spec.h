// What an evaluation task is called, on the command line and in `eval.tasks`:
//
//   hellaswag:FILE.bin           llm.c's file of GPT-2's ids, by llm.c's rules
//   hellaswag:FILE.jsonl         JSON lines, by lm-eval's rules
//   hellaswag-llmc:FILE.jsonl    JSON lines, by llm.c's rules
//   ppl:PATH                     perplexity of texts, by lm-eval's rules
#pragma once

#include <string>

namespace millrace {

struct EvalSpec {
  std::string name, path;  // "hellaswag", "FILE.bin"
};
EvalSpec SplitSpec(const std::string& spec);

// Whether its examples are text that must become ids; llm.c's file has ids.
bool IsOfText(const std::string& spec);

// "" if `spec` is one of these; else what is wrong with it and what is allowed.
std::string WhyNoTask(const std::string& spec);

}  // namespace millrace
