#include "runtime/run/eval/continuation.h"

#include <catch2/catch.hpp>
#include <map>
#include <numeric>

#include "runtime/run/eval/eval_tasks.h"
#include "tests/runtime/data/error_matchers.h"

namespace millrace {
namespace {

using Ids = std::vector<int32_t>;

// Pairs of letters are one id, so that what stands before a text decides its ids.
TaskCodec Pairs() {
  return {[](std::string_view text) {
            Ids ids;
            for (size_t i = 0; i < text.size(); ++i) {
              if (i + 1 < text.size() && text[i] != ' ' && text[i + 1] != ' ') {
                ids.push_back(1000 + text[i] + text[i + 1]);
                ++i;
              } else {
                ids.push_back(text[i]);
              }
            }
            return ids;
          },
          7, "pairs"};
}

ScoreRow Row(std::string_view context, std::string_view continuation, int64_t seq_len = 64) {
  return ContinuationRow(context, continuation, Pairs(), {seq_len, 2000}, "question 3");
}

TEST_CASE("a continuation is cut from the ids of both texts", "[eval]") {
  const ScoreRow row = Row("ab", " cd");
  CHECK(row.ids == Ids{1000 + 'a' + 'b', ' ', 1000 + 'c' + 'd'});
  CHECK(row.first == 1);
  // Encoded together the texts have other ids than alone: as many as the context alone has are its.
  const ScoreRow joined = Row("abc", "def");
  CHECK(joined.ids == Ids{1000 + 'a' + 'b', 1000 + 'c' + 'd', 1000 + 'e' + 'f'});
  CHECK(joined.first == 2);
  const ScoreRow blank = Row("ab  ", "cd");
  CHECK(blank.ids == Ids{1000 + 'a' + 'b', ' ', ' ', 1000 + 'c' + 'd'});
  CHECK(blank.first == 1);
}

TEST_CASE("a context that is too long loses its front", "[eval]") {
  const ScoreRow row = Row("a b c d", " e", 4);
  CHECK(row.ids == Ids{'c', ' ', 'd', ' ', 'e'});
  CHECK(row.first == 3);
  CHECK(Row("a b c d", " e", 6).ids.size() == 7);
  CHECK(Row("a b c d", " e", 2).first == 1);
  RequireError(ErrorCode::kData, {"question 3", "2 ids are to be scored", "seq_len = 1"},
               [] { Row("a b c d", " e", 1); });
}

TEST_CASE("without a context a text stands behind the prefix", "[eval]") {
  const ScoreRow row = Row("", "a b");
  CHECK(row.ids == Ids{7, 'a', ' ', 'b'});
  CHECK(row.first == 1);
  CHECK(Row("", "\x07 b").ids == Ids{7, ' ', 'b'});
  RequireError(ErrorCode::kData, {"question 3", "nothing"}, [] { Row("  ", "a"); });
  RequireError(ErrorCode::kData, {"question 3", "nothing"}, [] { Row("ab", ""); });
}

// By hand, T = 4:  P 0 1 2 | 3     all four scored
//                  3 4 5 6 | 7     behind the one before them
//                  5 6 7 8 | 9     8 and 9 are left: a whole window before the last
TEST_CASE("windows roll over a text so that each id is scored once", "[eval]") {
  Ids ids(10);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<ScoreRow> rows = RollingRows(ids, 99, 4);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].ids == Ids{99, 0, 1, 2, 3});
  CHECK(rows[0].first == 1);
  CHECK(rows[1].ids == Ids{3, 4, 5, 6, 7});
  CHECK(rows[1].first == 1);
  CHECK(rows[2].ids == Ids{5, 6, 7, 8, 9});
  CHECK(rows[2].first == 3);
  for (int64_t n = 0; n <= 40; ++n)
    for (int64_t seq_len = 1; seq_len <= 9; ++seq_len) {
      CAPTURE(n, seq_len);
      Ids all(static_cast<size_t>(n));
      std::iota(all.begin(), all.end(), 0);
      int32_t next = 0;
      for (const ScoreRow& row : RollingRows(all, 99, seq_len)) {
        REQUIRE(static_cast<int64_t>(row.ids.size()) <= seq_len + 1);
        REQUIRE(row.first >= 1);
        for (size_t i = static_cast<size_t>(row.first); i < row.ids.size(); ++i) {
          REQUIRE(row.ids[i] == next);
          REQUIRE(row.ids[i - 1] == (next == 0 ? 99 : next - 1));
          ++next;
        }
      }
      REQUIRE(next == n);
    }
}

}  // namespace
}  // namespace millrace
