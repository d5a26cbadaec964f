// All-gathers that store this rank's shard into every rank's buffer, for peer_call.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "comm/peer/peer_call.h"
#include "runtime/base/dtype.h"

namespace millrace {

// Where this rank's shard goes: its place in the buffers of `count` ranks, nearest neighbour first,
// so that not all ranks store to the same one at a time. Its own buffer, where the gather is not in
// place, is the last.
struct PeerSlots {
  std::byte* slot[kMaxPeers] = {};
  int count = 0;
};

// slot[k][0, bytes) = shard[0, bytes) for all k. Any alignment.
void LaunchPeerGather(const PeerCall& call, const std::byte* shard, const PeerSlots& slots,
                      int64_t bytes, cudaStream_t stream);

// slot[k][i] = master[i] in `to`, bf16 or f16, rounded to nearest even, for i in [0, n).
void LaunchPeerRoundingGather(const PeerCall& call, const float* master, DType to,
                              const PeerSlots& slots, int64_t n, cudaStream_t stream);

// Blocks that a multiprocessor of the current GPU takes, of whichever of these kernels.
int PeerGatherBlocksEach();

// Bytes that these kernels have stored into other GPUs' memory, on the current GPU since the
// program began, replays included. Waits for the GPU. nullopt: this build does not count
// (comm/peer/peer_count.cuh).
std::optional<int64_t> PeerBytesStored();

}  // namespace millrace
