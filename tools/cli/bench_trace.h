// A measured step of all ranks as a Chrome trace: what ran when, on which stream, on one clock.
//
// Step     Eager, each op between two events, as bench --ops (runtime/exec/op_timer.h): streams overlap as in
//          any step, but gaps of a small model are the host's.
// Clock    Ranks of one host share one; between hosts zero is when they left a barrier, tens of microseconds
//          apart. A rank is a process of the trace, a stream a thread.
#pragma once

#include <functional>
#include <string>

#include "runtime/api/session.h"

namespace millrace {

// Collective: `run_step` runs one step, on every rank. Rank 0 writes `path`, whole or not at all. Error(kIo).
void TraceStep(Session& session, const std::string& path, const std::function<void()>& run_step);

}  // namespace millrace
