// A rank program starts under mpirun as this user, sees its peers, and exchanges bytes with them.
#include <mpi.h>

#include <catch2/catch.hpp>

#include "third_party/catch2/session.h"

TEST_CASE("each rank receives its left neighbour's number", "[build]") {
  int rank = -1, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  REQUIRE(world > 1);
  const int mine = 100 + rank;
  int left = -1;
  MPI_Sendrecv(&mine, 1, MPI_INT, (rank + 1) % world, 0, &left, 1, MPI_INT,
               (rank + world - 1) % world, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  REQUIRE(left == 100 + (rank + world - 1) % world);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int failed = millrace::RunCatchSession(argc, argv);
  MPI_Finalize();
  return failed;
}
