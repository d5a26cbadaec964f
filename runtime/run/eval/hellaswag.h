// HellaSwag, by the rules of two programs whose figures differ: never compare one's with the
// other's.
//
//   llm.c    "completion style": ids of `ctx` and of " " + ending, each encoded alone; acc_norm by
//            ids. From JSON lines, or from the file of GPT-2's ids that llm.c's dev/data makes:
//            256 i32 {20240522, 1, examples, bytes of the longest, 0...}, then for each example
//            u16 {65535, bytes, index, label, 4, n, context [n], then 4 times n, ending [n]}.
//            GPT-2 124M has 0.2859 / 0.2955 on the 10,042 examples of its validation set.
//   lm-eval  the text is `activity_label: ctx_a Ctx_b`, cleaned of WikiHow's marks; context and
//            " " + ending are encoded together and cut where the context's ids end; a context that
//            is too long loses its front; acc_norm by characters. From JSON lines. GPT-2 124M has
//            0.2892 / 0.3114.
//
// Errors   kData, as eval_task.h. llm.c's rules cut nothing: an example that is longer than a
//          window is one.
#pragma once

#include <memory>
#include <string>

#include "runtime/run/eval/eval_task.h"

namespace millrace {

// `path`: the .bin. All of it is checked. At most `limit` examples, from the front; 0: all.
std::unique_ptr<EvalTask> OpenHellaSwagBin(const std::string& path, const TaskWindow& window,
                                           int64_t limit);

enum class HellaSwagRules { kLlmC, kLmEval };

// `path`: JSON lines with activity_label, ctx_a, ctx_b, ctx, endings, label, of which each rule
// needs its own. At most `limit` examples, from the front; 0: all.
std::unique_ptr<EvalTask> OpenHellaSwagJson(const std::string& path, HellaSwagRules rules,
                                            const TaskCodec& codec, const TaskWindow& window,
                                            int64_t limit);

}  // namespace millrace
