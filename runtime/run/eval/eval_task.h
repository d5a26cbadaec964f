// A task that a model is scored on: rows of ids, and what follows from how likely it finds them.
// Nothing here knows of a model; whoever has one gives each row's sum of log-probabilities.
//
// Bits     A row's sum depends on the row alone, whatever rows are scored beside it.
// Errors   kData, naming file and place, for examples that are damaged or do not fit a window.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/record/eval_scores.h"

namespace millrace {

// Of ids [n], 2 <= n <= T + 1, those from `first` on are scored, each given all before it:
// 1 <= first < n.
struct ScoreRow {
  std::vector<int32_t> ids;
  int64_t first = 1;
  int64_t scored() const { return static_cast<int64_t>(ids.size()) - first; }
};

// How texts become ids.
struct TaskCodec {
  std::function<std::vector<int32_t>(std::string_view)> encode;
  // What stands before a text whose first id is scored, too.
  int32_t prefix = 0;
  std::string name;  // for records: "bytes", or a tokenizer's hash
};

// One byte is one id; texts follow kDocumentSeparator, as in training.
TaskCodec ByteTaskCodec();

// What a task's rows have to fit: T and the vocabulary.
struct TaskWindow {
  int64_t seq_len = 0;
  int64_t vocab = 0;
};

class EvalTask {
 public:
  virtual ~EvalTask() = default;
  virtual const std::vector<ScoreRow>& rows() const = 0;
  // sums[r]: the sum of row r's log-probabilities, natural logarithms.
  virtual EvalScores Judge(std::span<const double> sums) const = 0;
  // A line of JSON for each example.
  virtual std::vector<std::string> Examples(std::span<const double> sums) const = 0;
};

}  // namespace millrace
