// Requests to stop, as signals to this process, and what a job gets for them.
#pragma once

#include <optional>

namespace millrace {

// From here on SIGINT, SIGTERM, SIGHUP and SIGUSR1 are counted instead of ending this process
// (those that it found ignored stay ignored), and so are those that came while they were blocked,
// once UnblockStopSignals() is called. A child's end is noticed, too.
void CatchStopRequests();
// So far; signals within 100 ms are one: a terminal that closes, or a wrapper, sends several.
int StopRequests();
// A descriptor that poll() finds readable when a signal has come.
int WakeDescriptor();

// tools/millrace starts the program with these signals blocked, so that none is lost before it can
// catch them. Called by every main(), once it catches what it wants to.
void UnblockStopSignals();

// Which signal a job gets, and when, given how often the launcher was asked to stop. Pure.
//
// The first request asks it to save and stop, by SIGUSR1, once a second until it ends: mpirun drops
// a signal while its ranks do not run yet. The second, or the end of patience, ends it: SIGTERM,
// with which mpirun clears up behind itself, and SIGKILL at the next, or when that takes longer
// than kClearUpS.
class StopSequence {
 public:
  static constexpr double kAskAgainS = 1, kClearUpS = 5;

  // `grace_s`: patience after the first request; none: no end of it.
  explicit StopSequence(std::optional<double> grace_s) : grace_s_(grace_s) {}

  // The signal to send now, or 0. `requests` so far; `now_s` on any clock.
  int Next(double now_s, int requests);
  bool asked() const { return asked_s_.has_value(); }
  bool forced() const { return forced_s_.has_value(); }

 private:
  const std::optional<double> grace_s_;
  std::optional<double> first_s_, asked_s_, forced_s_;
  int forced_requests_ = 0;
  bool killed_ = false;
};

}  // namespace millrace
