// A program, mostly mpirun with its ranks, that runs under a supervisor: one at a time.
//
// Signals  It gets none of the terminal's; the supervisor passes on what it wants to. From
//          CatchStopRequests() on, SIGINT, SIGTERM, SIGHUP and SIGUSR1 to the supervisor are
//          counted instead of ending it (those that it found ignored stay ignored).
// Death    The kernel kills the program when the supervisor dies, however it dies; mpirun's ranks
//          then end by themselves. When the program ends, everything on this host that it has
//          started and left is killed: orphans become the supervisor's children
//          (PR_SET_CHILD_SUBREAPER). Children that it had before are left alone.
// Output   Copied to the supervisor's own. A reader that goes away ends neither.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/mpirun_words.h"

namespace millrace {

void CatchStopRequests();
// So far; signals within 100 ms are one: a terminal that closes, or a wrapper, sends several.
int StopRequests();

class SupervisedJob {
 public:
  // `line_begins`: SawLine() tells whether a line of standard output began with this. The program
  // is searched for in PATH. Error(kConfig): it cannot be started.
  SupervisedJob(const std::vector<std::string>& command,
                const std::map<std::string, std::string>& environment, std::string line_begins);
  ~SupervisedJob();  // kills what still runs
  SupervisedJob(const SupervisedJob&) = delete;
  SupervisedJob& operator=(const SupervisedJob&) = delete;

  // Copies output until the program has ended and nothing of it is left, a request to stop has
  // come, or `patience` is over; true when it has ended.
  bool Wait(std::chrono::milliseconds patience);
  void Signal(int number);  // to the program alone
  void Kill();

  // Valid once Wait has returned true.
  int code() const { return code_; }  // as shells write it
  bool leader_lost() const { return leader_lost_; }
  // It was mpirun, no rank was left on this host, and it did not end: it was killed.
  bool hung() const { return hung_; }
  bool SawLine() const { return saw_line_; }
  const MpirunWords& words() const { return words_; }

 private:
  class Relay;
  void Collect(int status);
  void WatchForHang();
  bool HasRankHere() const;
  void Look(size_t stream, std::string_view text);

  std::set<pid_t> foreign_;  // children that were there before
  pid_t pid_ = -1;
  bool ended_ = false, leader_lost_ = false, hung_ = false, saw_line_ = false;
  int code_ = 0;
  std::vector<std::unique_ptr<Relay>> relays_;
  const std::string line_begins_;
  std::string line_;  // the begun one's start
  MpirunWords words_;
  bool had_children_ = false;
  std::chrono::steady_clock::time_point looked_, busy_, had_rank_;
};

// The children of a process, also of its threads, that have not ended; none
// where /proc does not tell.
std::vector<pid_t> LivingChildren(pid_t pid);

}  // namespace millrace
