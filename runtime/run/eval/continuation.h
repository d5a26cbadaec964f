// Ids of texts as lm-eval forms them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/run/eval/eval_task.h"

namespace millrace {

// The row that scores `continuation` behind `context`: both are encoded together and cut where the
// ids of the context alone end; blanks at the context's end belong to the continuation; a context
// that is too long loses its front. Without a context it stands behind the codec's prefix.
// Error(kData) naming `what`: nothing to score, or more than a window.
ScoreRow ContinuationRow(std::string_view context, std::string_view continuation,
                         const TaskCodec& codec, const TaskWindow& window, std::string_view what);

// The rows that score each of `ids` once: the first window predicts as many as it can behind the
// prefix, each further one as many behind the id before them; the last, which has fewer left, sees
// a window's worth of ids before them, too.
std::vector<ScoreRow> RollingRows(const std::vector<int32_t>& ids, int32_t prefix, int64_t seq_len);

}  // namespace millrace
