// MPI for the life of a program: initialised by the constructor, finalised by
// the destructor. OpenMPI 4.1.
//
// Threads  MPI_THREAD_SERIALIZED is asked for and required: any thread may use communicators, one
//          at a time. Abort() may be called from any thread at any time.
// Errors   MPI calls return their codes, which become Error(kComm).
// Exit     A process that fails must end every rank: MPI_Finalize would wait for the peers for
//          ever. So main catches, and calls Abort with what it caught. Where it does not (an
//          exception unwinds past the runtime, or a communicator has failed), the destructor does.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/base/error.h"

namespace millrace {

class MpiRuntime {
 public:
  // Error(kConfig) when this process is alone in its world although the environment says that a
  // launcher of another MPI started several.
  MpiRuntime(int* argc, char*** argv);
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  int rank() const noexcept;
  int world_size() const noexcept;
  int node_rank() const noexcept;  // among the ranks that share this machine's memory
  int node_size() const noexcept;

  // Ends every rank of the world within seconds: prints "millrace: rank R: <reason>" on stderr,
  // once per process, and calls MPI_Abort, so that mpirun exits with `exit_code`.
  [[noreturn]] void Abort(const std::string& reason,
                          int exit_code = ExitCode(ErrorCode::kPeerLost)) noexcept;

  // Called once by the thread that aborts, before it prints; from communicators' aborts, too. To be
  // set before there are other threads. What it uses outlives the runtime. It does not throw.
  void BeforeAbort(std::function<void(const std::string& reason, int exit_code)> call);
  // The same, after it has printed.
  void BeforeEnd(std::function<void(int exit_code)> call);

  struct State;
  const std::shared_ptr<State>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// What is wrong when MPI reports a world of `world_size` but `environment` (name -> value or null)
// tells of a launch of several processes; empty when nothing is.
std::string SingletonTrouble(int world_size,
                             const std::function<const char*(const char* name)>& environment);

}  // namespace millrace
