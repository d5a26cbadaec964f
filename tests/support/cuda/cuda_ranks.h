// Ranks on GPUs: a thread and a GPU per rank. Linked into a test of whole steps, cuda_ranks makes
// its ranks these over NCCL, peer_ranks these over the memory of peers.
#pragma once

#include <memory>

#include "tests/support/ranks.h"

namespace millrace::test {

enum class GpuTransport {
  kNccl,
  kPeers  // of every group of several ranks
};
std::unique_ptr<Ranks> MakeCudaRanks(GpuTransport transport);

}  // namespace millrace::test
