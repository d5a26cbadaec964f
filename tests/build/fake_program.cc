// Stands in for the program in launcher_test.sh, with the program's own launcher: `fake_program
// VERB BEHAVIOUR` ends, or does not, as its second argument says.
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <vector>

#include "tools/cli/launch/launch_once.h"
#include "tools/launch/mpirun_words.h"
#include "tools/launch/rank_command.h"
#include "tools/launch/stop_requests.h"

namespace {

volatile sig_atomic_t stop_requested = 0;

// Says `text` on standard error in one write, so that ranks do not mix.
void SayOnce(const std::string& text) {
  if (write(2, text.data(), text.size()) < 0) _exit(1);
}

// Steps of 20 ms until SIGUSR1 has reached any rank. Rank 0 writes its peers' number and
// pids into the file first.
int StepUntilStopped(int rank, int world, const std::string& path) {
  int pids[64];
  const int pid = getpid();
  MPI_Gather(&pid, 1, MPI_INT, pids, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    FILE* file = fopen((path + ".new").c_str(), "w");
    for (int r = 0; r < world; ++r) fprintf(file, "%d\n", pids[r]);
    fclose(file);
    rename((path + ".new").c_str(), path.c_str());  // whoever waits for the file reads all of it
  }
  for (int any = 0; !any; usleep(20000)) {
    const int mine = stop_requested;
    MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  SayOnce("rank " + std::to_string(rank) + " saved\n");
  MPI_Barrier(MPI_COMM_WORLD);
  return rank == 0 ? 75 : 0;
}

int Behave(const std::vector<std::string>& words) {
  const std::string behaviour = words.size() > 1 ? words[1] : "";
  if (getenv("MILLRACE_PREFLIGHT")) {
    SayOnce("preflight for " + std::string(getenv("MILLRACE_WORLD")) + "\n");
    return behaviour == "bad_config" ? 2 : 0;
  }
  if (behaviour == "exit") return std::stoi(words[2]);
  signal(SIGUSR1, [](int) { stop_requested = 1; });
  MPI_Init(nullptr, nullptr);
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  int code = 0;
  if (behaviour == "print") {
    printf("out %d\n", rank);
    SayOnce("err " + std::to_string(rank) + " of " + std::to_string(world) + ", BLAS threads " +
            getenv("OPENBLAS_NUM_THREADS") + "\n");
  } else if (behaviour == "abort" && rank == 1) {
    SayOnce("rank 1 aborts\n");
    millrace::AnnounceEnd(std::stoi(words[2]));
    MPI_Abort(MPI_COMM_WORLD, std::stoi(words[2]));
  } else if (behaviour == "crash" && rank == 1) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  } else if (behaviour == "step") {
    code = StepUntilStopped(rank, world, words[2]);
  }
  if (behaviour == "abort" || behaviour == "crash") MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  try {
    millrace::AnnounceRank(words);
    const auto ranks = millrace::TakeRankOptions(words);
    if (ranks && millrace::RunsAsRanks(words.front())) return millrace::LaunchOnce(*ranks, words);
    millrace::UnblockStopSignals();
    const int code = Behave(words);
    if (code != 0) millrace::AnnounceEnd(code);
    return code;
  } catch (const std::exception& error) {
    SayOnce(std::string("millrace: ") + error.what() + "\n");
    return 2;
  }
}
