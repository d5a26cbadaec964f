// All-to-alls that store each piece into its receiver's buffer, of pieces whose live rows are
// counted on the device only these; for peer_call.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/peer/peer_call.h"

namespace millrace {

// Piece k goes from `from` to `to`, nearest neighbour first, so that not all ranks store to the
// same one at a time; this rank's own is the last. `rank`: who receives it.
struct PeerPieces {
  struct Piece {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int rank = 0;
  };
  Piece piece[kMaxPeers] = {};
  int count = 0;
  int64_t bytes = 0;  // of a piece
  // i32 [ranks, counts_each]: rows of `row_bytes` that are live in the piece for each rank, in
  // parts; the bytes behind them are not stored. nullptr: all are.
  const int32_t* counts = nullptr;
  int counts_each = 0;
  int64_t row_bytes = 0;
};

// Any alignment.
void LaunchPeerExchange(const PeerCall& call, const PeerPieces& pieces, cudaStream_t stream);

// Blocks that a multiprocessor of the current GPU takes, of whichever of these kernels.
int PeerExchangeBlocksEach();

}  // namespace millrace
