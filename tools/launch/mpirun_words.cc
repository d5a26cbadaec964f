#include "tools/launch/mpirun_words.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <regex>
#include <utility>

namespace millrace {
namespace {

constexpr size_t kRule = 74;            // dashes of a frame's first and last line
constexpr size_t kLongest = 2000;       // no frame of mpirun's is longer
constexpr size_t kLongestRemark = 400;  // of a line
constexpr std::string_view kAnnouncement = "\x1emillrace-rank ", kEnding = "\x1emillrace-end ";
constexpr size_t kLongestAnnouncement = 64;
constexpr size_t kTokenDigits = 16;
std::string own_token;  // of the launcher that this process is a rank of; "": of none
// Of a daemon that ended while its ranks ran, Open MPI says the same as of one that never started.
constexpr std::string_view kUnstarted = "ORTE was unable to reliably start one or more daemons";
constexpr std::string_view kPeerLost =
    "An MPI communication peer process has unexpectedly disconnected";
// How the text of a frame begins. All but a peer's loss, which a rank says, are the end of the job.
constexpr std::array<std::string_view, 9> kKnown = {
    "Primary job ",
    "mpirun detected that ",
    "mpirun noticed that ",
    "mpiexec detected that ",
    "mpiexec noticed that ",
    "MPI_ABORT was invoked on rank",
    "ORTE has lost communication with a remote daemon",
    kPeerLost,
    kUnstarted};

void Say(const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

// Whether words of mpirun's begin where `text` begins. kNo: none do, nor in its first `length`
// characters. kBegun: more text decides. kWhole: `length` characters are such words.
enum class Fit { kNo, kBegun, kWhole };
struct Match {
  Fit fit = Fit::kNo;
  size_t length = 1;
};

Match MatchFrame(std::string_view text) {
  const size_t dashes = std::min(text.find_first_not_of('-'), text.size());
  if (dashes > kRule) return {Fit::kNo, dashes - kRule};
  if (dashes == text.size()) return {Fit::kBegun};
  if (dashes < kRule || text[kRule] != '\n') return {Fit::kNo, dashes};
  const std::string_view body = text.substr(kRule + 1);
  if (std::none_of(kKnown.begin(), kKnown.end(), [&](std::string_view known) {
        return known.substr(0, body.size()) == body.substr(0, known.size());
      }))
    return {Fit::kNo, kRule};
  const size_t end = body.find(std::string(kRule, '-'));
  if (end == body.npos || end + kRule == body.size()) return {Fit::kBegun};
  if (body[end + kRule] != '\n') return {Fit::kNo, kRule};
  return {Fit::kWhole, kRule + 1 + end + kRule + 1};
}

Match MatchAnnouncement(std::string_view text) {
  static const std::regex whole(
      "\x1emillrace-(?:rank [0-9a-f]{16} \\d{1,6} \\d{1,6} \\d{1,9}|end [0-9a-f]{16} \\d{1,3})\n");
  const size_t end = text.substr(0, kLongestAnnouncement).find('\n');
  if (end != text.npos && std::regex_match(text.begin(), text.begin() + end + 1, whole))
    return {Fit::kWhole, end + 1};
  const auto begins = [&](std::string_view known) {
    return known.substr(0, text.size()) == text.substr(0, known.size());
  };
  const bool begun = end == text.npos && text.size() < kLongestAnnouncement &&
                     (begins(kAnnouncement) || begins(kEnding));
  return {begun ? Fit::kBegun : Fit::kNo};
}

// Whether a line begins with "[east-7:13504] ", with which Open MPI says something for itself, or
// is the beginning of that.
bool HasSource(std::string_view line) {
  if (line.front() != '[') return false;
  const size_t end = line.find_first_of("[] \n", 1);
  if (end == line.npos) return true;
  return line[end] == ']' && line.substr(0, end).find(':') != line.npos &&
         (end + 1 == line.size() || line[end + 1] == ' ');
}

Match MatchRemark(std::string_view text) {
  constexpr std::string_view kForwarding = "mpirun: Forwarding signal ";
  static const std::regex whole(
      R"re(mpirun: Forwarding signal \d+ to job\n|\[[^\]\s]+:\d+\] (?:)re"
      R"re(\d+ more process(?:es)? ha(?:s|ve) sent help message[^\n]*|)re"
      R"re(Set MCA parameter "orte_base_help_aggregate"[^\n]*|)re"
      R"re(\[\[\d+,\d+\],\d+\] ORTE_ERROR_LOG: [^\n]* in file \S*show_help\.c )re"
      R"re(at line \d+)\n)re");
  const std::string_view line = text.substr(0, kLongestRemark);
  const bool forwards = kForwarding.substr(0, line.size()) == line.substr(0, kForwarding.size());
  if (!forwards && !HasSource(line)) return {};
  const size_t end = line.find('\n');
  if (end == line.npos) return {line.size() < kLongestRemark ? Fit::kBegun : Fit::kNo};
  const bool fits = std::regex_match(line.begin(), line.begin() + end + 1, whole);
  return fits ? Match{Fit::kWhole, end + 1} : Match{};
}

Match MatchAt(std::string_view text) {
  if (text.front() == '-') return MatchFrame(text);
  if (text.front() == kAnnouncement.front()) return MatchAnnouncement(text);
  return MatchRemark(text);
}

}  // namespace

std::string MpirunWords::Read(std::string_view piece) {
  held_ += piece;
  const std::string_view all = held_;
  std::string shown;
  size_t at = 0;
  while (at < all.size()) {
    const size_t next = std::min(all.find_first_of("\x1e-[m", at), all.size());
    shown += all.substr(at, next - at);
    at = next;
    if (at == all.size()) break;
    const std::string_view rest = all.substr(at);
    const Match match = MatchAt(rest);
    if (match.fit == Fit::kBegun && rest.size() < kLongest) break;
    const std::string_view here =
        rest.substr(0, match.fit == Fit::kBegun ? 1 : match.length);  // too long: none of mpirun's
    if (match.fit != Fit::kWhole || !Take(here)) shown += here;
    at += here.size();
  }
  held_.erase(0, at);
  return shown;
}

std::string MpirunWords::Release() { return std::exchange(held_, {}); }

// Whether these words are to be taken out.
bool MpirunWords::Take(std::string_view words) {
  if (words.front() == kAnnouncement.front()) {
    const bool ends = words.starts_with(kEnding);
    words.remove_prefix(ends ? kEnding.size() : kAnnouncement.size());
    if (words.substr(0, kTokenDigits) != token_) return false;
    const std::string numbers(words.substr(kTokenDigits));
    if (ends) {
      if (!facts_.announced_code) facts_.announced_code = std::atoi(numbers.c_str());
      facts_.ended = true;
      return true;
    }
    int rank = 0, world = 0, pid = 0;
    std::sscanf(numbers.c_str(), "%d %d %d", &rank, &world, &pid);
    facts_.ranks[rank] = pid;
    facts_.world = world;
  } else if (words.front() == '-') {
    const std::string text(words.substr(kRule + 1, words.size() - 2 * (kRule + 1)));
    if (text.starts_with(kUnstarted) && facts_.ranks.empty()) return false;
    TakeFrame(text);
  }
  return true;
}

void MpirunWords::TakeFrame(const std::string& text) {
  static const std::regex host(R"re((?:^|\n)\s+(?:Remote daemon:.* on node|Peer host:)\s+(\S+))re");
  static const std::regex lost(
      R"re(process rank (\d{1,6}) with PID \d+ on node (\S+) exited on\s+signal (\d{1,3}))re");
  static const std::regex code(R"re(with errorcode (\d{1,9})\.|Exit code:\s+(\d{1,9}))re");
  const auto number = [](const std::ssub_match& digits) { return std::stoi(digits.str()); };
  facts_.ended = facts_.ended || !text.starts_with(kPeerLost);
  std::smatch match;
  const bool named = facts_.lost_host.starts_with("host ");
  if (!named && std::regex_search(text, match, host)) facts_.lost_host = "host " + match.str(1);
  if (facts_.lost_host.empty() && text.starts_with(kUnstarted)) facts_.lost_host = "a host";
  if (!facts_.lost_rank && std::regex_search(text, match, lost))
    facts_.lost_rank = {number(match[1]), match.str(2), number(match[3])};
  if (!facts_.code && std::regex_search(text, match, code))
    facts_.code = number(match[1].matched ? match[1] : match[2]);
}

std::string NewRankToken() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

bool AnnounceRank(std::vector<std::string>& words) {
  if (words.empty() || !words.front().starts_with(kAsRank)) return false;
  const std::string token = words.front().substr(kAsRank.size());
  words.erase(words.begin());
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* const world = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (rank == nullptr || world == nullptr) return true;
  own_token = token;
  Say(fmt::format("{}{} {} {} {}\n", kAnnouncement, token, rank, world, ::getpid()));
  return true;
}

void AnnounceEnd(int exit_code) noexcept {
  if (!own_token.empty()) Say(fmt::format("{}{} {}\n", kEnding, own_token, exit_code));
}

}  // namespace millrace
