#include "tools/cli/launch/last_words.h"

#include <fmt/core.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "tools/cli/terminal/log_file.h"

namespace millrace {
namespace {

struct RankError {
  int rank = 0;
  std::string path;
  LoggedError error;
};

// The first of all ranks.
std::optional<RankError> FirstError(const std::string& logs, const std::string& began) {
  std::optional<RankError> first;
  std::error_code ignored;
  for (int rank = 0; std::filesystem::exists(logs + "/" + LogName(rank), ignored); ++rank) {
    const std::string path = logs + "/" + LogName(rank);
    std::optional<LoggedError> error =
        LastErrorOf(LastLinesOf(path, ProgramLog::kLastLines + 1, began));
    if (error && (!first || error->time < first->error.time))
      first = {rank, path, std::move(*error)};
  }
  return first;
}

}  // namespace

void ShowLastWords(const Verdict& verdict, const std::string& logs, const std::string& began,
                   ProgramLog& log) {
  if (verdict.lost_rank && !logs.empty()) {
    const std::string path = logs + "/" + LogName(*verdict.lost_rank);
    log.ShowLinesOfRank(*verdict.lost_rank, path, LastLinesOf(path, ProgramLog::kLastLines, began));
  }
  if (!verdict.unsaid) return;
  const std::optional<RankError> found = logs.empty() ? std::nullopt : FirstError(logs, began);
  if (found) log.ShowLinesOfRank(found->rank, found->path, found->error.before);
  log.Write(LogLevel::kError, LogScope::kAllRanks,
            found
                ? fmt::format("rank {}: {}", found->rank, found->error.text)
                : fmt::format("{}; what the rank said is lost, and no log has it", verdict.reason));
}

}  // namespace millrace
