// What the files of comm/mpi share; the only header here that includes mpi.h.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <string>

#include "comm/mpi/mpi_runtime.h"

namespace millrace {

struct MpiRuntime::State {
  int rank = 0, world_size = 1;
  int node_rank = 0, node_size = 1;
  bool oversubscribed = false;       // more ranks on this machine than cores for them
  MPI_Comm control = MPI_COMM_NULL;  // over all ranks: rendezvous of groups before they exist
  std::atomic<bool> failed = false;  // a communicator has failed, so that finalising could hang
  std::atomic<bool> finalized = false;
  std::atomic_flag aborting = ATOMIC_FLAG_INIT;  // the first to abort prints
  std::function<void(const std::string& reason, int exit_code)> before_abort;
  std::function<void(int exit_code)> before_end;

  [[noreturn]] void Abort(const std::string& reason, int exit_code) noexcept;
};

// Error(kComm) with MPI's text unless `code` is MPI_SUCCESS. `call` names the MPI
// function, `where` who called it.
void CheckMpi(int code, const char* call, const std::string& where);

}  // namespace millrace
