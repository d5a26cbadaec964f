// What `generate` is asked for, from the command line and from a file of JSON lines.
#pragma once

#include <string>
#include <vector>

#include "runtime/infer/request.h"
#include "tools/cli/text.h"
#include "tools/cli/verbs.h"

namespace millrace {

struct Prompt {
  std::string text;  // "" where tokens were given
  GenerationRequest request;
  bool has_length = false;        // max_tokens was given; else they are kDefaultTokens
  std::vector<std::string> stop;  // texts, or names of tokens
};

// Those of --prompt, in order, then those of --file. A line of the file is an object: "prompt" (a
// text, or tokens) and, in place of the command line's words, "max_tokens", "temperature", "top_k",
// "top_p", "min_p", "seed", "samples", "stop" (a text or several) and "logprobs".
// Error(kConfig): an empty --prompt. Error(kData): the file cannot be read, or a line of it is not
// that; it names file and line. Whether a model can do it is RefusalOf's to say.
std::vector<Prompt> PromptsOf(const GenerateArguments& arguments, const TextCodec& codec);

}  // namespace millrace
