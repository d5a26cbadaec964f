#include "comm/peer/peer_room.h"

#include <fmt/core.h>

namespace millrace {

WaitingBlocks WaitingInRun(const CollectiveBlocks& blocks) {
  constexpr int kCommunicators = 2;  // of the shard axis, on the gather and on the reduce stream
  return {.peers = kCommunicators * (blocks.gather + blocks.reduce),
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
      "which may "
      "all wait at once, need {}",
      room.multiprocessors, waiting.peers, room.peers_each, waiting.nccl, needed);
}

}  // namespace millrace
