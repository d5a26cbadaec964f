// What an evaluation was made of, for its record.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/hash.h"
#include "runtime/run/eval/eval_task.h"

namespace millrace {

// Hash128 of all ids, of which are scored, and of `labels`.
inline std::string HashOfRows(const std::vector<ScoreRow>& rows, std::span<const int64_t> labels) {
  Hasher128 hash;
  for (const ScoreRow& row : rows) {
    const int64_t sizes[] = {static_cast<int64_t>(row.ids.size()), row.first};
    hash.Update(sizes, sizeof sizes);
    hash.Update(row.ids.data(), static_cast<int64_t>(row.ids.size() * sizeof(int32_t)));
  }
  hash.Update(labels.data(), static_cast<int64_t>(labels.size_bytes()));
  return hash.Hex();
}

}  // namespace millrace
