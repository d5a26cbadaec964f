#include "runtime/run/eval/eval_tasks.h"

#include "runtime/base/error.h"
#include "runtime/config/eval_spec.h"
#include "runtime/data/tokens/token_files.h"
#include "runtime/run/eval/hellaswag.h"
#include "runtime/run/eval/perplexity.h"

namespace millrace {
TaskCodec ByteTaskCodec() {
  return {[](std::string_view text) {
            std::vector<int32_t> ids;
            ids.reserve(text.size());
            for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
            return ids;
          },
          kDocumentSeparator, "bytes"};
}

std::unique_ptr<EvalTask> OpenEvalTask(const std::string& spec, const TaskCodec& codec,
                                       const TaskWindow& window, int64_t limit) {
  const std::string wrong = WhyNoTask(spec);
  MR_REQUIRE(ErrorCode::kConfig, wrong.empty(), "{}", wrong);
  const auto [name, path] = SplitSpec(spec);
  if (name == "ppl") return OpenPerplexity(path, codec, window, limit);
  if (path.ends_with(".bin")) return OpenHellaSwagBin(path, window, limit);
  return OpenHellaSwagJson(path,
                           name == "hellaswag" ? HellaSwagRules::kLmEval : HellaSwagRules::kLlmC,
                           codec, window, limit);
}

}  // namespace millrace
