// Steps of a session on synthetic tokens, timed.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/run/session.h"
#include "tools/cli/bench/call_timer.h"

namespace millrace {

struct StepTimes {
  // From the end of one step to the end of the next, by the device's clock.
  std::vector<double> step_ms;
  std::vector<double> enqueue_us;  // time of each call of Enqueue
};

// Steps [first, first + count). On a device that works while the host goes on, a step stays in
// flight, as in training; on a host device all ranks begin each step together.
StepTimes RunSteps(Session& session, int64_t first, int64_t count);

// Host time per step, of `count` steps from `first` on: what issuing a step takes while the device
// has nothing to do. Were a step still in flight, the call would wait for room in the device's
// queue of launches, and its time would be the device's. On a host device, which has run a step
// when it was issued, the time of that call outside kernels and communicators (`timer`, else null).
// One sample per step.
std::vector<double> HostMicroseconds(Session& session, CallTimer* timer, int64_t first,
                                     int64_t count);

}  // namespace millrace
