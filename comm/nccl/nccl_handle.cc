#include "comm/nccl/nccl_handle.h"

#include <cuda_runtime_api.h>

#include <thread>
#include <utility>

#include "comm/nccl/nccl_check.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/gpu_wait.h"

namespace millrace {
namespace {

// How long an abort waits for a call that is inside NCCL. Calls take microseconds unless the
// driver's launch queue is full behind the very collective that is to be aborted.
constexpr std::chrono::seconds kCallReturns(2);

// Held while communicators of this process are freed. Among ranks that are threads the last
// to destroy unmaps memory on all GPUs while the others go on; with this they get no
// further than to their next communicator. Freeing waits for no peer (commFree in NCCL), so
// one thread at a time ends.
std::timed_mutex& Freeing() {
  static std::timed_mutex mutex;  // the process's memory maps are one
  return mutex;
}

int NcclPolicy(CtaPolicy policy) {
  switch (policy) {
    case CtaPolicy::kDefault:
      return NCCL_CTA_POLICY_DEFAULT;
    case CtaPolicy::kEfficiency:
      return NCCL_CTA_POLICY_EFFICIENCY;
    case CtaPolicy::kZero:
      return NCCL_CTA_POLICY_ZERO;
  }
  return NCCL_CTA_POLICY_DEFAULT;
}

ncclConfig_t ConfigOf(const NcclOptions& options, const std::string& label) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  // A communicator that does not block starts a thread for each call; instead, what waits for peers
  // runs on a thread of ours.
  config.blocking = 1;
  config.splitShare = 0;
  config.commName = label.c_str();
  config.CTAPolicy = NcclPolicy(options.cta_policy);
  if (options.min_ctas > 0) config.minCTAs = options.min_ctas;
  config.maxCTAs = options.max_ctas;
  return config;
}

}  // namespace

std::shared_ptr<NcclHandle> NcclHandle::Join(const Place& place, const ncclUniqueId& id,
                                             const NcclOptions& options) {
  const std::shared_ptr<NcclHandle> handle(new NcclHandle(place, options));
  const std::optional<std::string> trouble =
      RunWithin(place.ordinal, options.timeout, [handle, id, options]() -> std::string {
        ncclConfig_t config = ConfigOf(options, handle->place_.label);
        const ncclResult_t result =
            Settled(ncclCommInitRankConfig(&handle->comm_, handle->place_.world_size, id,
                                           handle->place_.rank, &config),
                    handle->comm_, options.timeout);
        return result == ncclSuccess ? "" : NcclWords(result);
      });
  MR_REQUIRE(ErrorCode::kTimeout, trouble.has_value(),
             "{}: NCCL has not joined {} ranks within {} ms", handle->Where("connect"),
             place.world_size, options.timeout.count());
  MR_REQUIRE(ErrorCode::kComm, trouble->empty(), "{}: ncclCommInitRankConfig failed: {}",
             handle->Where("connect"), *trouble);
  return handle;
}

void NcclHandle::CallBlocking(const char* op, const char* call,
                              std::function<ncclResult_t(ncclComm_t)> fn) {
  ThrowIfAborted(op);
  const std::optional<std::string> trouble = RunWithin(
      place_.ordinal, timeout_, [self = shared_from_this(), op, call, fn = std::move(fn)] {
        self->Call(op, call, fn);
        return std::string();
      });
  if (trouble.has_value()) return;
  failed_ = true;
  throw Error(ErrorCode::kTimeout, fmt::format("{}: {} has not returned within {} ms", Where(op),
                                               call, timeout_.count()));
}

void NcclHandle::CheckHealth() const {
  ThrowIfAborted("check");
  const std::shared_lock lock(in_use_, std::try_to_lock);
  ThrowIfAborted("check");  // an abort marks, then takes the lock alone
  if (!lock.owns_lock()) return;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) return;
  failed_ = true;
  CheckNccl(asked, Where("check"), "ncclCommGetAsyncError");
  CheckNccl(state, Where("check"), "NCCL's work in the background");
}

