// Evaluation tasks (runtime/run/eval) of a session, by its score plan: the forward of training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/record/eval_scores.h"
#include "runtime/run/eval/eval_task.h"
#include "runtime/run/session.h"

namespace millrace {

struct OpenTask {
  std::string name;  // "ppl:FILE": the spec, without the file's folder
  std::unique_ptr<EvalTask> task;
};

// Reads and checks every file. Texts become ids by data.tokenizer. limit: examples of each; 0: all.
// Errors: OpenEvalTask's; kConfig where texts would become other ids than the model's.
std::vector<OpenTask> OpenTasks(const Config& config, const std::vector<std::string>& specs,
                                int64_t limit);

struct TaskResult {
  EvalScores scores;
  std::vector<std::string> examples;  // a line of JSON for each
};

// A collective, with the session's score plan. The same on every rank, and at any micro_batch and
// number of data ranks where the backend's products round a row alike in all of its places (the
// CPU's do with AVX-512; OpenBLAS's for Haswell and Zen do not).
TaskResult ScoreTask(Session& session, const OpenTask& task);

// "acc 0.2859, acc_norm 0.2955 (10042 examples, rules of llm.c)".
std::string InWords(const EvalScores& scores);

}  // namespace millrace
