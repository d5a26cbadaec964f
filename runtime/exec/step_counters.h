// What a run moved in its steps, prologues, evaluation and set-up apart; part of a checkpoint.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "runtime/exec/kernel_counters.h"

namespace millrace {

struct StepCounters {
  KernelCounters kernels;
  CommCounters comm;
  int64_t graph_launches = 0;

  // Adds what has been counted from `before` to `after`.
  void AddBetween(const StepCounters& before, const StepCounters& after) {
    kernels += after.kernels - before.kernels;
    comm += after.comm - before.comm;
    graph_launches += after.graph_launches - before.graph_launches;
  }
  bool operator==(const StepCounters&) const = default;
};

}  // namespace millrace
