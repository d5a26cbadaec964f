#include "kernels/cuda/moe/grouped_wgmma_launch.cuh"

// Grouped products where the depth of b is of neighbours.
namespace millrace::cuda {

template void LaunchGroupedWgmma<Slots::kRows, false>(const GroupedArgs&, int64_t, unsigned*,
                                                      const Launch&);

bool HasGroupedWgmma() {
#ifdef MILLRACE_SM_90A
  return true;
#else
  return false;
#endif
}

}  // namespace millrace::cuda
