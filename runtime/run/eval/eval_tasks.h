// Tasks by what they are called (runtime/config/eval_spec.h).
#pragma once

#include <memory>
#include <string>

#include "runtime/run/eval/eval_task.h"

namespace millrace {

// Error(kConfig) for a task that there is not, Error(kData) for its files. limit: examples, from
// the front; 0: all.
std::unique_ptr<EvalTask> OpenEvalTask(const std::string& spec, const TaskCodec& codec,
                                       const TaskWindow& window, int64_t limit);

}  // namespace millrace
