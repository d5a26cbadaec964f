// Whether all blocks that wait for other GPUs run on one GPU together. If they do not, those that
// run may wait without end: for peers whose blocks stand in the queue behind such blocks of their
// own GPU (peer_call.h: Waiting).
//
// What waits  Kernels over peers' memory: at most one of each lane of each communicator, since
//             calls of one kind are ordered by their stream. NCCL's kernels: at most one of each of
//             its communicators.
// What not    Products and all other kernels end by themselves, whoever waits. Blocks that begin
//             early (runtime/base/cuda/launch.h) wait for what is ahead of them on their stream: it
//             has its places. Where that is a sum over peers' memory, in a chain (recorded_step.h),
//             they keep theirs until it ends; nothing else of this rank runs then. Ranks that share
//             a GPU (PeerGpus::kShared) may not replay such chains.
// Room        A multiprocessor takes as many blocks of a kernel over peers' memory as CUDA's
//             occupancy says: the least of all those kernels. NCCL's blocks are counted as taking
//             a multiprocessor each.
#pragma once

#include <string>

namespace millrace {

struct WaitingBlocks {
  int peers = 0;  // of kernels over peers' memory
  int nccl = 0;
};

// What a GPU has room for.
struct BlockRoom {
  int multiprocessors = 0;
  int peers_each = 0;  // blocks of kernels over peers' memory that a multiprocessor takes
};

// What a run's collectives have, each at most.
struct CollectiveBlocks {
  int gather = 0, reduce = 0;  // over peers' memory
  bool exchanges = false;      // whether activations are exchanged or summed, too
  // NCCL's: gradients between replicas, if there are any; the world's statistics.
  int replicas = 0, statistics = 0;
};

// The most that waits at once: a communicator over peers' memory on each stream of collectives,
// each with both lanes, and NCCL's.
WaitingBlocks WaitingInRun(const CollectiveBlocks& blocks);

// Multiprocessors that `waiting` needs.
int MultiprocessorsFor(const WaitingBlocks& waiting, int peers_each);

// "" where all of `waiting` fit at once; else what does not, in an Error's words.
std::string WhyNoRoom(const WaitingBlocks& waiting, const BlockRoom& room);

}  // namespace millrace
