// Symmetric windows: an arena that the kernels of NCCL read and write on all ranks.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/communicator.h"
#include "comm/nccl/nccl_handle.h"

namespace millrace {

// A collective over the ranks of `handle` and `host`. Every rank's [base, base + bytes) becomes one
// window. One rank's refusal, its own or NCCL's, is every rank's Error(kComm) with that rank and
// the cause; ranks with different sizes: Error(kInvalidArgument).
ncclWindow_t RegisterWindow(NcclHandle& handle, Communicator& host, const std::string& label,
                            std::byte* base, int64_t bytes);

}  // namespace millrace
