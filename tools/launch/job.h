// A program, mostly mpirun with its ranks, that runs under this one: one at a time.
//
// Signals  It has a session of its own and gets none of the terminal's signals; whoever waits
//          passes on what it wants to (stop_requests.h).
// Death    The kernel ends the program when this process dies, however it dies; mpirun's ranks then
//          end by themselves. When the program ends, everything on this host that it has started
//          and left is killed: orphans become this process's children (PR_SET_CHILD_SUBREAPER).
//          Children that it had before are left alone.
// Output   Copied to two Outputs, without words of mpirun's own; or the program has our streams.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tools/launch/hang_watch.h"
#include "tools/launch/job_end.h"
#include "tools/launch/mpirun_words.h"
#include "tools/launch/output.h"
#include "tools/launch/stop_requests.h"

namespace millrace {

struct JobSetup {
  std::vector<std::string> command;                // the program is searched for in PATH
  std::map<std::string, std::string> environment;  // over ours
  int death_signal = SIGKILL;                      // what it gets when this process dies
  // Where its output goes, both or neither: then it has our own streams.
  Output* out = nullptr;
  Output* err = nullptr;
  // It reads our standard input, unless that is a terminal, of which it has no part; else nothing.
  bool reads_input = false;
  std::string rank_token = {};   // of its ranks' announcements (mpirun_words.h)
  std::string line_begins = {};  // Job::saw_line(): a line of standard output began with this
};

class Job {
 public:
  // Error(kConfig): it cannot be started.
  explicit Job(const JobSetup& setup);
  ~Job();  // kills what still runs
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Copies output until the program has ended and nothing of it is left, a request to stop has
  // come, or `patience` is over; true when it has ended.
  bool Wait(std::chrono::milliseconds patience);
  void Signal(int number);  // to the program alone

  // Waits for its end. Passes on requests to stop as `stop` says, and calls `look` now and then.
  void Run(StopSequence& stop, const std::function<void()>& look = {});

  const JobEnd& end() const { return end_; }  // once it has ended
  bool saw_line() const { return saw_line_; }

 private:
  // A pipe of the program's, on its way to one of our streams.
  struct Stream {
    int source = -1;
    Output* to = nullptr;
    std::chrono::steady_clock::time_point read_at = {};
  };
  void Start(const JobSetup& setup);
  bool ReadSome(Stream& stream);
  void CopySome(std::chrono::milliseconds patience);
  void Collect(int status);
  void KillOrphans();
  void ReadRest();
  void WatchForHang();
  void LookForLine(std::string_view text);

  std::set<pid_t> foreign_;  // children that were there before
  pid_t pid_ = -1;
  bool ended_ = false, saw_line_ = false;
  JobEnd end_;
  std::vector<Stream> streams_;  // standard output and standard error, or none
  const std::string line_begins_;
  std::string line_;  // the begun one's start
  MpirunWords words_;
  HangWatch hang_watch_;
  std::chrono::steady_clock::time_point looked_;
};

}  // namespace millrace
