#include "comm/mpi/mpi_runtime.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "comm/mpi/mpi_state.h"

namespace millrace {

namespace {

// mpirun may have bound this rank to one core of its own; then all cores of the machine are for its
// ranks. Otherwise those that this process may use, which a container restricts.
int CoresForRanks() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int usable = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return usable > 1 ? usable : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

void CheckMpi(int code, const char* call, const std::string& where) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ErrorCode::kComm,
              fmt::format("{}: {} failed: {}", where, call, std::string(text, length)));
}

void MpiRuntime::State::Abort(const std::string& reason, int exit_code) noexcept {
  if (aborting.test_and_set())
    for (;;) pause();  // another thread ends the process
  if (before_abort) before_abort(reason, exit_code);
  // One write, so that the lines of several ranks do not mix.
  std::string line = "millrace: rank " + std::to_string(rank) + ": " + reason + "\n";
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
  if (before_end) before_end(exit_code);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  _exit(exit_code);
}

MpiRuntime::MpiRuntime(int* argc, char*** argv) : state_(std::make_shared<State>()) {
  int provided = MPI_THREAD_SINGLE;
  CheckMpi(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread",
           "start of MPI");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  const std::string where = "start of MPI";
  CheckMpi(MPI_Comm_rank(MPI_COMM_WORLD, &state_->rank), "MPI_Comm_rank", where);
  CheckMpi(MPI_Comm_size(MPI_COMM_WORLD, &state_->world_size), "MPI_Comm_size", where);
  const std::string trouble =
      SingletonTrouble(state_->world_size, [](const char* name) { return std::getenv(name); });
  if (!trouble.empty() || provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    MR_REQUIRE(ErrorCode::kConfig, trouble.empty(), "{}", trouble);
    throw Error(ErrorCode::kComm,
                "this MPI does not allow calls from several threads (MPI_THREAD_SERIALIZED)");
  }

  MPI_Comm node = MPI_COMM_NULL;
  CheckMpi(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, state_->rank, MPI_INFO_NULL, &node),
      "MPI_Comm_split_type", where);
  MPI_Comm_rank(node, &state_->node_rank);
  MPI_Comm_size(node, &state_->node_size);
  MPI_Comm_free(&node);
  state_->oversubscribed = state_->node_size > CoresForRanks();
  CheckMpi(MPI_Comm_dup(MPI_COMM_WORLD, &state_->control), "MPI_Comm_dup", where);
}

MpiRuntime::~MpiRuntime() {
  const int exit_code = ExitCode(ErrorCode::kPeerLost);
  if (std::uncaught_exceptions() > 0)
    state_->Abort("stopped by an error that was not handled", exit_code);
  if (state_->failed) state_->Abort("stopped after a communicator failed", exit_code);
  state_->finalized = true;
  MPI_Comm_free(&state_->control);
  MPI_Finalize();
}

int MpiRuntime::rank() const noexcept { return state_->rank; }
int MpiRuntime::world_size() const noexcept { return state_->world_size; }
int MpiRuntime::node_rank() const noexcept { return state_->node_rank; }
int MpiRuntime::node_size() const noexcept { return state_->node_size; }

void MpiRuntime::Abort(const std::string& reason, int exit_code) noexcept {
  state_->Abort(reason, exit_code);
}

void MpiRuntime::BeforeAbort(std::function<void(const std::string& reason, int exit_code)> call) {
  state_->before_abort = std::move(call);
}

void MpiRuntime::BeforeEnd(std::function<void(int exit_code)> call) {
  state_->before_end = std::move(call);
}

std::string SingletonTrouble(int world_size,
                             const std::function<const char*(const char* name)>& environment) {
  if (world_size != 1) return "";
  // Set per process by OpenMPI's mpirun, by launchers that speak PMI (MPICH, Intel MPI, srun
  // --mpi=pmi2), and by MVAPICH.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    const char* const value = environment(name);
    if (value == nullptr || std::atoi(value) <= 1) continue;
    return fmt::format(
        "launched as one of {} processes ({} is {}), but MPI sees a world of 1: the launcher "
        "belongs to another MPI than the OpenMPI that this program is built with. Start it with "
        "OpenMPI's mpirun",
        value, name, value);
  }
  return "";
}

}  // namespace millrace
