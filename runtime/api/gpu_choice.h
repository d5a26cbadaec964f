// Which of the GPUs that a rank's process sees is its own.
#pragma once

#include <string>
#include <vector>

#include "comm/comm_factory.h"

namespace millrace {

// The index of this rank's GPU in `gpus`, the ids of those that its process sees ("GPU-5d3e...").
// A collective over the world of `host`; ranks of one `host_name` share a host. Two set-ups serve:
// - All ranks of a host see the same GPUs in one order: each takes that of its place among them.
// - Each rank of a host sees one GPU, another than the others see (srun --gpus-per-task=1,
//   CUDA_VISIBLE_DEVICES of its own): it takes that one.
// Error(kConfig) on a rank that has none so, which names the rank, its host and what it sees.
int ChooseGpu(CommFactory& host, const std::string& host_name,
              const std::vector<std::string>& gpus);

}  // namespace millrace
