// How the ranks of a run find each other through the program's all-gather or MPI's, and what they
// talk over from then on.
#pragma once

#include <functional>
#include <memory>

#include "comm/comm_factory.h"
#include "runtime/api/c/millrace.h"

namespace millrace {

// A collective over options.world ranks, by two calls of options.exchange; by none at one rank.
// With options.mpi over the ranks of its communicator (mpi_exchange.h). `check` is what this rank
// alone has to say about its arguments: whatever it throws ends the meeting of all after the first
// call. It leaves again here, and the others throw its code with the rank's number and words.
// Ranks that are threads of one process share a LocalWorld; processes of one host talk over sockets
// (comm/socket). CallError MR_UNSUPPORTED on all where there are several hosts: no transport
// between hosts is in this library yet. MR_INVALID_ARGUMENT: ranks that disagree about the world,
// or have one number twice. The callback's own status.
std::unique_ptr<CommFactory> MeetOtherRanks(const mr_run_options& options,
                                            const std::function<void()>& check);

}  // namespace millrace
