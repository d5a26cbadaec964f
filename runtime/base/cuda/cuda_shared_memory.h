// Memory of a GPU that other processes map: physical memory of CUDA's virtual memory management,
// which has no handles of cudaIpc, by a POSIX file descriptor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/shared_memory.h"

namespace millrace {

// On GPU `ordinal`, which becomes the thread's current one; contents are undefined. Whoever has the
// descriptor takes it by cuMemImportFromShareableHandle, on the same GPU. Error(kOutOfMemory) names
// the bytes asked for and the label; Error(kDevice): the driver gives out no descriptors.
std::unique_ptr<SharedMemory> MakeCudaSharedMemory(int ordinal, int64_t bytes,
                                                   const std::string& label);

}  // namespace millrace
