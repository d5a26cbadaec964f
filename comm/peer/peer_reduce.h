// Reduce-scatters that load this rank's slice of every rank's buffer and add in
// rank order, for peer_call.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "comm/peer/peer_call.h"
#include "runtime/base/dtype.h"

namespace millrace {

struct PeerSlices {
  const std::byte* slice[kMaxPeers] = {};  // by rank
};

// out[i] = ((slice[0][i] + slice[1][i]) + slice[2][i]) + ... for i in [0, n): the sum of
// comm/rank_order_sum.h, bit for bit where it is a number. f32 and bf16 accumulate in f32, bf16
// rounds once; f64 in double. Any alignment that the dtype has. `out` may be this rank's own slice,
// of which its peers read nothing.
void LaunchPeerReduce(const PeerCall& call, const PeerSlices& slices, std::byte* out, DType dtype,
                      int64_t n, cudaStream_t stream);

// Blocks that a multiprocessor of the current GPU takes, of whichever of these kernels.
int PeerReduceBlocksEach();

// As PeerBytesStored of peer_gather.h: loaded from other GPUs' memory.
std::optional<int64_t> PeerBytesLoaded();

}  // namespace millrace
