// Device memory by CUDA's virtual memory management: addresses that are reserved once, and physical
// memory behind them that goes and comes by pieces.
//
// Peers    What lies here is not cudaMalloc's: cudaIpcGetMemHandle refuses it (comm/peer).
// Graphs   A graph names addresses; what was captured is launched again once they are mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/device.h"

namespace millrace {

// The driver's granularity: 2 MiB on GPUs so far.
int64_t CudaPageBytes(int ordinal);

// As Device::AllocatePaged, on GPU `ordinal`, which becomes the thread's current one.
// Error(kDevice) where the driver has no such memory.
std::unique_ptr<PagedBuffer> AllocateCudaPages(int ordinal, int64_t bytes, const std::string& label,
                                               std::span<const int64_t> cuts);

}  // namespace millrace
