// NCCL communicators over the ranks of another factory, which is MPI's or threads'.
#pragma once

#include <memory>

#include "comm/comm_factory.h"
#include "comm/nccl/nccl_options.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/log.h"

namespace millrace {

// `host` makes the communicator beside each NCCL communicator; one rank per GPU, this one's is
// `device`. Both outlive the factory and its communicators. Each Make is a new ncclComm;
// MakeSmall's has at most kSmallCtas channels. AllocateArena gives memory for windows when
// options.symmetric and the world has several ranks, and takes no device but `device`.
// Error(kConfig): options that contradict each other. What a tear-down has to say goes to `log`,
// which outlives them, too.
std::unique_ptr<CommFactory> MakeNcclCommFactory(CommFactory& host, CudaDevice& device,
                                                 const NcclOptions& options = {},
                                                 Log& log = NoLog());

}  // namespace millrace
