// Texts of evaluations by a tokenizer.json, as lm-eval gives them to a causal model: added tokens
// in a text are tokens, and no template is put around it.
#pragma once

#include <string>

#include "runtime/run/eval/eval_task.h"

namespace millrace {

// The prefix is the first token of the tokenizer's template (a model's BOS), else the one that is
// called <|begin_of_text|>, <s>, <|endoftext|>, <|end_of_text|> or </s>, the first there is.
// Error(kData): the file, or one without any of these.
// Threads  The codec and its copies share a cache: one at a time.
TaskCodec TokenizerTaskCodec(const std::string& path);

}  // namespace millrace
