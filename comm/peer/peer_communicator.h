// All-gathers, reduce-scatters, all-reduces and all-to-alls by kernels that store into, or load
// from, the other GPUs' memory: one launch each, and two for an all-reduce of many bytes. Of an
// all-to-all's pieces only the live rows are stored.
//
// Sums     Those of comm/rank_order_sum.h, so the bits of the host transports, whatever the size.
// All-     Few bytes, MostPackedBytes of peer_packs.h (496 KiB on 2 ranks, 70 on 8): every rank
// reduces  sends all its addends to every other and adds itself, in one launch, which waits for
//          nothing but these. More: a reduce-scatter of slices in place, then a gather of them.
// Counters As communicator.h, an all-reduce by its closed form whichever way it goes. As packs it
//          sends more, 2 (W-1) n*size: every addend to every rank, and the call's number with it.
// Memory   `full` of a call, `received` of an all-to-all, `buffer` of an all-reduce, lies in
//          registered memory, at the same offset on every rank. Anything else is
//          Error(kInvalidArgument), or, where it differs between ranks, found by the kernels:
//          CheckHealth throws Error(kComm) naming the peer, and the call waits for Abort. There is
//          no other path. Registered memory is cudaMalloc's (peer_mapping.h). A communicator has
//          2 MiB of its own.
// Streams  Capturable. Calls of one kind are ordered by their streams, one behind the other; those
//          of different kinds may overlap, and calls of two communicators, where the GPU has room
//          for all that wait (peer_room.h): blocks spin for peers. peer_call.h says why that ends.
// Marks    MarkNextCall: a call writes them in its own kernels.
// Abort    Ends the waits of this rank's kernels; results are undefined then.
// Tear-    UnregisterMemory and the destructor let the ranks meet: none frees what a peer has
// down     mapped. Not after Abort, nor while an exception unwinds: then the job ends, and its
//          memory with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/peer/peer_call.h"
#include "comm/peer/peer_mapping.h"
#include "comm/peer/peer_room.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/log.h"

namespace millrace {

struct PeerOptions {
  // Blocks of a call at most, 1 to kMaxPeerBlocks, and no more than the GPU runs at once
  // (peer_room.h; Error(kConfig)). Microseconds with 8 / 16 / 32 on two H200s
  // (peer_bench, 2026-11-21), bf16, 1, 14 and 64 MiB: all-gather 7.9 / 6.8 / 6.7, 42 / 29 / 28, 175
  // / 115 / 112; reduce-scatter 9.3 / 8.0 / 7.7, 52 / 31 / 29, 236 / 131 / 111. So what is left to
  // products decides for gathers.
  int gather_blocks = kPeerGatherBlocks, reduce_blocks = kPeerReduceBlocks;
  int exchange_blocks = kPeerExchangeBlocks, all_reduce_blocks = kPeerAllReduceBlocks;
  // Bytes of an all-reduce that goes as packs, at most, where MostPackedBytes is not less. 256 KiB
  // of bf16 take 4.9 us so and 12.0 by slices, on two H200s (peer_bench, 2026-11-29).
  int64_t packed_bytes = std::numeric_limits<int64_t>::max();
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of Connect
  PeerFault fault = PeerFault::kNone;                            // tests
  PeerGpus gpus = PeerGpus::kOwn;
};

// Told from others by its type. Rounds in gathers.
class PeerCommunicator : public Communicator {};

// What `device` takes of these communicators' kernels; makes it the current one of the thread.
BlockRoom PeerRoomOf(const CudaDevice& device);

// A collective over the ranks of `host`, two at least, which becomes part of the communicator. The
// device and the log outlive the result. Options are the same on all ranks, and so is
// Error(kComm): peers' memory cannot be had.
std::unique_ptr<PeerCommunicator> MakePeerCommunicator(std::unique_ptr<Communicator> host,
                                                       CudaDevice& device, const std::string& label,
                                                       const PeerOptions& options,
                                                       Log& log = NoLog());

}  // namespace millrace