bool NcclHandle::Abort(const std::string& reason) noexcept {
  const std::lock_guard lock(reason_mutex_);
  if (aborted_) return false;
  try {
    reason_ = reason;
  } catch (...) {  // no memory: the flag matters more
  }
  aborted_ = true;
  try {
    std::promise<void> done;
    abort_ = done.get_future();
    std::thread([self = shared_from_this(), done = std::move(done)]() mutable {
      self->AbortNow();
      done.set_value();
    }).detach();
  } catch (
      ...) {  // no thread: our own calls fail all the same, and the host transport ends the rest
  }
  return true;
}

void NcclHandle::AbortNow() noexcept {
  static_cast<void>(cudaSetDevice(place_.ordinal));
  if (in_use_.try_lock_for(kCallReturns)) {
    in_use_.unlock();  // who comes now sees aborted_ and leaves
    freed_ = true;
    // Sets the flag that kernels poll, at once; returns when they and the
    // graphs that hold it are gone.
    static_cast<void>(ncclCommAbort(comm_));
    return;
  }
  // A call is stuck inside. Revoking sets the same flag and frees nothing.
  static_cast<void>(ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT));
}

std::string NcclHandle::Destroy(const std::vector<ncclWindow_t>& windows) noexcept {
  try {
    if (!aborted_ && failed_) Abort("a call has failed");
    if (aborted_) {
      { const std::lock_guard lock(reason_mutex_); }  // Abort has set abort_
      const bool done = !abort_.valid() || abort_.wait_for(timeout_) == std::future_status::ready;
      if (!done) return fmt::format("{}: ncclCommAbort has not returned", Where("destroy"));
      if (freed_) return "";
    }
    const bool alone = aborted_;
    const std::optional<std::string> trouble = RunWithin(
        place_.ordinal, timeout_, [self = shared_from_this(), windows, alone]() -> std::string {
          if (alone) {  // revoked
            static_cast<void>(ncclCommAbort(self->comm_));
            return "";
          }
          if (!windows.empty())
            MR_CUDA(WaitForGpu());  // unmapped, so nothing may still use them
          ncclResult_t result = ncclSuccess;
          const auto keep_first = [&](ncclResult_t next) {
            result = result == ncclSuccess ? next : result;
          };
          for (ncclWindow_t window : windows)
            keep_first(ncclCommWindowDeregister(self->comm_, window));
          keep_first(Settled(ncclCommFinalize(self->comm_), self->comm_, self->timeout_));
          // Not for ever: who is stuck inside holds up nobody else.
          const std::unique_lock alone(Freeing(), self->timeout_ / 2);
          keep_first(ncclCommDestroy(self->comm_));
          return result == ncclSuccess
                     ? ""
                     : fmt::format("{}: {}", self->Where("destroy"), NcclWords(result));
        });
    return trouble.has_value()
               ? *trouble
               : fmt::format(
                     "{}: NCCL has not returned within {} ms; a captured graph that still holds "
                     "the communicator would explain that",
                     Where("destroy"), timeout_.count());
  } catch (const std::exception& error) {
    return error.what();
  }
}

void NcclHandle::Settle(const char* op, const char* call, ncclResult_t result) {
  result = Settled(result, comm_, timeout_);
  if (result == ncclSuccess) return;
  ThrowIfAborted(op);  // NCCL fails calls because of it; its words would hide the reason
  failed_ = true;
  MR_REQUIRE(ErrorCode::kTimeout, result != ncclInProgress, "{}: {} has not finished within {} ms",
             Where(op), call, timeout_.count());
  CheckNccl(result, Where(op), call);
}

void NcclHandle::ThrowIfAborted(const char* op) const {
  if (!aborted_) return;
  const std::lock_guard lock(reason_mutex_);
  throw Error(ErrorCode::kPeerLost, fmt::format("{}: aborted: {}", Where(op), reason_));
}

std::string NcclHandle::Where(const char* op) const {
  return fmt::format("{} on '{}', rank {} of {}", op, place_.label, place_.rank, place_.world_size);
}

}  // namespace millrace
