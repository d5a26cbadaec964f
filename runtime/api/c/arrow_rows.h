// What is behind a mr_rows: a stream of Arrow's, and as many of its rows as a batch has.
//
// A stream gives record batches: struct arrays with a child for each column, of any number of rows.
// Rows of a batch are copied out of as many of them as it takes, and a record batch is given back
// when its last row is out.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/api/c/millrace.h"
#include "runtime/api/c/millrace_arrow.h"

namespace millrace {

// A struct of Arrow's with what it refers to, released at its end.
template <class T>
struct ArrowOwned {
  T value{};

  ArrowOwned() = default;
  ArrowOwned(const ArrowOwned&) = delete;
  ArrowOwned& operator=(const ArrowOwned&) = delete;
  ~ArrowOwned() { Release(); }
  void Release() {
    if (value.release != nullptr) value.release(&value);
    value.release = nullptr;
  }
};

// A column whose rows are lists of numbers, as a schema says.
struct ArrowColumn {
  enum class List { kFixed, kOffsets32, kOffsets64 };
  int64_t child = -1;  // of the struct; -1: there is none
  std::string name;
  List list = List::kFixed;
  char values = 'i';  // Arrow's letter
  int64_t width = 0;  // values of a row
};

class ArrowRows {
 public:
  // Moves the stream if it returns. Error(kData): its columns are not those of mr_rows_open.
  ArrowRows(ArrowArrayStream* stream, int64_t row_tokens);

  // As mr_rows_next; what lies in the batch lives until the next call. Error(kData). Whatever it
  // throws, it throws at each later call.
  mr_batch Next(int64_t sequences);

  std::mutex one_call;

 private:
  // Those of mr_batch, in its order.
  static constexpr std::array kValues = {"weights", "advantages", "old_logprobs",
                                         "reference_logprobs"};

  mr_batch ReadNext(int64_t sequences);
  bool Advance();             // to the stream's next record batch; false: there is none
  void CheckRecords() const;  // that they are what the schema says

  ArrowOwned<ArrowArrayStream> stream_;
  ArrowColumn tokens_;
  std::array<ArrowColumn, kValues.size()> values_;
  int64_t children_ = 0;  // columns of the stream

  ArrowOwned<ArrowArray> records_;
  int64_t read_ = 0;  // rows of `records_` that are out
  int64_t row_ = 0;   // of the stream, of the next one
  bool ended_ = false;
  std::exception_ptr failed_;

  std::vector<int32_t> token_rows_;
  std::array<std::vector<float>, kValues.size()> value_rows_;
};

}  // namespace millrace
