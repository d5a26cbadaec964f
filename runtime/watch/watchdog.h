// A thread per rank that ends a job which makes no progress, after saying who holds it up.
//
// Rule     When this rank has made no progress (progress.h) for half the limit, it looks at the
//          others' records. It speaks when a rank is silent: its record has not been renewed for
//          half the limit; or when every rank has been idle for as long as the phase it is in
//          allows: the limit, or ten minutes where progress cannot be shown, or for ever in its
//          caller's own time. As long as one rank moves and none is silent, nobody is hung.
// Who      The lowest rank that is not silent speaks and ends the job; the others follow after a
//          few seconds if that has not ended them.
// Clocks   Each rank counts its own idle time, so clocks of hosts are not compared. A watchdog that
//          finds that it did not run itself (a debugger, SIGSTOP to the whole job, a suspended
//          machine, or a file system that blocked its own record) begins to count anew.
// Limits   The last rank that is left, stopped itself, is seen by nobody. Endless computation in an
//          op of the CPU backend counts as progress.
// Hang     The thread touches memory, small files and its own clock: never the device, nor a
//          communicator, which another thread asks (transport_watch.h).
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "runtime/exec/observe/progress.h"
#include "runtime/watch/progress_board.h"
#include "runtime/watch/stall_verdict.h"
#include "runtime/watch/transport_watch.h"

namespace millrace {

struct WatchdogOptions {
  std::chrono::milliseconds limit = std::chrono::seconds(20);
  // Patience::kLong; at least `limit`.
  std::chrono::milliseconds long_limit = std::chrono::minutes(10);
  std::chrono::milliseconds broken_limit = std::chrono::seconds(5);  // at most `limit`
  // Throws where this rank's transport is known to be broken (CommSet::CheckHealth); called from a
  // thread of its own until the watchdog has gone. Null: nobody knows.
  std::function<void()> check_transport;
  // Called once, on the watchdog's thread, with the verdict. Ends the job; where it returns
  // (embedders, tests) the watchdog only goes on renewing its record.
  std::function<void(const std::string& verdict)> on_stall;
};

class Watchdog {
 public:
  // A collective over `world`. `marks` and what `names` points to outlive the watchdog.
  // Null, with `warning` set on rank 0, where run_dir cannot hold the records, or the ranks
  // do not see each other's there.
  static std::unique_ptr<Watchdog> Start(Communicator& world, const std::string& run_dir,
                                         const ProgressMarks& marks, PlanNames names,
                                         const WatchdogOptions& options, std::string& warning);
  ~Watchdog();

 private:
  using Clock = std::chrono::steady_clock;

  // What this rank has seen of another one's record since it began to look.
  struct Seen {
    ProgressRecord record;
    bool any = false, gone = false;
    Clock::time_point renewed;
  };

  Watchdog(std::unique_ptr<ProgressBoard> board, ProgressRecord own, const ProgressMarks& marks,
           PlanNames names, const WatchdogOptions& options);
  void Run(const std::stop_token& stop);
  void Observe(Clock::time_point now);
  void Look(Clock::time_point now);
  // Whether all that is known says that the job is hung.
  bool Stalled(const std::vector<RankView>& views) const;
  std::chrono::milliseconds Allowed(const ProgressReading& reading) const;
  void StartAfresh(Clock::time_point now);
  // Whether this rank has stood still for long enough over a transport that is `broken`.
  bool StandsBroken(Clock::time_point now, const BrokenTransport& broken);
  std::vector<RankView> Views(Clock::time_point now) const;

  const WatchdogOptions options_;
  const ProgressMarks& marks_;
  const PlanNames names_;
  const std::unique_ptr<ProgressBoard> board_;  // null: one rank
  ProgressRecord own_;
  Clock::time_point moved_;  // this rank's last progress
  std::vector<Seen> seen_;   // by rank; empty: not looking
  Clock::time_point stalled_since_;
  bool stalled_ = false;
  const std::unique_ptr<TransportWatch> transport_;  // null: nobody to ask
  std::optional<Clock::time_point> broken_since_;
  std::jthread thread_;
};

}  // namespace millrace
