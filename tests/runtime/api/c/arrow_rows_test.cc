// Batches out of a stream of Arrow's: the rows that it has, whatever they lie in, and streams that
// are not what they say.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/runtime/api/c/arrow_source.h"
#include "tests/runtime/api/c/linked.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;

struct Rows {
  explicit Rows(ArrowSource& source, int64_t row_tokens = kRowTokens) : stream(source.Stream()) {
    opened = Take(mr_rows_open(&stream, row_tokens, &rows));
  }
  ~Rows() {
    mr_rows_free(rows);
    if (stream.release != nullptr) stream.release(&stream);
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  mr_batch Next(int64_t sequences) const {
    mr_batch batch = Sized<mr_batch>();
    REQUIRE_CODE(mr_rows_next(rows, sequences, &batch), MR_OK);
    return batch;
  }
  Outcome Refused(int64_t sequences) const {
    mr_batch batch = Sized<mr_batch>();
    batch.sequences = 77;
    Outcome outcome = Take(mr_rows_next(rows, sequences, &batch));
    REQUIRE(batch.sequences == 77);
    return outcome;
  }

  ArrowArrayStream stream;
  mr_rows* rows = nullptr;
  Outcome opened;
};

// Rows [first, first + count) of an endless text: value i of row r.
int32_t TokenAt(int64_t r, int64_t i) {
  return static_cast<int32_t>((r * 7 + i * (r % 5 + 1)) % kVocab);
}
float WeightAt(int64_t r, int64_t i) { return 0.25f * static_cast<float>((3 * r + i) % 7 + 1); }
template <class T, class At>
std::vector<std::vector<T>> RowsOf(int64_t first, int64_t count, int64_t width, At at) {
  std::vector<std::vector<T>> rows;
  for (int64_t r = first; r < first + count; ++r) {
    rows.emplace_back();
    for (int64_t i = 0; i < width; ++i) rows.back().push_back(static_cast<T>(at(r, i)));
  }
  return rows;
}

// Record batches of 4, 0, 1 and 8 rows; `skip` rows and values lie before those that are meant.
template <class Token, class Weight>
ArrowSource TextIn(const std::string& list, const std::string& tokens, const std::string& weights,
                   int64_t skip) {
  const bool is_fixed = list == "+w";
  ArrowSource source;
  source.columns = {{"more", "u", ""},
                    {"tokens", is_fixed ? "+w:9" : list, tokens},
                    {"weights", is_fixed ? "+w:8" : list, weights}};
  int64_t first = 0;
  for (const int64_t rows : {4, 0, 1, 8}) {
    source.records.push_back({.rows = rows,
                              .offset = 0,
                              .columns = {{},
                                          ListsOf(RowsOf<Token>(first, rows, 9, TokenAt), skip),
                                          ListsOf(RowsOf<Weight>(first, rows, 8, WeightAt), skip)},
                              .row_bits = {}});
    first += rows;
  }
  return source;
}

void RequireText(const Rows& rows) {
  REQUIRE(rows.opened.message.empty());
  REQUIRE(rows.stream.release == nullptr);
  int64_t row = 0;
  for (const int64_t sequences : {3, 1, 2, 5, 9}) {  // across the borders of record batches
    const mr_batch batch = rows.Next(sequences);
    REQUIRE(batch.sequences == std::min<int64_t>(sequences, 13 - row));
    REQUIRE((batch.advantages == nullptr && batch.reference_logprobs == nullptr));
    for (int64_t r = 0; r < batch.sequences; ++r, ++row) {
      CAPTURE(row);
      for (int64_t i = 0; i < 9; ++i) REQUIRE(batch.tokens[r * 9 + i] == TokenAt(row, i));
      for (int64_t i = 0; i < 8; ++i) REQUIRE(batch.weights[r * 8 + i] == WeightAt(row, i));
    }
  }
  REQUIRE(row == 13);
  // Behind the end there is no row, and no pointer that means the configuration's data.
  const mr_batch none = rows.Next(2);
  REQUIRE((none.sequences == 0 && none.tokens != nullptr && none.weights != nullptr));
}

TEST_CASE("rows of an Arrow stream come in batches of any size", "[api][c][arrow]") {
  for (const char* list : {"+l", "+L", "+w"})
    for (const int64_t skip : {0, 3}) {
      CAPTURE(list, skip);
      std::vector<ArrowSource> sources;
      sources.push_back(TextIn<int8_t, float>(list, "c", "f", skip));
      sources.push_back(TextIn<uint8_t, double>(list, "C", "g", skip));
      sources.push_back(TextIn<int16_t, float>(list, "s", "f", skip));
      sources.push_back(TextIn<uint16_t, float>(list, "S", "f", skip));
      sources.push_back(TextIn<int32_t, float>(list, "i", "f", skip));
      sources.push_back(TextIn<uint32_t, float>(list, "I", "f", skip));
      sources.push_back(TextIn<int64_t, float>(list, "l", "f", skip));
      sources.push_back(TextIn<uint64_t, float>(list, "L", "f", skip));
      for (size_t s = 0; s < 2 * sources.size(); ++s) {  // aligned, and then not
        ArrowSource& source = sources[s / 2];
        source.given = 0;
        source.shift = s % 2;
        {
          const Rows rows(source);
          RequireText(rows);
          REQUIRE(source.live == 1);  // the stream; what it gave is given back
        }
        REQUIRE(source.live == 0);
      }
    }
}

TEST_CASE("a struct array's offset is its columns', too", "[api][c][arrow]") {
  ArrowSource source = TextIn<int32_t, float>("+L", "i", "f", 2);
  source.records.resize(1);
  source.records[0].rows = 3;
  source.records[0].offset = 1;
  source.records[0].row_bits = {0b1110};
  const Rows rows(source);
  const mr_batch batch = rows.Next(5);
  REQUIRE(batch.sequences == 3);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t i = 0; i < 9; ++i) REQUIRE(batch.tokens[r * 9 + i] == TokenAt(r + 1, i));
  mr_rows* none = nullptr;
  REQUIRE_CODE(mr_rows_open(const_cast<ArrowArrayStream*>(&rows.stream), 9, &none),
               MR_INVALID_ARGUMENT);  // it was moved
}

