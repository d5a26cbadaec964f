// Collectives over one process group. Implementations: comm/mpi (host memory), comm/local (ranks as threads
// of one process, for tests and embedding), comm/nccl (CUDA). Host implementations move bytes and sum in rank
// order in shared code (comm/host_collectives.h), so MPI and in-process ranks give the same bits.
//
// Units    n = shard.numel() counts elements, per rank. All views are 1-D and contiguous.
// Streams  Calls enqueue on `stream` and return; buffers are touched in stream order. A host stream has run
//          the call on return.
// Order    Every rank of the group makes the same calls in the same order, with the same n and dtype.
// Scratch  Staging memory of the size that the implementation asks for (comm/host_collectives.h:
//          ScratchBytes), contents undefined; absent at world size 1 and where nothing is staged.
// Errors   Wrong numel, dtype or overlap: Error(kInvalidArgument), nothing moved. A lost peer or Abort():
//          Error(kPeerLost); a wait longer than the time-out: Error(kTimeout) naming the op and this rank.
//          After either only Abort() and destruction remain valid.
// Counters Bytes are counted here, from the arguments, not by callers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/stream.h"
#include "runtime/base/tensor_view.h"

namespace millrace {

// What one communicator has moved: wire bytes that this rank sends. All-gather and reduce-scatter
// (W-1)*n*size, all-reduce 2*(W-1)*ceil(n/W)*size, W = world_size, n per rank (all-reduce: the buffer's
// numel), size = bytes of the dtype; 0 at W == 1.
struct CommCounters {
  int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0;
  int64_t gathered_bytes = 0, reduced_bytes = 0, all_reduced_bytes = 0;
  bool operator==(const CommCounters&) const = default;

  CommCounters& operator+=(const CommCounters& d) {
    all_gathers += d.all_gathers;
    reduce_scatters += d.reduce_scatters;
    all_reduces += d.all_reduces;
    gathered_bytes += d.gathered_bytes;
    reduced_bytes += d.reduced_bytes;
    all_reduced_bytes += d.all_reduced_bytes;
    return *this;
  }
  CommCounters operator-(const CommCounters& b) const {
    return {all_gathers - b.all_gathers,     reduce_scatters - b.reduce_scatters,
            all_reduces - b.all_reduces,     gathered_bytes - b.gathered_bytes,
            reduced_bytes - b.reduced_bytes, all_reduced_bytes - b.all_reduced_bytes};
  }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const noexcept = 0;        // in [0, world_size())
  virtual int world_size() const noexcept = 0;  // >= 1

  // full[r*n + i] = (shard of rank r)[i], bit for bit, any dtype. In place when shard.data is full.data +
  // rank*n elements; other overlap is an error.
  virtual void AllGather(const TensorView& shard, const TensorView& full, const TensorView& scratch,
                         Stream& stream) = 0;

  // shard[i] = sum over ranks r of (full of rank r)[rank*n + i]: f32 accumulation in rank order, rounded once
  // to the dtype (f32, bf16); f64 accumulates in double. `full` is not changed; no overlap.
  virtual void ReduceScatterSum(const TensorView& full, const TensorView& shard, const TensorView& scratch,
                                Stream& stream) = 0;

  // buffer[i] = sum over ranks, as above, in place: the same bits on every rank.
  virtual void AllReduceSum(const TensorView& buffer, const TensorView& scratch, Stream& stream) = 0;

  // Host-side helpers outside the step (set-up, checkpoints, votes): blocking, not counted.
  // out[r] = payload of rank r; payload sizes may differ.
  virtual std::vector<std::string> HostAllGather(const std::string& payload) = 0;
  virtual std::string HostBroadcast(const std::string& payload, int root) = 0;
  virtual void Barrier() = 0;

  virtual const CommCounters& counters() const noexcept = 0;
  // Sets the counters, for example from a checkpoint so that a resumed run counts on.
  virtual void SetCounters(const CommCounters& counters) = 0;

  // Unblocks the pending calls of every rank of the group, with `reason` as their message. Idempotent; for
  // error paths.
  virtual void Abort(const std::string& reason) noexcept = 0;
};

}  // namespace millrace
