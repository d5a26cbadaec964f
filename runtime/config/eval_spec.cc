#include "runtime/config/eval_spec.h"

#include <fmt/core.h>

namespace millrace {

EvalSpec SplitSpec(const std::string& spec) {
  const size_t colon = spec.find(':');
  return colon == spec.npos ? EvalSpec{spec, ""}
                            : EvalSpec{spec.substr(0, colon), spec.substr(colon + 1)};
}

bool IsOfText(const std::string& spec) {
  return !(SplitSpec(spec).name == "hellaswag" && spec.ends_with(".bin"));
}

std::string WhyNoTask(const std::string& spec) {
  const auto [name, path] = SplitSpec(spec);
  const auto wrong = [&](const char* why) {
    return fmt::format(
        "the task {} {}; hellaswag:FILE.bin, hellaswag:FILE.jsonl, hellaswag-llmc:FILE.jsonl and "
        "ppl:PATH are allowed",
        spec, why);
  };
  if (name != "hellaswag" && name != "hellaswag-llmc" && name != "ppl")
    return wrong("is not known");
  if (path.empty()) return wrong("names no file");
  if (name == "hellaswag" && !path.ends_with(".bin") && !path.ends_with(".jsonl"))
    return wrong("is neither .bin nor .jsonl");
  if (name == "hellaswag-llmc" && !path.ends_with(".jsonl")) return wrong("is no .jsonl");
  return "";
}

}  // namespace millrace
