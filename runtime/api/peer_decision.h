// Whether the ranks of a run gather and reduce over each other's memory (execution.peer_memory).
#pragma once

#include <functional>
#include <string>

#include "kernels/ops/cost.h"
#include "runtime/base/mesh.h"
#include "runtime/config/config.h"

namespace millrace {

struct PeerDecision {
  bool use = false;
  // What a run says when it starts: which it is, and why; "" where `off` was asked for.
  std::string notice;
};

// `trouble` says what stands between the GPUs, "" for nothing; a collective, asked only where all
// else is well. Error(kConfig), on every rank: `on`, and it cannot be; with what is allowed.
PeerDecision DecidePeerMemory(ExecutionConfig::PeerMemory wanted, Backend backend, const Mesh& mesh,
                              const std::function<std::string()>& trouble);

}  // namespace millrace
