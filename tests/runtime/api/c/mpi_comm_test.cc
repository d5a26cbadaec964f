// Ranks of a communicator of the program's own, which has begun MPI and ends it.
#include <mpi.h>

#include <catch2/catch.hpp>
#include <vector>

#include "tests/runtime/api/c/linked.h"
#include "third_party/catch2/session.h"

namespace millrace::test {
namespace {

TEST_CASE("a run has the ranks of the program's communicator", "[api][c]") {
  int rank = -1, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  MPI_Comm reversed = MPI_COMM_NULL, alone = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, world - rank, &reversed);
  MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
  const std::string config = TinyConfig();
  mr_run_options options = OptionsOf(config);
  mr_mpi mpi = Sized<mr_mpi>();
  mpi.comm = &reversed;
  options.mpi = &mpi;
  {
    const Linked run(options);
    INFO(run.created().message);
    REQUIRE_CODE(mr_init(run), MR_OK);
    REQUIRE(run.Info().world == world);
    REQUIRE(run.Info().rank == world - 1 - rank);
    for (int64_t step = 0; step < 3; ++step) {
      double losses[2] = {run.Step(step, rank).second.loss, 0};
      MPI_Allreduce(&losses[0], &losses[1], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      REQUIRE(losses[0] > 0);
      REQUIRE(losses[0] == losses[1]);
    }
  }
  mpi.comm = &alone;
  const Linked run(options);
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE(run.Info().world == 1);
  REQUIRE(run.Step(0, rank).second.step == 1);  // no other rank is waited for
  MPI_Comm_free(&reversed);                     // they are the program's still
  MPI_Comm_free(&alone);
}

TEST_CASE("options that one rank of a communicator refuses, all refuse", "[api][c]") {
  int rank = -1, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const std::string config = TinyConfig();
  const mr_mpi mpi = Sized<mr_mpi>();
  for (const bool of_mpi : {true, false}) {
    mr_run_options options = OptionsOf(config);
    options.mpi = &mpi;
    if (rank == 1) (of_mpi ? options.rank : options.use_data) = 9;
    const Outcome refused = Linked(options).created();
    CAPTURE(rank, of_mpi, refused.message);
    REQUIRE(refused.code == MR_INVALID_ARGUMENT);
    const std::string words =
        of_mpi ? "options.mpi is not NULL, and rank 9" : "options.use_data is 9";
    REQUIRE(refused.message.starts_with((rank == 1 ? "" : "rank 1: ") + words));
  }
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int failed = millrace::RunCatchSession(argc, argv);
  MPI_Finalize();
  return failed;
}
