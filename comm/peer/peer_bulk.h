// The kernels of peer_gather.h and peer_reduce.h that move by cp.async.bulk: few threads, much in flight. All
// operands are aligned to 16 bytes; sizes need not be multiples of it.
// Source   PTX ISA 9, "Asynchronous copy operations": completion of a bulk copy makes its writes visible to
// the
//          thread that waits for it, as writes of its own.
#pragma once

#include "comm/peer/peer_gather.h"
#include "comm/peer/peer_reduce.h"

namespace millrace {

void LaunchBulkGather(const PeerCall& call, const std::byte* shard, const PeerSlots& slots, int64_t bytes,
                      cudaStream_t stream);
void LaunchBulkReduce(const PeerCall& call, const PeerSlices& slices, std::byte* out, DType dtype, int64_t n,
                      cudaStream_t stream);

}  // namespace millrace
