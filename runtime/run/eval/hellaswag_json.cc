#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/run/eval/choice_task.h"
#include "runtime/run/eval/continuation.h"
#include "runtime/run/eval/hellaswag.h"
#include "runtime/run/eval/json_lines.h"
#include "runtime/run/eval/python_text.h"

namespace millrace {
namespace {

// Of WikiHow's marks.
std::string Cleaned(std::string_view text) {
  return Replaced(WithoutBrackets(Replaced(Stripped(text), " [title]", ". ")), "  ", " ");
}

Question ByLmEval(const JsonLine& line, const TaskCodec& codec, const TaskWindow& window) {
  const std::string activity = line.Text("activity_label"), begin = line.Text("ctx_a");
  const std::string context =
      Cleaned(activity + ": " + begin + " " + Capitalized(line.Text("ctx_b")));
  Question question;
  for (const std::string& ending : line.Texts("endings")) {
    const std::string answer = Cleaned(ending);
    MR_REQUIRE(ErrorCode::kData, !answer.empty(), "{}: an ending is empty", line.place);
    question.answers.push_back(ContinuationRow(context, " " + answer, codec, window, line.place));
    question.lengths.push_back(static_cast<double>(CountCharacters(answer)));
  }
  return question;
}

Question ByLlmC(const JsonLine& line, const TaskCodec& codec, const TaskWindow& window) {
  const std::vector<int32_t> context = codec.encode(line.Text("ctx"));
  MR_REQUIRE(ErrorCode::kData, !context.empty(), "{}: ctx is empty", line.place);
  Question question;
  for (const std::string& ending : line.Texts("endings")) {
    const std::vector<int32_t> answer = codec.encode(" " + ending);
    ScoreRow row{context, static_cast<int64_t>(context.size())};
    row.ids.insert(row.ids.end(), answer.begin(), answer.end());
    MR_REQUIRE(ErrorCode::kData, static_cast<int64_t>(row.ids.size()) <= window.seq_len + 1,
               "{}: {} ids; a window of model.seq_len = {} holds {}, and llm.c's rules cut nothing",
               line.place, row.ids.size(), window.seq_len, window.seq_len + 1);
    question.lengths.push_back(static_cast<double>(answer.size()));
    question.answers.push_back(std::move(row));
  }
  return question;
}

void RequireIds(const Question& question, const JsonLine& line, const TaskWindow& window) {
  for (const ScoreRow& row : question.answers)
    for (const int32_t id : row.ids)
      MR_REQUIRE(ErrorCode::kData, id >= 0 && id < window.vocab,
                 "{}: its text has id {}; the model's vocabulary has ids 0 to {}", line.place, id,
                 window.vocab - 1);
}

}  // namespace

std::unique_ptr<EvalTask> OpenHellaSwagJson(const std::string& path, HellaSwagRules rules,
                                            const TaskCodec& codec, const TaskWindow& window,
                                            int64_t limit) {
  std::vector<Question> questions;
  ForEachJsonLine(path, limit, [&](const JsonLine& line) {
    Question question = rules == HellaSwagRules::kLmEval ? ByLmEval(line, codec, window)
                                                         : ByLlmC(line, codec, window);
    question.label = line.Integer("label");
    const auto answers = static_cast<int64_t>(question.answers.size());
    MR_REQUIRE(ErrorCode::kData, answers >= 2, "{}: {} endings; at least 2 are expected",
               line.place, answers);
    MR_REQUIRE(ErrorCode::kData, question.label >= 0 && question.label < answers,
               "{}: label {}; 0 to {} are expected", line.place, question.label, answers - 1);
    RequireIds(question, line, window);
    questions.push_back(std::move(question));
  });
  return MakeChoiceTask("hellaswag", rules == HellaSwagRules::kLmEval ? "lm-eval" : "llm.c",
                        std::move(questions));
}

}  // namespace millrace
