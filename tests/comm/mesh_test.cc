// The arithmetic of the mesh; its communicators are in tests/comm/factory_contract.cc.
#include "comm/mesh.h"

#include <catch2/catch.hpp>

namespace millrace {
namespace {

// replicate 2 x shard 3:   shard_rank  0 1 2
//              replica 0               0 1 2
//              replica 1               3 4 5
TEST_CASE("world ranks fill the mesh row by row, a replica after the other", "[comm]") {
  const Mesh mesh{.replicate = 2, .shard = 3};
  REQUIRE(mesh.world_size() == 6);
  REQUIRE(mesh.replica(4) == 1);
  REQUIRE(mesh.shard_rank(4) == 1);
  REQUIRE(mesh.ShardGroup(1) == std::vector<int>{0, 1, 2});
  REQUIRE(mesh.ShardGroup(4) == std::vector<int>{3, 4, 5});
  REQUIRE(mesh.ReplicateGroup(1) == std::vector<int>{1, 4});
  REQUIRE(mesh.ReplicateGroup(5) == std::vector<int>{2, 5});
}

TEST_CASE("each pair of a replica and a shard rank is one world rank", "[comm]") {
  const Mesh mesh{.replicate = GENERATE(1, 2, 5), .shard = GENERATE(1, 3, 4)};
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    CAPTURE(mesh.replicate, mesh.shard, rank);
    REQUIRE(mesh.ShardGroup(rank)[mesh.shard_rank(rank)] == rank);
    REQUIRE(mesh.ReplicateGroup(rank)[mesh.replica(rank)] == rank);
  }
}

}  // namespace
}  // namespace millrace
