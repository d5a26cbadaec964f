#include "tools/cli/mpirun_words.h"

#include <array>
#include <regex>

namespace millrace {
namespace {

constexpr size_t kLongest = 400;

// Each begins a line.
constexpr std::array<std::string_view, 5> kEnded = {
    "MPI_ABORT was invoked on rank", "mpirun detected that one or more processes exited",
    "mpirun noticed that process rank", "ORTE has lost communication with a remote daemon",
    "ORTE was unable to reliably start one or more daemons"};

}  // namespace

void MpirunWords::Read(std::string_view text) {
  for (const char c : text) {
    if (c == '\n') {
      ReadLine();
      line_.clear();
    } else if (line_.size() < kLongest) {
      line_ += c;
    }
  }
}

void MpirunWords::ReadLine() {
  for (const std::string_view sentence : kEnded) ended_ = ended_ || line_.starts_with(sentence);
  nameless_ = nameless_ || line_.starts_with(kEnded.back());
  static const std::regex named(R"(^\s+(?:Remote daemon:.* on node|Peer host:)\s+(\S+)$)");
  // "mpirun noticed that process rank 1 with PID 0 on node elm exited on signal 9 (Killed)."
  static const std::regex noticed(R"(^mpirun noticed that process rank (\d{1,9}) .*)");
  std::smatch match;
  if (!lost_rank_ && std::regex_match(line_, match, noticed)) lost_rank_ = std::stoi(match[1]);
  if (host_.empty() && std::regex_match(line_, match, named)) host_ = match[1];
}

std::string MpirunWords::lost_host() const {
  if (!host_.empty()) return "host " + host_;
  return nameless_ ? "a host" : "";
}

}  // namespace millrace
