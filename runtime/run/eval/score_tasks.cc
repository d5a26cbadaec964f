#include "runtime/run/eval/score_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/counted.h"
#include "runtime/base/error.h"
#include "runtime/config/eval_spec.h"
#include "runtime/run/data/run_tokenizer.h"
#include "runtime/run/eval/eval_tasks.h"
#include "runtime/run/eval/score.h"
#include "runtime/run/eval/tokenizer_codec.h"

namespace millrace {

namespace {

// Ids of bytes mean nothing to a model of other ids, so that a tokenizer is not guessed.
TaskCodec CodecOf(const Config& config, const std::vector<std::string>& specs) {
  const DataConfig& data = config.data;
  const auto text = std::find_if(specs.begin(), specs.end(), IsOfText);
  if (text == specs.end()) return ByteTaskCodec();
  if (data.tokenizer != "bytes") return TokenizerTaskCodec(data.tokenizer);
  MR_REQUIRE(ErrorCode::kConfig, TextIsBytes(config),
             "the task {} is of text, and the model is trained on token files: data.tokenizer must "
             "be the tokenizer.json that they were made with, not bytes; of ids is "
             "hellaswag:FILE.bin alone",
             *text);
  return ByteTaskCodec();
}

}  // namespace

std::vector<OpenTask> OpenTasks(const Config& config, const std::vector<std::string>& specs,
                                int64_t limit) {
  const TaskWindow window{config.model.seq_len, config.model.Vocab()};
  const TaskCodec codec = CodecOf(config, specs);
  std::vector<OpenTask> tasks;
  for (const std::string& spec : specs) {
    std::filesystem::path path = SplitSpec(spec).path;
    if (!path.has_filename()) path = path.parent_path();  // "folder/"
    tasks.push_back({SplitSpec(spec).name + ":" + path.filename().string(),
                     OpenEvalTask(spec, codec, window, limit)});
  }
  return tasks;
}

TaskResult ScoreTask(Session& session, const OpenTask& task) {
  const std::vector<ScoreRow>& rows = task.task->rows();
  std::vector<std::vector<int32_t>> texts;
  texts.reserve(rows.size());
  for (const ScoreRow& row : rows) texts.push_back(row.ids);
  const std::vector<std::vector<double>> log_probs = Score(session, texts, {});
  std::vector<double> sums;
  for (size_t r = 0; r < rows.size(); ++r) {
    MR_CHECK_EQ(log_probs[r].size() + 1, rows[r].ids.size(), "scores of row {}", r);
    double sum = 0;
    for (auto i = static_cast<size_t>(rows[r].first); i < rows[r].ids.size(); ++i)
      sum += log_probs[r][i - 1];
    sums.push_back(sum);
  }
  TaskResult result{task.task->Judge(sums), task.task->Examples(sums)};
  result.scores.task = task.name;
  return result;
}

std::string InWords(const EvalScores& scores) {
  std::vector<std::string> values;
  for (const auto& [name, value] : scores.values)
    if (!name.ends_with("_stderr")) values.push_back(fmt::format("{} {:.4f}", name, value));
  return fmt::format("{} ({}, rules of {})", fmt::join(values, ", "),
                     Counted(scores.examples, "example"), scores.rules);
}

}  // namespace millrace
