// Ranks as threads of one process, for tests, for embedding, and as the reference for MPI.
//
// A LocalWorld is shared by its ranks; each rank's thread makes its communicators through its own
// factory. Nothing is global: two worlds in one process do not know each other.
//
// Abort    Aborting any communicator aborts all communicators of the world, those made later
//          included, as a process's death would: a peer may be waiting on another one. So does a
//          time-out. The destruction of a communicator whose peers still wait for it is
//          Error(kPeerLost) on them, unless an exception unwinds: then whoever catches it calls
//          Abort (comm/local/run_ranks.h does).
// Threads  LocalWorld is safe for concurrent use. A factory and a communicator belong to one
//          thread, except for Communicator::Abort.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/host_collectives.h"

namespace millrace {

class LocalWorld {
 public:
  explicit LocalWorld(int world_size, const HostCommOptions& options = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int world_size() const noexcept;

  // The factory of one rank; calls with the same rank continue one sequence of groups. It and its
  // communicators may outlive the world.
  std::unique_ptr<CommFactory> Factory(int rank);

  // Unblocks every rank: their pending and later calls throw Error(kPeerLost) with `reason`. The
  // first reason stays.
  void Abort(const std::string& reason) noexcept;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

// One communicator over all ranks of a new world, in rank order.
std::vector<std::unique_ptr<Communicator>> MakeLocalCommunicators(
    int world_size, const HostCommOptions& options = {});

}  // namespace millrace
