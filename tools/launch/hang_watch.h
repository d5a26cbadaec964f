// Tells an mpirun that cannot end from one that still has work. Pure: no clock, no process.
//
// After a job has ended badly, Open MPI 4.1.4 at times deadlocks in its own PMIx_server_finalize:
// no rank is left, mpirun's main thread waits for a thread that waits for it, and no signal but
// KILL ends it. That is told by all of the following, for kHang:
//   - no child of it is left, and no rank can be elsewhere: each has announced itself and was seen
//     to be its child, or mpirun has said how the job ended;
//   - its main thread waits for a lock, not for someone to read its output.
// Nor does it end after a bad end while its daemon on another host does not answer (power, cable).
// The remote shell of that daemon is its child. That is told by: mpirun has said how the job ended,
// and none of its children is an announced rank, for kOtherHost. Daemons end their ranks themselves
// when they lose mpirun.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <vector>

#include "tools/launch/job_end.h"
#include "tools/launch/mpirun_words.h"

namespace millrace {

inline constexpr std::chrono::seconds kHang(5), kOtherHost(15);

// What is seen of a process at one moment.
struct ProcessLook {
  bool is_mpirun = false;       // of other programs nothing is known
  char state = 'S';             // as /proc has it: S sleeps, T is stopped, ...
  bool in_lock = true;          // it waits for a lock; also true where the kernel does not tell
  std::vector<pid_t> children;  // that have not ended
};

class HangWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Called several times per second. `facts`: what it has said so far.
  Stuck Look(Time now, const ProcessLook& look, const MpirunFacts& facts);

 private:
  bool JobIsOver(const MpirunFacts& facts) const;

  std::set<pid_t> seen_;  // children
  std::optional<Time> over_since_, waits_since_;
};

}  // namespace millrace
