// Runs one function per rank, each on its own thread, and brings the failure
// of any back to the caller.
//
// Errors   When a rank throws, the world is aborted with its message, so that the others stop; all
//          threads are joined; then the exception is rethrown on the caller. Among several, the
//          first that is not Error(kPeerLost), which is what an abort makes of the others.
#pragma once

#include <functional>

#include "comm/local/local_world.h"

namespace millrace {

// fn(factory of the rank), on world.world_size() threads.
void RunRanks(LocalWorld& world, const std::function<void(CommFactory& factory)>& fn);

// fn(communicator over a new world), for ranks that need only one.
void RunRanks(int world_size, const std::function<void(Communicator& comm)>& fn,
              const HostCommOptions& options = {});

}  // namespace millrace
