// Questions with a few answers, of which the likeliest is chosen: HellaSwag.
//
//   acc       the largest sum of log-probabilities of an answer's ids
//   acc_norm  the largest sum over a length: ids (llm.c) or characters (lm-eval)
//
// Among equals the first. Both are means over all questions; *_stderr is the standard error.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/run/eval/eval_task.h"

namespace millrace {

struct Question {
  std::vector<ScoreRow> answers;  // at least 2
  std::vector<double> lengths;    // of each, above 0
  int64_t label = 0;              // the right one
};

std::unique_ptr<EvalTask> MakeChoiceTask(std::string name, std::string rules,
                                         std::vector<Question> questions);

}  // namespace millrace
