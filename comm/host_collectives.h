// The collectives over host memory, on top of a transport that only moves bytes
// (comm/byte_exchange.h). Both host transports use this code, so in-process ranks and MPI give the
// same bits: sums go in rank order (comm/rank_order_sum.h), never through MPI_Reduce.
//
// Scratch  A reduction stages one chunk per rank, so scratch does not grow with the buffers. Sums
//          are per element: bits do not depend on the chunk size. All-gather stages nothing and
//          takes an absent scratch view.
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

// Wire bytes of one call as CommCounters defines them. `n` is the shard's numel,
// for all-reduce the buffer's.
constexpr int64_t GatherWireBytes(int world, int64_t n, int64_t element_bytes) noexcept {
  return (world - 1) * n * element_bytes;
}
constexpr int64_t AllReduceWireBytes(int world, int64_t n, int64_t element_bytes) noexcept {
  return 2 * (world - 1) * ((n + world - 1) / world) * element_bytes;
}

std::unique_ptr<Communicator> MakeHostCommunicator(std::unique_ptr<ByteExchange> exchange,
                                                   const HostCommOptions& options);

}  // namespace millrace
