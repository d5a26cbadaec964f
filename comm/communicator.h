// Collectives over one process group. Implementations: comm/mpi (host memory), comm/local (ranks as
// threads of one process, for tests and embedding), comm/nccl (CUDA), comm/peer (CUDA, one host).
//
// Sums     Every implementation: the same bits run after run, and for an all-reduce on every rank.
//          Host (comm/host_collectives.h), comm/peer: f32 accumulation in rank order, rounded once
//          to the dtype (f32, bf16, f16); f64 accumulates in double. So MPI, in-process ranks and
//          peers give the same bits.
//          NCCL: order and intermediate roundings are those of the algorithm that it picks from
//          the op, the size, the dtype, the group and its topology; the same ones eager and
//          captured. See comm/nccl/nccl_communicator.h for what that means for bf16: f32 on the
//          wire where roundings matter. Where every partial sum is exact, all implementations
//          agree bit for bit.
// Units    n = shard.numel() counts elements, per rank. All views are 1-D and contiguous.
// Streams  Calls enqueue on `stream` and return; buffers are touched in stream order. A host stream
//          has run the call on return.
// Order    Every rank of the group makes the same calls in the same order, with the
//          same n and dtype.
// Scratch  Staging memory of the size that the implementation asks for (comm/host_collectives.h:
//          ScratchBytes), contents undefined; absent at world size 1 and where nothing is staged.
// Errors   Wrong numel, dtype or overlap: Error(kInvalidArgument), nothing moved. A lost peer or
//          Abort(): Error(kPeerLost); a wait longer than the time-out: Error(kTimeout) naming the
//          op and this rank. After either only Abort() and destruction remain valid.
// Counters What has moved, not what a plan expects: the prediction has formulas of its own
//          (runtime/plan/cost/cost_model.h), and tests compare the two. Pieces of which a transport
//          moves the live rows only count whole: what is live, the device alone knows. Host
//          transports count the bytes where they move (comm/byte_exchange.h). Device transports
//          count what they launch, from the sizes that the launch is given (comm/launched_bytes.h);
//          tools/bench/wire_check.py compares that with the links' own counters. A captured
//          call counts when it is captured; who replays it adds that again per launch
//          (runtime/exec/executor.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/byte_exchange.h"
#include "runtime/base/device.h"
#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// What one communicator has moved: wire bytes that this rank sends. All-gather, reduce-scatter and
// all-to-all (W-1)*n*size, all-reduce 2*(W-1)*ceil(n/W)*size, W = world_size, n per rank
// (all-to-all: a piece's numel, all-reduce: the buffer's), size = bytes of the dtype; 0 at W == 1.
// Where W does not divide n, slices of an all-reduce on hosts are uneven and a rank sends a little
// less (comm/host_collectives.h); one of few bytes over peers' memory sends more, and counts so all
// the same (comm/peer/peer_communicator.h).
struct CommCounters {
  int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0;
  int64_t gathered_bytes = 0, reduced_bytes = 0, all_reduced_bytes = 0;
  int64_t all_to_alls = 0, exchanged_bytes = 0;
  bool operator==(const CommCounters&) const = default;

  CommCounters& operator+=(const CommCounters& d) {
    all_gathers += d.all_gathers;
    reduce_scatters += d.reduce_scatters;
    all_reduces += d.all_reduces;
    gathered_bytes += d.gathered_bytes;
    reduced_bytes += d.reduced_bytes;
    all_reduced_bytes += d.all_reduced_bytes;
    all_to_alls += d.all_to_alls;
    exchanged_bytes += d.exchanged_bytes;
    return *this;
  }
  CommCounters operator-(const CommCounters& b) const {
    return {all_gathers - b.all_gathers,     reduce_scatters - b.reduce_scatters,
            all_reduces - b.all_reduces,     gathered_bytes - b.gathered_bytes,
            reduced_bytes - b.reduced_bytes, all_reduced_bytes - b.all_reduced_bytes,
            all_to_alls - b.all_to_alls,     exchanged_bytes - b.exchanged_bytes};
  }
};

// The kinds of call that a communicator is used for.
struct CommUses {
  bool all_gathers = true, reduce_scatters = true, all_reduces = true, all_to_alls = true;
};
inline constexpr CommUses kNoCommUses = {
    .all_gathers = false, .reduce_scatters = false, .all_reduces = false, .all_to_alls = false};

// Of an all-to-all's pieces of rows, those that the receiver needs: of the piece for rank r the
// first sum over i of counts[r*m + i], as the sender's device has counted.
struct LiveRows {
  TensorView counts;      // i32 [world_size*m], of the sender; absent: all of every piece
  int64_t row_numel = 0;  // elements of a row; it divides a piece
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const noexcept = 0;        // in [0, world_size())
  virtual int world_size() const noexcept = 0;  // >= 1

