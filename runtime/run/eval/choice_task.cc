#include "runtime/run/eval/choice_task.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/run/eval/rows_hash.h"

namespace millrace {
namespace {

class ChoiceTask final : public EvalTask {
 public:
  ChoiceTask(std::string name, std::string rules, std::vector<Question> questions)
      : name_(std::move(name)), rules_(std::move(rules)), questions_(std::move(questions)) {
    for (Question& question : questions_) {
      MR_CHECK(question.answers.size() >= 2 && question.answers.size() == question.lengths.size(),
               "{} answers, {} lengths", question.answers.size(), question.lengths.size());
      for (ScoreRow& row : question.answers) rows_.push_back(std::move(row));
    }
  }

  const std::vector<ScoreRow>& rows() const override { return rows_; }

  EvalScores Judge(std::span<const double> sums) const override {
    EvalScores scores{name_, rules_, static_cast<int64_t>(questions_.size()), Hash(), {}};
    int64_t right = 0, right_norm = 0;
    ForEach(sums, [&](const Question& question, std::span<const double> answers) {
      right += Choice(question, answers, false) == question.label;
      right_norm += Choice(question, answers, true) == question.label;
    });
    AddMean("acc", right, scores);
    AddMean("acc_norm", right_norm, scores);
    return scores;
  }

  std::vector<std::string> Examples(std::span<const double> sums) const override {
    std::vector<std::string> lines;
    ForEach(sums, [&](const Question& question, std::span<const double> answers) {
      lines.push_back(DumpJson(nlohmann::ordered_json{
          {"example", lines.size()},
          {"label", question.label},
          {"choice", Choice(question, answers, false)},
          {"choice_norm", Choice(question, answers, true)},
          {"log_probs", std::vector<double>(answers.begin(), answers.end())}}));
    });
    return lines;
  }

 private:
  template <typename F>
  void ForEach(std::span<const double> sums, F&& fn) const {
    MR_CHECK_EQ(sums.size(), rows_.size(), "sums of rows");
    for (const Question& question : questions_) {
      fn(question, sums.first(question.lengths.size()));
      sums = sums.subspan(question.lengths.size());
    }
  }

  static int64_t Choice(const Question& question, std::span<const double> sums, bool by_length) {
    const auto value = [&](size_t i) {
      return by_length ? sums[i] / question.lengths[i] : sums[i];
    };
    size_t best = 0;
    for (size_t i = 1; i < sums.size(); ++i)
      if (value(i) > value(best)) best = i;
    return static_cast<int64_t>(best);
  }

  static void AddMean(const char* name, int64_t right, EvalScores& scores) {
    const auto n = static_cast<double>(scores.examples);
    const double mean = static_cast<double>(right) / n;
    scores.values.emplace_back(name, mean);
    // Of a sample's mean, with n - 1.
    if (scores.examples > 1)
      scores.values.emplace_back(std::string(name) + "_stderr",
                                 std::sqrt(mean * (1 - mean) / (n - 1)));
  }

  std::string Hash() const {
    std::vector<int64_t> labels;
    for (const Question& question : questions_) labels.push_back(question.label);
    return HashOfRows(rows_, labels);
  }

  std::string name_, rules_;
  std::vector<Question> questions_;  // without their rows
  std::vector<ScoreRow> rows_;       // of all, end to end
};

}  // namespace

std::unique_ptr<EvalTask> MakeChoiceTask(std::string name, std::string rules,
                                         std::vector<Question> questions) {
  return std::make_unique<ChoiceTask>(std::move(name), std::move(rules), std::move(questions));
}

}  // namespace millrace
