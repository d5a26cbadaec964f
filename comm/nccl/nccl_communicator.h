// The collectives over NCCL on one GPU per rank. A host communicator over the same ranks carries
// what is not a collective: host helpers, the rendezvous, votes, aborts.
//
// Sums     ncclSum only: ncclAvg and pre-multiplied sums leave the kernels of symmetric windows.
//          What W ranks add in NCCL 2.28 (its sources say so; tests/comm/nccl checks the bounds):
//          - f32, f64: W - 1 additions in the dtype, in ring or tree order; between windows from
//            the own rank upwards, or in rank order (small messages).
//          - bf16 without windows: each hop adds in bf16, so W - 1 roundings to 8 bits; so f16, to
//            11, and a partial sum may overflow where the whole would not. f32 on the wire is
//            recommended where that matters, from three ranks on; at two both round once.
//          - bf16, f16 between windows (reduce-scatter, all-reduce): accumulated in f32, rounded
//            once.
//          The algorithm may change with the size; not between runs, eager and captured, or first
//          and later calls: it does not depend on what is connected, and captured buffers are not
//          registered (nccl_options.h).
// World 1  No NCCL communicator; a copy on the stream where operands differ.
// Scratch  Not used.
// Streams  Streams of the device that the communicator was made with; capturable. Calls do not
//          block, except that the driver may when a thousand launches are waiting.
// First    The first call that picks an algorithm connects its channels: it allocates their buffers
// calls    and waits on the host for the peers' same call, without a time-out of its own (a
//          watchdog sees it, Abort ends it). Connect() has done that for few and many elements.
//          What is left (a size that picks trees, from three ranks on) belongs into an eager call
//          before the capture, as RecordedStep does. Inside a capture it works, too, if that is a
//          relaxed one, as CudaDevice's are: NCCL 2.28 connects on streams of its own outside the
//          capture (ncclTransportP2pSetup takes ncclCudaGraphNone).
// Windows  With options.symmetric, RegisterMemory makes the arena a symmetric window; when one rank
//          cannot, all refuse together (Error(kComm)): there is no silent other path. On NCCL
//          versions whose kernels need it an empty kernel goes before each collective
//          (nccl_fence.h).
//          Operands that lie in windows begin at multiples of 4 bytes, and so do the slices of an
//          all-gather or reduce-scatter; Error(kInvalidArgument) otherwise, nothing moved. The
//          low-latency kernels lose the end of every 8 bytes that they read from an address in
//          between (loadPack in 2.28.9, seen with bf16 shards of odd length; repaired in 2.30.7).
//          Plans pad shards to 256 bytes. Operands outside windows have no such limit.
// Abort    Stops NCCL's kernels of this communicator; those between windows do not look at the
//          flag, and end with the process. A captured graph keeps NCCL's state alive until it is
//          destroyed.
// Tear-    Graphs that captured calls first, then the communicator, which deregisters windows, then
// down     the memory. NCCL waits for the graphs without limit; the destructor waits for
//          options.timeout, says so (`log`) and goes on.
// Errors   As communicator.h; NCCL's refusals are Error(kComm), kDevice or kPeerLost
//          in NCCL's words.
// Threads  Abort and CheckHealth from any thread; everything else from the rank's.
//          Ranks as threads of one process: ncclCommDestroy returns at once on all but the last
//          rank, which then frees every rank's part, on every rank's GPU. Parts are freed by one
//          thread at a time; the ranks meet at a barrier after their communicators are gone, before
//          they free anything else.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/nccl_options.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/log.h"

namespace millrace {

// A collective over the ranks of `host`, which becomes part of the
// communicator. The device and the log outlive it.
std::unique_ptr<Communicator> MakeNcclCommunicator(std::unique_ptr<Communicator> host,
                                                   CudaDevice& device, const std::string& label,
                                                   const NcclOptions& options, Log& log = NoLog());

}  // namespace millrace
