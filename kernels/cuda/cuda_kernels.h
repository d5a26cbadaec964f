// The kernel table on a GPU: every entry. Streams are CudaStreams
// (runtime/base/cuda/cuda_device.h).
//
// Streams  Entries launch and return; none allocates, synchronises or copies from the host, so each
//          may be captured.
// Bits     The same for the same op on every GPU of one kind, whatever the addresses; the orders of
//          additions are stated in each header.
#pragma once

#include "kernels/ops/kernel_table.h"

namespace millrace {

const KernelTable& CudaKernels();

}  // namespace millrace