TEST_CASE("steps on rows of a stream have the bits of steps on arrays", "[api][c][arrow]") {
  const std::string config = R"({"model": {"family": "llama", "layers": 2, "d_model": 20,
      "heads": 2, "ffn": 28, "seq_len": 8, "vocab": 37}, "optimizer": {"lr": 0.01},
      "train": {"steps": 50, "micro_batch": 3, "accumulate": 2, "loss_weights": true}})";
  const Linked by_rows(config), by_arrays(config);
  REQUIRE_CODE(mr_init(by_rows), MR_OK);
  REQUIRE_CODE(mr_init(by_arrays), MR_OK);
  const auto loss = [](mr_run* run, const mr_batch& batch) {
    mr_step_result result = Sized<mr_step_result>();
    REQUIRE_CODE(mr_step(run, &batch, &result), MR_OK);
    return result.loss;
  };
  ArrowSource source = TextIn<int64_t, double>("+l", "l", "g", 1);
  const Rows rows(source);
  for (int64_t step = 0; step < 2; ++step) {
    std::vector<int32_t> tokens;
    std::vector<float> weights;
    for (int64_t r = 6 * step; r < 6 * step + 6; ++r) {
      for (int64_t i = 0; i < 9; ++i) tokens.push_back(TokenAt(r, i));
      for (int64_t i = 0; i < 8; ++i) weights.push_back(WeightAt(r, i));
    }
    mr_batch batch = BatchOf(tokens);
    batch.weights = weights.data();
    const double expected = loss(by_arrays, batch);
    REQUIRE(loss(by_rows, rows.Next(6)) == expected);
    mr_status_free(mr_init(by_arrays));
    weights[13] += 0.25f;  // one weight is another loss
    REQUIRE((step > 0 || loss(by_arrays, batch) != expected));
    mr_status_free(mr_init(by_arrays));
    weights[13] -= 0.25f;
    REQUIRE((step > 0 || loss(by_arrays, batch) == expected));
  }
  // One row is left, and a step needs six; then there are none.
  for (int i = 0; i < 2; ++i) {
    const mr_batch batch = rows.Next(6);
    REQUIRE(batch.sequences == 1 - i);
    REQUIRE_CODE(mr_step(by_rows, &batch, nullptr), MR_INVALID_ARGUMENT);
  }
}

