// Communicators over the ranks of an MPI world.
//
// Abort     Communicator::Abort ends every process of the world (MpiRuntime::Abort): no call of a
//           peer returns, the message is on stderr.
// Lifetime  Communicators and the factory are destroyed before the MpiRuntime.
#pragma once

#include <memory>

#include "comm/comm_factory.h"
#include "comm/host_collectives.h"
#include "comm/mpi/mpi_runtime.h"

namespace millrace {

struct MpiCommOptions : HostCommOptions {
  // Of one MPI message, whose count is an int; longer pieces are cut.
  int64_t max_message_bytes = int64_t{1} << 30;
};

// Error(kInvalidArgument) unless max_message_bytes is in [1, INT_MAX].
std::unique_ptr<CommFactory> MakeMpiCommFactory(MpiRuntime& runtime,
                                                const MpiCommOptions& options = {});

}  // namespace millrace
