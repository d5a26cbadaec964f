// comm/peer/peer_room.h: what waits at once fits at once, by the GPU's own count.
#include "comm/peer/peer_room.h"

#include <catch2/catch.hpp>

#include "comm/nccl/nccl_options.h"
#include "comm/peer/peer_call.h"

namespace millrace {
namespace {

using Catch::Contains;

WaitingBlocks OfRun(bool has_replicas, bool exchanges = false) {
  return WaitingInRun({.gather = kPeerGatherBlocks,
                       .reduce = kPeerReduceBlocks,
                       .exchanges = exchanges,
                       .replicas = has_replicas ? NcclOptions{}.max_ctas : 0,
                       .statistics = kSmallCtas});
}

TEST_CASE("a run's waiting blocks are those of every lane and every communicator") {
  const WaitingBlocks
      one = WaitingInRun(
          {.gather = 16, .reduce = 32, .exchanges = false, .replicas = 0, .statistics = 2}),
      many = WaitingInRun(
          {.gather = 16, .reduce = 32, .exchanges = true, .replicas = 16, .statistics = 2});
  CHECK(one.peers == 2 * (16 + 32));
  CHECK(one.nccl == 2);
  CHECK(many.peers == 3 * (16 + 32));
  CHECK(many.nccl == 18);
}

// Of a stream one call waits at a time; the third has nothing but sums where no rows are exchanged.
TEST_CASE("what waits in a run covers a call on each of three streams") {
  CHECK(OfRun(false).peers >= kPeerGatherBlocks + kPeerReduceBlocks + kPeerAllReduceBlocks);
  for (const int most : {kPeerReduceBlocks, kPeerExchangeBlocks, kPeerAllReduceBlocks})
    CHECK(OfRun(false, true).peers >= 3 * most);
}

TEST_CASE("blocks that do not fill a multiprocessor take one all the same") {
  CHECK(MultiprocessorsFor({.peers = 96, .nccl = 18}, 2) == 48 + 18);
  CHECK(MultiprocessorsFor({.peers = 97, .nccl = 0}, 2) == 49);
  CHECK(MultiprocessorsFor({.peers = 97, .nccl = 1}, 1) == 98);
}

TEST_CASE("H100, H200 and half of one have room, a small slice has none") {
  for (const bool has_replicas : {false, true})
    for (const int multiprocessors : {132, 114, 66})
      CHECK(WhyNoRoom(OfRun(has_replicas), {multiprocessors, 2}) == "");
  CHECK(WhyNoRoom(OfRun(true, true), {90, 2}) == "");
  CHECK_THAT(WhyNoRoom(OfRun(true, true), {89, 2}), Contains("144 blocks") && Contains("need 90"));
  const std::string slice = WhyNoRoom(OfRun(true), {65, 2});
  CHECK_THAT(slice, Contains("65 multiprocessors") && Contains("96 blocks") &&
                        Contains("18 of NCCL's") && Contains("need 66"));
  CHECK(WhyNoRoom(OfRun(false), {50, 2}) == "");
  CHECK_THAT(WhyNoRoom(OfRun(false), {49, 2}), Contains("need 50"));
  CHECK_THAT(WhyNoRoom(OfRun(true), {132, 0}), Contains("takes no block"));
}

}  // namespace
}  // namespace millrace