TEST_CASE("streams without the columns are refused, and stay the caller's", "[api][c][arrow]") {
  struct Case {
    std::function<void(ArrowSource&)> make;
    const char* words;
  };
  const std::vector<Case> cases = {
      {[](ArrowSource& s) { s.format = "i"; }, "the format 'i', and no columns"},
      {[](ArrowSource& s) { s.columns[1].name = "text"; }, "no column tokens"},
      {[](ArrowSource& s) { s.columns[0] = s.columns[1]; }, "two columns tokens"},
      {[](ArrowSource& s) { s.columns[1].format = "u"; }, "column tokens has the format 'u'"},
      {[](ArrowSource& s) { s.columns[1].format = "+w:10"; }, "lists of 10; a row has 9"},
      {[](ArrowSource& s) { s.columns[2].format = "+w:9"; }, "weights has lists of 9; a row has 8"},
      {[](ArrowSource& s) { s.columns[1].values = "f"; }, "tokens has values of the format 'f'"},
      {[](ArrowSource& s) { s.columns[1].values = "+l"; }, "tokens has values of the format '+l'"},
      {[](ArrowSource& s) { s.columns[2].values = "e"; }, "weights has values of the format 'e'"},
      {[](ArrowSource& s) { s.columns[2].values = ""; }, "weights has values of the format ''"},
      {[](ArrowSource& s) { s.schema_fails = true; }, "get_schema has failed: nothing is said"},
  };
  for (const Case& one : cases) {
    ArrowSource source = TextIn<int32_t, float>("+w", "i", "f", 0);
    one.make(source);
    {
      const Rows rows(source);
      CAPTURE(one.words, rows.opened.message);
      REQUIRE(rows.opened.code == MR_DATA);
      REQUIRE_THAT(rows.opened.message, Contains(one.words));
      REQUIRE((rows.rows == nullptr && rows.stream.release != nullptr));
      REQUIRE(source.live == 1);
    }
    REQUIRE(source.live == 0);
  }
}

TEST_CASE("rows that are none are refused by column and number", "[api][c][arrow]") {
  struct Case {
    std::function<void(ArrowSource::Records&)> make;  // of the last record batch
    const char* words;
  };
  const std::vector<Case> cases = {
      {[](auto& r) { r.row_bits = {0xfd}; }, "row 6 of column tokens is null"},
      {[](auto& r) {
         r.columns[1].row_bits = {0xfb, 0xff};
       },
       "row 7 of column tokens is null"},
      {[](auto& r) { r.columns[2].value_bits = {0xff, 0xff, 0xff, 0x7f, 255, 255, 255, 255}; },
       "row 8 of column weights has a null at 7"},
      {[](auto& r) { r.columns[1].offsets[4] = 35; }, "row 8 of column tokens has 8 values"},
      {[](auto& r) { r.columns[1].offsets[1] = -9; }, "row 5 of column tokens has values 0 to -9"},
      {[](auto& r) { r.columns[1].offsets[8] = 73; },
       "row 12 of column tokens has values 63 to 73"},
      {[](auto& r) { r.columns[1].values[9 * 8 * 2 + 7] = 0x7f; },
       "row 7 of column tokens has 9151314442816847884"},
      {[](auto& r) { r.columns[2].value_count = -1; }, "column weights is not what its schema"},
      {[](auto& r) { r.columns[1].offset = -1; }, "column tokens is not what its schema"},
      {[](auto& r) { r.columns.pop_back(); }, "record batch is not what its schema"},
  };
  for (const Case& one : cases) {
    ArrowSource source = TextIn<int64_t, float>("+L", "l", "f", 0);
    one.make(source.records.back());
    {
      const Rows rows(source);
      REQUIRE(rows.opened.message.empty());
      REQUIRE(rows.Next(5).sequences == 5);
      const Outcome refused = rows.Refused(8), again = rows.Refused(1);
      CAPTURE(one.words, refused.message);
      REQUIRE(refused.code == MR_DATA);
      REQUIRE_THAT(refused.message, Contains(one.words));
      REQUIRE((again.code == MR_DATA && again.message == refused.message));
    }
    REQUIRE(source.live == 0);
  }
  // Fixed-size lists have values for each row.
  ArrowSource source = TextIn<int32_t, float>("+w", "i", "f", 0);
  --source.records[0].columns[1].value_count;
  const Rows rows(source);
  REQUIRE_THAT(rows.Refused(4).message, Contains("row 3 of column tokens has no values"));
  // A stream that fails says why.
  ArrowSource failing = TextIn<int32_t, float>("+w", "i", "f", 0);
  failing.fails_at = 2;
  failing.last_error = "the file is gone";
  const Rows from(failing);
  REQUIRE(from.Next(4).sequences == 4);
  REQUIRE_THAT(from.Refused(4).message,
               Contains("get_next has failed: the file is gone (Input/output error)"));
}

