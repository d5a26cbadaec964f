#include "tests/support/cuda/cuda_ranks.h"

namespace millrace::test {
namespace {

[[maybe_unused]] const bool chosen = (UseRanks(MakeCudaRanks(GpuTransport::kPeers)), true);

}  // namespace
}  // namespace millrace::test
