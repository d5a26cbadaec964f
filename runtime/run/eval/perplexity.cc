#include "runtime/run/eval/perplexity.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/data/input_file.h"
#include "runtime/data/tokens/token_files.h"
#include "runtime/run/eval/continuation.h"
#include "runtime/run/eval/json_lines.h"
#include "runtime/run/eval/python_text.h"
#include "runtime/run/eval/rows_hash.h"

namespace millrace {
namespace {

constexpr int64_t kLargestText = int64_t{4} << 30;

struct Document {
  int64_t rows = 0, ids = 0, words = 0, bytes = 0;
};

class PerplexityTask final : public EvalTask {
 public:
  PerplexityTask(std::string name, const TaskCodec& codec, const TaskWindow& window)
      : name_(std::move(name)), codec_(codec), window_(window) {}

  void Add(std::string_view text, const std::string& place) {
    RequireUtf8(text, place);
    const std::vector<int32_t> ids = codec_.encode(text);
    MR_REQUIRE(ErrorCode::kData, !ids.empty(), "{}: an empty document has no perplexity", place);
    for (const int32_t id : ids)
      MR_REQUIRE(ErrorCode::kData, id >= 0 && id < window_.vocab,
                 "{}: its text has id {}; the model's vocabulary has ids 0 to {}", place, id,
                 window_.vocab - 1);
    std::vector<ScoreRow> rows = RollingRows(ids, codec_.prefix, window_.seq_len);
    documents_.push_back({static_cast<int64_t>(rows.size()), static_cast<int64_t>(ids.size()),
                          CountWords(text), static_cast<int64_t>(text.size())});
    for (ScoreRow& row : rows) rows_.push_back(std::move(row));
  }

  const std::vector<ScoreRow>& rows() const override { return rows_; }

  EvalScores Judge(std::span<const double> sums) const override {
    double total = 0, words = 0, bytes = 0, ids = 0;
    std::vector<int64_t> counts;
    ForEach(sums, [&](const Document& document, double sum) {
      total += sum;
      words += static_cast<double>(document.words);
      bytes += static_cast<double>(document.bytes);
      ids += static_cast<double>(document.ids);
      counts.insert(counts.end(), {document.words, document.bytes});
    });
    return {name_,
            "lm-eval",
            static_cast<int64_t>(documents_.size()),
            HashOfRows(rows_, counts),
            {{"word_perplexity", std::exp(-total / words)},
             {"byte_perplexity", std::exp(-total / bytes)},
             {"bits_per_byte", -total / bytes / std::log(2.0)},
             {"loss", -total / ids}}};
  }

  std::vector<std::string> Examples(std::span<const double> sums) const override {
    std::vector<std::string> lines;
    ForEach(sums, [&](const Document& document, double sum) {
      lines.push_back(DumpJson(nlohmann::ordered_json{{"example", lines.size()},
                                                      {"log_prob", sum},
                                                      {"ids", document.ids},
                                                      {"words", document.words},
                                                      {"bytes", document.bytes}}));
    });
    return lines;
  }

 private:
  template <typename F>
  void ForEach(std::span<const double> sums, F&& fn) const {
    MR_CHECK_EQ(sums.size(), rows_.size(), "sums of rows");
    size_t row = 0;
    for (const Document& document : documents_) {
      double sum = 0;
      for (int64_t i = 0; i < document.rows; ++i) sum += sums[row++];
      fn(document, sum);
    }
  }

  std::string name_;
  TaskCodec codec_;
  TaskWindow window_;
  std::vector<Document> documents_;
  std::vector<ScoreRow> rows_;
};

}  // namespace

std::unique_ptr<EvalTask> OpenPerplexity(const std::string& path, const TaskCodec& codec,
                                         const TaskWindow& window, int64_t limit) {
  auto task = std::make_unique<PerplexityTask>("ppl", codec, window);
  if (path.ends_with(".jsonl")) {
    ForEachJsonLine(path, limit,
                    [&](const JsonLine& line) { task->Add(line.Text("text"), line.place); });
    return task;
  }
  int64_t taken = 0;
  for (const std::string& file : ListTokenFiles(path, TokenFileKind::kText)) {
    if (limit > 0 && taken++ >= limit) break;
    task->Add(ReadWholeFile(file, kLargestText, ErrorCode::kData), file);
  }
  return task;
}

}  // namespace millrace
