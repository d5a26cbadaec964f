// Return codes of NCCL as errors in words, and its blocking calls with a time-out.
#pragma once

#include <nccl.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/error.h"

namespace millrace {

// NCCL's name for `result`, with its last message when it has one.
std::string NcclWords(ncclResult_t result);

// What a failed call means to us: kPeerLost (a remote process), kDevice (CUDA), kComm.
ErrorCode NcclErrorCode(ncclResult_t result) noexcept;

// Throws unless `result` is success. `where` names op, communicator and rank;
// `call` the NCCL function.
void CheckNccl(ncclResult_t result, const std::string& where, const char* call);

// The version of the library in use, as ncclGetVersion counts: 22809 is 2.28.9.
int NcclVersion();

// The outcome of a call that a communicator may go on with in the background
// (NCCL_COMM_BLOCKING=0): waits for it. ncclInProgress: it did not come within `timeout`.
ncclResult_t Settled(ncclResult_t result, ncclComm_t comm, std::chrono::milliseconds timeout);

// Runs `fn` on a thread of its own with GPU `ordinal` current and waits for at most
// `timeout`. Returns what it returned; nothing when it still runs. NCCL's blocking calls
// cannot be interrupted, so the thread is left behind then, and `fn` owns all that it
// touches. Rethrows what `fn` throws.
std::optional<std::string> RunWithin(int ordinal, std::chrono::milliseconds timeout,
                                     std::function<std::string()> fn);

}  // namespace millrace
