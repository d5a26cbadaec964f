// Fails in the way that its argument says, as tests/comm/mpi_failure_test.sh expects. main() is
// written as a program's should be: it hands what it catches to MpiRuntime::Abort.
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "comm/mpi/mpi_factory.h"
#include "runtime/base/cpu/host_device.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

void Gather(Communicator& comm, int64_t n) {
  const std::unique_ptr<Stream> stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  std::vector<float> shard(static_cast<size_t>(n)),
      full(static_cast<size_t>(n * comm.world_size()));
  comm.AllGather(View(shard), View(full), {}, *stream);
}

void Run(CommFactory& factory, const std::string& how) {
  std::vector<int> everyone(static_cast<size_t>(factory.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  const std::unique_ptr<Communicator> comm = factory.Make(everyone, "gather");
  const bool culprit = comm->rank() == 1;
  Gather(*comm, 1000);
  if (how == "throw" && culprit) throw Error(ErrorCode::kData, "token file 'a.bin' ends at 17");
  if (how == "unhandled" && culprit) throw 17;
  if (how == "abort" && culprit) comm->Abort("the watchdog found op 12 stuck");
  if (how == "kill" && culprit) raise(SIGKILL);
  if (how == "timeout" && culprit)
    for (;;) pause();
  if (how == "sizes") Gather(*comm, culprit ? 5 : 6);
  if (how == "leave" && culprit) return;
  Gather(*comm, 1 << 20);
  if (comm->rank() == 0) std::cout << "finished" << std::endl;
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  using namespace millrace;
  const std::string how = argc > 1 ? argv[1] : "nothing";
  try {
    MpiRuntime mpi(&argc, &argv);
    MpiCommOptions options;
    options.timeout = std::chrono::milliseconds(how == "timeout" || how == "leave" ? 500 : 60000);
    try {
      testing::Run(*MakeMpiCommFactory(mpi, options), how);
    } catch (const Error& error) {
      mpi.Abort(error.what(), ExitCode(error.code()));
    }
  } catch (const Error& error) {  // MPI did not start
    std::cerr << error.what() << std::endl;
    return ExitCode(error.code());
  } catch (int) {
    return 1;  // not reached: an exception that unwinds past MpiRuntime ends the process there
  }
}
