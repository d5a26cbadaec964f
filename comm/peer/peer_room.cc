#include "comm/peer/peer_room.h"

#include <fmt/core.h>

namespace millrace {

WaitingBlocks WaitingInRun(const CollectiveBlocks& blocks) {
  // Those of one stream, whatever their axes, follow each other; so an all-to-all or an all-reduce,
  // which has no more blocks than both lanes of its stream, waits instead of these. Where a third
  // stream has nothing but all-reduces (routers' sums over shards), they fit into what the other
  // two do not use: of the lanes of a stream one waits at a time.
  const int streams = blocks.exchanges ? 3 : 2;
  return {.peers = streams * (blocks.gather + blocks.reduce),
          .nccl = blocks.replicas + blocks.statistics};
}

int MultiprocessorsFor(const WaitingBlocks& waiting, int peers_each) {
  return (waiting.peers + peers_each - 1) / peers_each + waiting.nccl;
}

std::string WhyNoRoom(const WaitingBlocks& waiting, const BlockRoom& room) {
  if (room.peers_each < 1)
    return "a multiprocessor takes no block of the kernels over peers' memory";
  const int needed = MultiprocessorsFor(waiting, room.peers_each);
  if (needed <= room.multiprocessors) return "";
  return fmt::format(
      "it has {} multiprocessors, and {} blocks over peers' memory, {} to one, and {} of NCCL's, "
      "which may all wait at once, need {}",
      room.multiprocessors, waiting.peers, room.peers_each, waiting.nccl, needed);
}

}  // namespace millrace
