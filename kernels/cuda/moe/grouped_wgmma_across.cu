#include "kernels/cuda/moe/grouped_wgmma_launch.cuh"

// Grouped products where columns of b are neighbours.
namespace millrace::cuda {

template void LaunchGroupedWgmma<Slots::kRows, true>(const GroupedArgs&, int64_t, unsigned*,
                                                     const Launch&);

}  // namespace millrace::cuda
