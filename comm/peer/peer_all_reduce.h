// All-reduces of few bytes in one launch, by packs (peer_packs.h). Those of more bytes are a
// reduce-scatter and an all-gather of slices: peer_communicator.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/peer/peer_call.h"
#include "comm/peer/peer_packs.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/dtype.h"

namespace millrace {

// buffer[i] = ((buffer of rank 0)[i] + (buffer of rank 1)[i]) + ... for i in [0, n), in place: the
// sum of comm/rank_order_sum.h, bit for bit where it is a number, and the same bits on every rank.
// f32, bf16 and f16 accumulate in f32, the latter two round once; f64 in double. Any alignment that
// the dtype has; the buffer is this GPU's alone. 1 to MostPackedBytes bytes; call.blocks is
// PackBlocks of them. In a graph it may begin early, as launch.h says.
void LaunchPeerAllReduce(const PeerCall& call, const PeerStaging& staging, std::byte* buffer,
                         DType dtype, int64_t n, const cuda::Launch& launch);

// Blocks that a multiprocessor of the current GPU takes, of whichever of these kernels.
int PeerAllReduceBlocksEach();

}  // namespace millrace
