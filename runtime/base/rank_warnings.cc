#include "runtime/base/rank_warnings.h"

#include <algorithm>
#include <utility>

#include "runtime/base/rank_list.h"

namespace millrace {
namespace {

constexpr char kSeparator = '\x1e';  // ASCII's own for records

}  // namespace

void RankWarnings::Add(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const auto add = [&](const std::string& warning) {
    if (std::find(waiting_.begin(), waiting_.end(), warning) == waiting_.end())
      waiting_.push_back(warning);
  };
  if (waiting_.size() < kMost)
    add(text);
  else
    add("more warnings than are shown; the logs have them all");
}

std::vector<std::string> RankWarnings::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

std::string PackWarnings(const std::vector<std::string>& warnings) {
  std::string packed;
  for (std::string text : warnings) {
    std::replace(text.begin(), text.end(), kSeparator, ' ');
    packed += text + kSeparator;
  }
  return packed;
}

std::vector<std::string> WarningsTogether(const std::vector<std::string>& by_rank) {
  std::vector<std::pair<std::string, std::vector<int>>> ranks_of;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string& packed = by_rank[rank];
    for (size_t begin = 0, end; (end = packed.find(kSeparator, begin)) != packed.npos;
         begin = end + 1) {
      const std::string text = packed.substr(begin, end - begin);
      auto found = std::find_if(ranks_of.begin(), ranks_of.end(),
                                [&](const auto& entry) { return entry.first == text; });
      if (found == ranks_of.end()) found = ranks_of.insert(found, {text, {}});
      found->second.push_back(static_cast<int>(rank));
    }
  }
  std::vector<std::string> together;
  for (const auto& [text, ranks] : ranks_of)
    together.push_back(ranks.size() == by_rank.size() ? text : RanksText(ranks) + ": " + text);
  return together;
}

}  // namespace millrace
