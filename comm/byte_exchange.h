// What a host transport does: it moves bytes between the ranks of one group. Everything else
// (validation, chunking, summation) is shared code on top: comm/host_collectives.h.
// Implementations: comm/local, comm/mpi.
//
// Order    Every rank of the group makes the same calls in the same order, with matching sizes.
// Threads  One call at a time; only Abort() may come from another thread.
// Counters Bytes are counted here, where they move: a piece is added when it has been copied or
//          when the transport has completed its message, never from what a caller asked for.
//          Shared code derives the published counters from these (comm/communicator.h).
// Errors   Error(kPeerLost) after Abort() or when a peer has gone, Error(kTimeout) when a peer did
//          not come in time, Error(kComm) when the sizes of the two sides differ. Each names the
//          op, the group's label, this rank and, where known, the peer. After any of them every
//          later call throws again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace millrace {

enum class CommOp : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kHostAllGather,
  kHostBroadcast,
  kHostAllToAll,
  kBarrier,
  kConnect
};

constexpr const char* Name(CommOp op) noexcept {
  switch (op) {
    case CommOp::kAllGather:
      return "all_gather";
    case CommOp::kReduceScatter:
      return "reduce_scatter";
    case CommOp::kAllReduce:
      return "all_reduce";
    case CommOp::kAllToAll:
      return "all_to_all";
    case CommOp::kHostAllGather:
      return "host_all_gather";
    case CommOp::kHostBroadcast:
      return "host_broadcast";
    case CommOp::kHostAllToAll:
      return "host_all_to_all";
    case CommOp::kBarrier:
      return "barrier";
    case CommOp::kConnect:
      return "connect";
  }
  return "?";
}

struct SendPiece {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};
struct RecvPiece {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// Bytes that have moved between this rank and others since the exchange was made, of all calls
// that have returned. sent: from this rank's pieces to peers; a piece that goes to three peers
// counts three times. received: from peers into this rank's pieces. What a rank keeps for itself
// and empty pieces move nothing. Over a group the sums of both are equal.
struct MovedBytes {
  int64_t sent = 0, received = 0;
  bool operator==(const MovedBytes&) const = default;
};

class ByteExchange {
 public:
  virtual ~ByteExchange() = default;

  virtual int rank() const noexcept = 0;        // in [0, world_size())
  virtual int world_size() const noexcept = 0;  // >= 1
  virtual const std::string& label() const noexcept = 0;

  // Both [world_size]: for each peer p != rank(), sends[p] of this rank lands in recvs[rank()] of
  // p. Entries of this rank itself are ignored. Pieces may be empty and of any size; the send
  // pieces of several peers may be the same bytes; receive pieces overlap nothing. Returns when the
  // received bytes are there and the sent ones are no longer read. Blocks only on peers with a
  // piece that is not empty.
  virtual void Exchange(CommOp op, std::span<const SendPiece> sends,
                        std::span<const RecvPiece> recvs) = 0;

  virtual MovedBytes moved() const noexcept = 0;

  // As Communicator::Abort and CheckHealth.
  virtual void Abort(const std::string& reason) noexcept = 0;
  virtual void CheckHealth() const {}
};

}  // namespace millrace
