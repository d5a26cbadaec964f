// under_mpirun N PROGRAM [ARG...]: an MPI program as N ranks on this host, whatever the number of
// cores. Its mpirun is watched as that of our own program is: one that cannot end is killed, and
// the job's code is what counts.
#include <signal.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "tools/launch/job.h"

int main(int argc, char** argv) {
  using namespace millrace;
  if (argc < 3) {
    std::fprintf(stderr, "usage: under_mpirun N PROGRAM [ARG...]\n");
    return 2;
  }
  Output out(1), err(2);
  JobSetup setup;
  setup.command = {"mpirun",    "-n",
                   argv[1],     "--oversubscribe",
                   "--bind-to", "none",
                   "--mca",     "mpi_yield_when_idle",
                   "1",         "--mca",
                   "btl",       "self,vader",
                   "--mca",     "btl_vader_single_copy_mechanism",
                   "none"};
  setup.command.insert(setup.command.end(), argv + 2, argv + argc);
  setup.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  setup.death_signal = SIGTERM;
  setup.out = &out;
  setup.err = &err;
  try {
    StopSequence stop(std::nullopt);
    Job job(setup);
    job.Run(stop);
    const auto asked_twice = [] { return StopRequests() > 1; };
    out.Drain(asked_twice);
    err.Drain(asked_twice);
    const Verdict verdict = Judge(job.end(), {.leader = "mpirun", .host = ""}, StopRequests());
    for (const std::string& words : {StuckWords(job.end().stuck), verdict.sentence})
      if (!words.empty()) std::fprintf(stderr, "%s\n", words.c_str());
    return verdict.exit_code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 70;
  }
}