  // full[r*n + i] = (shard of rank r)[i], bit for bit, any dtype. In place when shard.data is
  // full.data + rank*n elements; other overlap is an error.
  // Of f32 shards into a full buffer of bf16 or f16, where RoundsInGathers: each element is rounded
  // to nearest even on its way; never in place; moved and counted as a gather of full's dtype.
  virtual void AllGather(const TensorView& shard, const TensorView& full, const TensorView& scratch,
                         Stream& stream) = 0;

  // Whether AllGather takes f32 shards for a full buffer of bf16 or f16. The same on all ranks.
  virtual bool RoundsInGathers() const noexcept { return false; }

  // shard[i] = sum over ranks r of (full of rank r)[rank*n + i], for f32, bf16, f16, f64, rounded
  // as above. `full` is not changed; no overlap.
  virtual void ReduceScatterSum(const TensorView& full, const TensorView& shard,
                                const TensorView& scratch, Stream& stream) = 0;

  // buffer[i] = sum over ranks, as above, in place: the same bits on every rank.
  virtual void AllReduceSum(const TensorView& buffer, const TensorView& scratch,
                            Stream& stream) = 0;

  // received[r*n + i] = (sent of rank r)[rank*n + i], bit for bit, any dtype: each rank has a piece
  // of n elements for every rank, itself included.  sent, received [world_size*n]; no overlap.
  // What is not live, of pieces whose rows are counted, is moved or not, as it suits the transport.
  virtual void AllToAll(const TensorView& sent, const TensorView& received, const LiveRows& live,
                        Stream& stream) = 0;

  // Whether the next of the calls above writes these marks itself, as Device::EnqueueMarks would
  // before and behind it, without launches of their own. Where not, nothing is kept. Of no words:
  // no marks.
  virtual bool MarkNextCall(const Device::Mark& /*begun*/, const Device::Mark& /*ended*/) {
    return false;
  }

  // Host-side helpers outside the step (set-up, checkpoints, votes): blocking, not counted.
  // out[r] = payload of rank r; payload sizes may differ.
  virtual std::vector<std::string> HostAllGather(const std::string& payload) = 0;
  virtual std::string HostBroadcast(const std::string& payload, int root) = 0;
  // received[r] = sent[rank] of rank r, into memory that the caller has; both [world_size]. Pieces
  // may be empty and of any size, which both sides know; received ones overlap nothing. Blocks only
  // on peers with a piece that is not empty. Error(kInvalidArgument): other counts of pieces, or of
  // bytes between this rank and itself; Error(kComm): of bytes between this rank and another.
  virtual void HostAllToAll(std::span<const SendPiece> sent,
                            std::span<const RecvPiece> received) = 0;
  virtual void Barrier() = 0;

  virtual const CommCounters& counters() const noexcept = 0;

  // Makes [base, base + bytes), memory of CommFactory::AllocateArena, known to the transport, which
  // may then move it without staging. A collective, before the first capture: every rank passes as
  // many bytes and from then on uses the same offsets in the same calls. UnregisterMemory (local;
  // no call in flight, captured graphs gone) comes before the memory is freed; destruction does it,
  // too. Default: nothing to know.
  virtual void RegisterMemory(std::byte* /*base*/, int64_t /*bytes*/) {}
  virtual void UnregisterMemory(std::byte* /*base*/) noexcept {}

  // Runs each kind of call in `uses`, few elements and many, on memory and a stream of its own, and
  // checks the results, so that the transport works and has loaded and connected what these calls
  // need. A collective, uncounted, after RegisterMemory and before step 0; `uses` is the same on
  // all ranks. Other calls remain valid; the first may connect, so a call is issued once before it
  // is captured. Error(kComm): a result is wrong.
  virtual void Connect(const CommUses& /*uses*/) {}

  // Throws when the group is known to be broken: Error(kPeerLost) after an abort,
  // Error(kComm) with the transport's words. Does not block; from any thread, while another
  // is in a call: for watchdogs.
  virtual void CheckHealth() const {}

  // Unblocks the pending calls, with `reason` as the message of these and all later ones.
  // Idempotent, from any thread; for error paths. Host transports unblock every rank of the group.
  // A device transport unblocks this rank's calls; its peers learn of it through the host transport
  // beside it: processes end, threads find it in CheckHealth() and abort their own.
  virtual void Abort(const std::string& reason) noexcept = 0;
};

}  // namespace millrace
