// The collectives over host memory, on top of a transport that only moves bytes
// (comm/byte_exchange.h). Both host transports use this code, so in-process ranks and MPI give the
// same bits: sums go in rank order (comm/rank_order_sum.h), never through MPI_Reduce.
//
// Scratch  A reduction stages one chunk per rank, so scratch does not grow with the buffers. Sums
//          are per element: bits do not depend on the chunk size. All-gather stages nothing and
//          takes an absent scratch view.
// Counters The bytes that the transport says it has sent during each call (ByteExchange::moved). An
//          all-reduce of n elements cuts them into slices of s = ceil(n/W), the last ones shorter
//          or empty. A rank sends each peer its slice of the addends, then the sums of its own
//          slice of c elements to all: (n + (W-2)*c)*size. With n <= 2*s it sends everything to
//          all, (W-1)*n*size. Where W divides n both are communicator.h's figure; otherwise a rank
//          sends at most that, and fewer than W*W elements less.
// Streams  A host stream has run each call on return, so the stream argument is not used.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/byte_exchange.h"
#include "comm/communicator.h"

namespace millrace {

inline constexpr int64_t kDefaultChunkBytes = 256 * 1024;

// Every rank of a world has the same options.
struct HostCommOptions {
  std::chrono::milliseconds timeout =
      std::chrono::minutes(10);              // longest wait within one call for a peer to arrive
  int64_t chunk_bytes = kDefaultChunkBytes;  // a positive multiple of 64
};

// Bytes of scratch that ReduceScatterSum and AllReduceSum want: world * chunk_bytes; 0 at world 1.
// Aligned to 8 bytes.
constexpr int64_t ScratchBytes(int world, int64_t chunk_bytes = kDefaultChunkBytes) noexcept {
  return world > 1 ? world * chunk_bytes : 0;
}

std::unique_ptr<Communicator> MakeHostCommunicator(std::unique_ptr<ByteExchange> exchange,
                                                   const HostCommOptions& options);

}  // namespace millrace