TEST_CASE("doubles are rounded, and refused beyond float", "[api][c][arrow]") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kMost = std::numeric_limits<float>::max();
  const auto put = [](ArrowSource& source, double value) {  // value 2 of row 5
    std::memcpy(&source.records.back().columns[2].values[2 * sizeof value], &value, sizeof value);
  };
  for (const double value : {1e39, -1e39, std::numeric_limits<double>::max()}) {
    ArrowSource source = TextIn<int32_t, double>("+l", "i", "g", 0);
    put(source, value);
    const Rows rows(source);
    REQUIRE(rows.Next(5).sequences == 5);
    const Outcome refused = rows.Refused(1);
    REQUIRE(refused.code == MR_DATA);
    REQUIRE_THAT(refused.message,
                 Contains("row 5 of column weights has ") && Contains(", which is beyond float"));
  }
  for (const double value : {0.1, 1e-300, kMost, -kMost, kInfinity, -kInfinity}) {
    ArrowSource source = TextIn<int32_t, double>("+l", "i", "g", 0);
    put(source, value);
    const Rows rows(source);
    REQUIRE(rows.Next(6).weights[5 * 8 + 2] == static_cast<float>(value));
  }
}

TEST_CASE("without memory rows are lost, and each later call says so", "[api][c][arrow]") {
  ArrowSource source = TextIn<int32_t, float>("+w", "i", "f", 0);
  source.out_of_memory_at = 2;  // behind the four rows that the call has read by then
  const Rows rows(source);
  for (int i = 0; i < 3; ++i) {
    const Outcome refused = rows.Refused(6);
    REQUIRE((refused.code == MR_DOES_NOT_FIT && refused.message == "out of memory"));
  }
  // Rows that are asked for need none before they come.
  ArrowSource other = TextIn<int32_t, float>("+w", "i", "f", 0);
  const Rows all(other);
  REQUIRE(all.Next(std::numeric_limits<int64_t>::max()).sequences == 13);
}

TEST_CASE("rows that are no handle, or no more, are refused", "[api][c][arrow]") {
  ArrowSource source = TextIn<int32_t, float>("+w", "i", "f", 0);
  Rows rows(source), kept(source);
  mr_rows* const stale = rows.rows;
  mr_rows_free(stale);
  mr_batch batch = Sized<mr_batch>();
  for (mr_rows* none : {static_cast<mr_rows*>(nullptr), stale, reinterpret_cast<mr_rows*>(&batch),
                        reinterpret_cast<mr_rows*>(~uintptr_t{0})}) {
    mr_rows_free(none);
    REQUIRE_CODE(mr_rows_next(none, 1, &batch), MR_INVALID_ARGUMENT);
  }
  REQUIRE(source.live == 1);
  for (const int64_t sequences : {0, -1})
    REQUIRE_THAT(kept.Refused(sequences).message, Contains("allowed is 1 or more"));
  REQUIRE_CODE(mr_rows_next(kept.rows, 1, nullptr), MR_INVALID_ARGUMENT);
  batch.size = 3;
  REQUIRE_CODE(mr_rows_next(kept.rows, 1, &batch), MR_INVALID_ARGUMENT);
  // A program of an older header has room for no more.
  batch.size = offsetof(mr_batch, weights);
  REQUIRE_CODE(mr_rows_next(kept.rows, 1, &batch), MR_OK);
  REQUIRE((batch.tokens[8] == TokenAt(0, 8) && batch.weights == nullptr));
  mr_rows* out = stale;
  REQUIRE_CODE(mr_rows_open(nullptr, 9, &out), MR_INVALID_ARGUMENT);
  REQUIRE(out == nullptr);
  ArrowArrayStream stream = source.Stream();
  REQUIRE_CODE(mr_rows_open(&stream, 9, nullptr), MR_INVALID_ARGUMENT);
  for (const int64_t row_tokens : {int64_t{1}, int64_t{-9}, int64_t{1} << 31})
    REQUIRE_THAT(Take(mr_rows_open(&stream, row_tokens, &out)).message,
                 Contains("row_tokens is " + std::to_string(row_tokens)));
  stream.release(&stream);
}

}  // namespace
}  // namespace millrace::test
