// One ncclComm_t and everything that threads may do to it at once: calls of the rank's
// thread, a watchdog's look, an abort from anywhere, tear-down. Shared with the threads that
// NCCL's blocking calls run on.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "comm/nccl/nccl_options.h"

namespace millrace {

class NcclHandle : public std::enable_shared_from_this<NcclHandle> {
 public:
  struct Place {
    int ordinal = 0;  // of the GPU
    int rank = 0, world_size = 1;
    std::string label;
  };

  // Joins the communicator of `id`; blocks until all ranks have. Error(kTimeout), Error(kComm).
  static std::shared_ptr<NcclHandle> Join(const Place& place, const ncclUniqueId& id,
                                          const NcclOptions& options);

  // fn(ncclComm_t) -> ncclResult_t. Throws Error(kPeerLost) after an abort, and what CheckNccl
  // throws. `op` names it in errors.
  template <class Fn>
  void Call(const char* op, const char* call, Fn fn) {
    std::shared_lock lock(in_use_);
    ThrowIfAborted(op);
    const ncclResult_t result = fn(comm_);
    if (result == ncclSuccess) return;
    Settle(op, call, result);
  }

  // As Call, for a call that waits for peers; `fn` runs on another thread and owns what it touches.
  void CallBlocking(const char* op, const char* call, std::function<ncclResult_t(ncclComm_t)> fn);

  // Throws as Communicator::CheckHealth.
  void CheckHealth() const;

  // Starts ncclCommAbort and returns; the first reason stays. Returns whether this call was the
  // first.
  bool Abort(const std::string& reason) noexcept;

  // Destroys it, windows first; after an abort, or when a call has failed, without the
  // peers. One thread of the process at a time. Returns what went wrong, empty when nothing
  // did. No other call afterwards.
  std::string Destroy(const std::vector<ncclWindow_t>& windows) noexcept;

 private:
  NcclHandle(const Place& place, const NcclOptions& options)
      : place_(place), timeout_(options.timeout) {}
  void Settle(const char* op, const char* call, ncclResult_t result);
  void ThrowIfAborted(const char* op) const;
  std::string Where(const char* op) const;
  void AbortNow() noexcept;

  const Place place_;  // NCCL keeps the label's address
  const std::chrono::milliseconds timeout_;
  ncclComm_t comm_ = nullptr;
  // Shared by calls; an abort takes it alone to know that none is inside before
  // NCCL frees the communicator.
  mutable std::shared_timed_mutex in_use_;
  std::atomic<bool> aborted_ = false, freed_ = false;
  mutable std::atomic<bool> failed_ = false;
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::future<void> abort_;
};

}  // namespace millrace
