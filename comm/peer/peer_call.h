// What kernels between peers are told, and the words by which their blocks find each other.
//
// Protocol One launch per rank, with as many blocks on each. Block b of every
// rank is a group of its own:
//            1. tells block b of each peer that it has entered: what was before this call on its
//               stream is done there, so its operand may be read, and its result overwritten;
//            2. waits until block b of each peer has entered;
//            3. moves its part: stores into all ranks' results, or loads from all ranks' operands;
//            4. tells block b of each peer that it is done, and waits for the same of them.
//          When all blocks of a rank have ended, all that peers store there has arrived, and none
//          of them reads there any more. Words are stored with release and loaded with acquire at
//          system scope (PTX memory model); the barrier of the block puts all its threads' accesses
//          before the one and behind the other.
// Epochs   A word holds the number of the call of its block, counted in device memory: replays of a
//          graph go on counting. Words only grow, so none is ever set back and a peer that is ahead
//          does no harm. tests/comm/peer/peer_protocol_test.cc walks all interleavings of this.
// Packs    Sums of few bytes have another protocol, in a lane of all-reduces: peer_packs.h.
// Waiting  Blocks spin, so all blocks of a call must come to run on every GPU while others spin. A
//          block waits for its own number on other GPUs only, never for a block of its own GPU;
//          blocks of other kernels end by themselves, or begin early behind one of these, which
//          then has its places. So it is enough that the spinning blocks of
//          all lanes of a GPU fit at once. peer_room.h counts them; a run (peer_factory.h) and
//          each communicator ask for that room at set-up, by the GPU's own numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace millrace {

inline constexpr int kMaxPeers = 8;        // ranks of a group
inline constexpr int kMaxPeerBlocks = 64;  // of a launch
inline constexpr int kPeerThreads = 512;   // of a block
inline constexpr int kPeerGatherBlocks = 16, kPeerReduceBlocks = 32, kPeerExchangeBlocks = 32,
                     kPeerAllReduceBlocks = 32;  // of a launch, unless asked
// peer_room.cc counts gathers and reductions of a stream in place of its other calls.
static_assert(std::max(kPeerExchangeBlocks, kPeerAllReduceBlocks) <=
              kPeerGatherBlocks + kPeerReduceBlocks);

// Written by peers, read here. Word r is rank r's: call number << kSignatureBits, and in `entered`
// the signature of the call below it.
struct alignas(128) PeerWords {
  uint64_t entered[kMaxPeers];
  uint64_t done[kMaxPeers];
};
inline constexpr int kSignatureBits = 24;

// One for each kind of call of a communicator, so that calls of different kinds may overlap.
struct PeerLane {
  PeerWords blocks[kMaxPeerBlocks];
  uint64_t calls[kMaxPeerBlocks];  // that block b has completed; this rank's own
  uint32_t left;                   // blocks that have left the call in progress; this rank's own
};

// What a call writes into a word of host memory; null: nothing.
struct PeerMark {
  uint64_t* word = nullptr;
  uint64_t value = 0;
};

// Leaves out a wait, and makes ranks of odd number slow to move, for tests that prove that this
// would be noticed. kNoEntry of packs: that for the peers' packs.
enum class PeerFault : int { kNone, kNoEntry, kNoDone };

// By value, so that a captured launch keeps it.
struct PeerCall {
  PeerLane* lanes[kMaxPeers] = {};  // by rank, as this GPU addresses them
  // Host memory. *stop != 0 ends all waits, and what the call leaves behind is undefined. *strange
  // is set to 1 + r when rank r is in another call than this one; the block then waits for *stop.
  const uint32_t* stop = nullptr;
  uint32_t* strange = nullptr;
  // Written when the first block runs, and when the last one has left.
  PeerMark begun, ended;
  uint32_t signature = 0;  // the same on all ranks for the same call; kSignatureBits
  int rank = 0, world = 1, blocks = 1;
  PeerFault fault = PeerFault::kNone;
};

}  // namespace millrace
