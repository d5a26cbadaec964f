#include "kernels/cuda/moe/grouped_wgmma_launch.cuh"

// Grouped products where slots are the depth.
namespace millrace::cuda {

template void LaunchGroupedWgmma<Slots::kDepth, true>(const GroupedArgs&, int64_t, unsigned*,
                                                      const Launch&);

}  // namespace millrace::cuda
