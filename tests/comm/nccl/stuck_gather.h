// A collective whose peers do not come, and its end by Abort: the same for
// every communicator of GPUs.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "comm/communicator.h"
#include "runtime/base/error.h"
#include "tests/comm/nccl/gpu_ranks.h"

namespace millrace::testing {

// What `fn` throws: "<code>: <text>", or "nothing".
template <typename Fn>
std::string Thrown(Fn fn) {
  try {
    fn();
    return "nothing";
  } catch (const Error& error) {
    return fmt::format("{}: {}", Name(error.code()), error.what());
  }
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

// On every rank, with a communicator of all of them that is labelled "stuck". Rank 0 gathers alone,
// issued or as a graph's launch, until another thread aborts; that ends the wait within `limit`,
// and afterwards every rank's CheckHealth and calls give the first reason. Ranks leave together.
void AbortStuckGather(GpuRank& rank, Communicator& comm, bool captured, std::chrono::seconds limit);

}  // namespace millrace::testing
