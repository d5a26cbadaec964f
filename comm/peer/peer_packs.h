// How sums of few bytes move between peers: addends in the same words as the number that tells that
// they have come.
//
// Protocol One launch per rank in a lane of peer_call.h; block b of every rank is a group of its
//          own. Each thread of it
//            1. makes packs of its addends: two words of 64 bits, each with 4 bytes of elements
//               below the number of the call;
//            2. stores them into the staging memory of each peer;
//            3. looks at its own until both words of every peer's pack have this number, adds in
//               rank order, and stores the sums over the addends.
//          A word is stored and loaded whole, also as part of a vector (PTX memory model), so who
//          sees the number has the elements: relaxed accesses do, and nobody waits to enter or to
//          leave. No peer touches operands.
// Entry    `entered` of peer_call.h is stored before the packs and waited for beside them, by the
//          block's first threads. It orders no access here. It tells ranks in different calls
//          apart: neither ends its call before it has seen that the other is in this one or has
//          ended it, so neither gets past, and both see it.
// Slots    Each block has regions of its own in staging memory: [block][slot][rank][pack], slot =
//          number % 2, rank: who stores. So what lies there are numbers of one block, which only
//          grow, and a word of an earlier call has another number: they have 32 bits here, and a
//          word would have to lie for exactly 2^32 calls of its block to pass for a new one.
//          Two slots are enough. In call n + 2 block b overwrites what block b of a peer has read
//          in call n. It has ended call n + 1, and so has seen that the peer's block b entered it,
//          in a launch that began when that of call n was complete, by the order of the stream.
//          tests/comm/peer/peer_protocol_test.cc walks all interleavings of this.
// Source   Words with a flag are those of NCCL's low-latency protocol (LL, its prims_ll.h); there a
//          counter that the reader sends back says when a slot is free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "comm/peer/peer_call.h"
#include "runtime/base/arithmetic.h"

namespace millrace {

inline constexpr int64_t kPackBytes = 16, kPackElementBytes = 8;  // on the way; of elements
inline constexpr int kPackSlots = 2;
inline constexpr int64_t kStagingBytes = 1984 << 10;  // of a rank

struct PeerStaging {
  std::byte* of[kMaxPeers] = {};  // by rank, as this GPU addresses them
  int room = 0;                   // packs of [block][slot][rank]
};

// PeerStaging::room in a group of `world` ranks, of launches of at most `blocks`.
constexpr int PackRoom(int world, int blocks) {
  return static_cast<int>(kStagingBytes / (kPackSlots * (world - 1) * blocks * kPackBytes));
}

// The most that moves as packs, of elements.
constexpr int64_t MostPackedBytes(int world, int blocks) {
  return int64_t{blocks} * PackRoom(world, blocks) * kPackElementBytes;
}

// Blocks for so many bytes of elements, from 1 to MostPackedBytes, of at most `blocks`: a pack to a
// thread, and more where there are no more blocks. None is without packs.
constexpr int PackBlocks(int64_t bytes, int world, int blocks) {
  const int64_t packs = CeilDiv(bytes, kPackElementBytes);
  const int64_t each = std::min<int64_t>(std::max<int64_t>(kPeerThreads, CeilDiv(packs, blocks)),
                                         PackRoom(world, blocks));
  return static_cast<int>(CeilDiv(packs, each));
}

}  // namespace millrace
