#include "runtime/run/eval/continuation.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/run/eval/python_text.h"

namespace millrace {
namespace {

// Ids of the context, then of the continuation; `cut` between them.
struct Encoded {
  std::vector<int32_t> ids;
  size_t cut = 0;
};

Encoded EncodeTogether(std::string_view context, std::string_view continuation,
                       const TaskCodec& codec) {
  if (context.empty()) {
    std::vector<int32_t> ids = codec.encode(continuation);
    if (ids.empty() || ids.front() != codec.prefix) ids.insert(ids.begin(), codec.prefix);
    return {std::move(ids), 1};
  }
  const std::string whole = std::string(context) + std::string(continuation);
  std::vector<int32_t> ids = codec.encode(whole);
  const size_t cut = codec.encode(StrippedRight(context)).size();
  return {std::move(ids), cut};
}

}  // namespace

ScoreRow ContinuationRow(std::string_view context, std::string_view continuation,
                         const TaskCodec& codec, const TaskWindow& window, std::string_view what) {
  Encoded encoded = EncodeTogether(context, continuation, codec);
  MR_REQUIRE(ErrorCode::kData, encoded.cut >= 1 && encoded.cut < encoded.ids.size(),
             "{}: {} ids, of which {} are the context's: nothing to score, or nothing before it",
             what, encoded.ids.size(), encoded.cut);
  const size_t scored = encoded.ids.size() - encoded.cut;
  MR_REQUIRE(ErrorCode::kData, static_cast<int64_t>(scored) <= window.seq_len,
             "{}: {} ids are to be scored; a window of model.seq_len = {} scores as many", what,
             scored, window.seq_len);
  const size_t most = static_cast<size_t>(window.seq_len) + 1;
  const size_t kept = std::min(encoded.ids.size(), most);
  return {{encoded.ids.end() - static_cast<std::ptrdiff_t>(kept), encoded.ids.end()},
          static_cast<int64_t>(kept - scored)};
}

std::vector<ScoreRow> RollingRows(const std::vector<int32_t>& ids, int32_t prefix,
                                  int64_t seq_len) {
  std::vector<ScoreRow> rows;
  const auto total = static_cast<int64_t>(ids.size());
  for (int64_t done = 0; done < total;) {
    const int64_t scored = std::min(seq_len, total - done), end = done + scored;
    // A window's ids before the last one that it predicts.
    const int64_t begin = done == 0 ? 0 : end - seq_len - 1;
    ScoreRow row;
    if (done == 0) row.ids.push_back(prefix);
    row.ids.insert(row.ids.end(), ids.begin() + begin, ids.begin() + end);
    row.first = static_cast<int64_t>(row.ids.size()) - scored;
    rows.push_back(std::move(row));
    done = end;
  }
  return rows;
}

}  // namespace millrace
