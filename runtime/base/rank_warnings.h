// Warnings that wait until ranks meet, so that what several ranks have is said once: "disk full"
// where all have it, "ranks 1, 3-5: disk full" where some do.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace millrace {

// Of one rank. Any thread.
class RankWarnings {
 public:
  // One that waits already is not added again. Nor is any beyond kMost, in whose place one says
  // that there were more.
  void Add(const std::string& text);
  std::vector<std::string> Take();

  static constexpr size_t kMost = 50;

 private:
  std::mutex mutex_;
  std::vector<std::string> waiting_;
};

// For an exchange between ranks: "" for none.
std::string PackWarnings(const std::vector<std::string>& warnings);

// What there is to say, given each rank's PackWarnings: the texts in the order in which ranks have
// them, rank 0's first, each once, and with its ranks unless all have it.
std::vector<std::string> WarningsTogether(const std::vector<std::string>& by_rank);

}  // namespace millrace
