#include "tests/support/cuda/cuda_ranks.h"

namespace millrace::test {
namespace {

[[maybe_unused]] const bool chosen = (UseRanks(MakeCudaRanks(GpuTransport::kNccl)), true);

}  // namespace
}  // namespace millrace::test
