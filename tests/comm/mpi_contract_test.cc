// comm/mpi: the contract on processes under mpirun, and the same bits as threads.
#include <catch2/catch.hpp>
#include <numeric>
#include <string_view>

#include "comm/local/run_ranks.h"
#include "comm/mpi/mpi_factory.h"
#include "comm/mpi/mpi_runtime.h"
#include "tests/comm/communicator_contract.h"
#include "third_party/catch2/session.h"

namespace millrace::testing {
namespace {

MpiRuntime* runtime = nullptr;  // of main(), for the test cases

// Small chunks, and messages cut at an odd size, so that modest buffers go through every loop.
MpiCommOptions SmallPieces() {
  MpiCommOptions options;
  options.timeout = std::chrono::seconds(60);
  options.chunk_bytes = kContractChunkBytes;
  options.max_message_bytes = 333;
  return options;
}

std::vector<int> Everyone() {
  std::vector<int> ranks(static_cast<size_t>(runtime->world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST_CASE("processes keep the communicator's contract", "[comm][contract][mpi]") {
  const auto comm = MakeMpiCommFactory(*runtime, SmallPieces())->Make(Everyone(), "world");
  for (const ContractCase& contract : CommunicatorContract()) {
    Report report;
    contract.run(*comm, report);
    INFO(contract.name << ": rank " << comm->rank() << ": " << report.Text());
    CHECK(report.ok());
  }
}

TEST_CASE("processes keep the factory's contract", "[comm][contract][mpi]") {
  const auto factory = MakeMpiCommFactory(*runtime);
  for (const FactoryCase& contract : FactoryContract()) {
    Report report;
    contract.run(*factory, report);
    INFO(contract.name << ": rank " << factory->rank() << ": " << report.Text());
    CHECK(report.ok());
  }
}

TEST_CASE("processes and threads give the same bits", "[comm][mpi]") {
  const int world = runtime->world_size();
  const auto comm = MakeMpiCommFactory(*runtime)->Make(Everyone(), "world");
  const std::vector<std::string> over_mpi =
      comm->HostAllGather(ResultDigest(*comm, kDefaultChunkBytes));
  std::vector<std::string> in_process(static_cast<size_t>(world));
  RunRanks(world, [&](Communicator& local) { in_process[local.rank()] = ResultDigest(local, 64); },
           {.chunk_bytes = 64});
  CHECK(over_mpi == in_process);
  comm->Barrier();
}

TEST_CASE("ranks that share this machine are numbered from 0", "[comm][mpi]") {
  CHECK(runtime->node_size() == runtime->world_size());  // mpirun starts all of them here
  CHECK(runtime->node_rank() == runtime->rank());
}

TEST_CASE("message sizes that MPI cannot count are refused", "[comm][mpi]") {
  MpiCommOptions options;
  options.max_message_bytes = int64_t{1} << 31;
  CHECK_THROWS_WITH(MakeMpiCommFactory(*runtime, options), Catch::Contains("2147483648"));
  options.max_message_bytes = 0;
  CHECK_THROWS_WITH(MakeMpiCommFactory(*runtime, options),
                    Catch::Contains("max_message_bytes is 0"));
}

TEST_CASE("a lone process under another MPI's launcher is told so", "[comm][mpi]") {
  const auto with = [](const char* name, const char* value) {
    return [=](const char* asked) -> const char* {
      return std::string_view(asked) == name ? value : nullptr;
    };
  };
  CHECK(SingletonTrouble(1, with("PMI_SIZE", "4")).find("one of 4 processes (PMI_SIZE is 4)") !=
        std::string::npos);
  CHECK_FALSE(SingletonTrouble(1, with("OMPI_COMM_WORLD_SIZE", "2")).empty());
  CHECK(SingletonTrouble(1, with("PMI_SIZE", "1")).empty());
  CHECK(SingletonTrouble(4, with("PMI_SIZE", "4")).empty());
  CHECK(SingletonTrouble(1, with("HOME", "4")).empty());
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  millrace::MpiRuntime mpi(&argc, &argv);
  millrace::testing::runtime = &mpi;
  return millrace::RunCatchSession(argc, argv);
}
