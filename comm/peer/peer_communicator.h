// All-gathers and reduce-scatters by one kernel each that stores into, or loads from, the other GPUs' memory;
// everything else by another communicator over the same ranks.
//
// Sums     Reduce-scatter: those of comm/rank_order_sum.h, so the bits of the host transports; all-reduce:
// the
//          other communicator's.
// Memory   `full` of a call lies in registered memory, at the same offset on every rank. Anything else is
//          Error(kInvalidArgument), or, where it differs between ranks, found by the kernels: CheckHealth
//          throws Error(kComm) naming the peer, and the call waits for Abort. There is no other path.
//          Registered memory is cudaMalloc's (peer_mapping.h).
// Streams  Capturable. Calls of one kind are ordered by their streams, one behind the other; an all-gather
// and a
//          reduce-scatter may overlap. Up to `max_blocks` blocks spin for peers: peer_call.h says why that
//          ends.
// Abort    Ends the waits of this rank's kernels; results are undefined then.
// World 1  All is the other communicator's.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/nccl_options.h"
#include "comm/peer/peer_gather.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace {

struct PeerOptions {
  int max_blocks = 16;  // of a call, 1 to kMaxPeerBlocks
  PeerMover gather_mover = PeerMover::kStores, reduce_mover = PeerMover::kStores;
  PeerFault fault = PeerFault::kNone;  // tests
  NcclOptions nccl;                    // of the other communicator
};

class PeerCommunicator : public Communicator {
 public:
  // full[r*n + i] = bf16 of (master of rank r)[i], rounded to nearest even. master [n] f32 anywhere on the
  // device, full [world * n] bf16 as for AllGather. Counted as the all-gather of bf16 that it is.
  virtual void AllGatherBF16(const TensorView& master, const TensorView& full, Stream& stream) = 0;
};

// A collective over the ranks of `other`, a communicator of the same device. The device outlives it.
// Error(kComm) on all ranks where peers' memory cannot be had.
std::unique_ptr<PeerCommunicator> MakePeerCommunicator(std::unique_ptr<Communicator> other,
                                                       CudaDevice& device, const std::string& label,
                                                       const PeerOptions& options);

}  // namespace millrace
