// How long each op of a step takes on its stream, by the device's clock: an observer of eager steps.
//
// Time     From a point of the op's stream just before the op to one just after it. Nothing waits in between,
//          so streams overlap as in any step; where the host issues ops more slowly than the device does
//          them (small models), the device's wait for the next op counts to that op. On a host device: the
//          call.
// Threads  As the executor's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"

namespace millrace {

class OpTimer final : public OpObserver {
 public:
  using StreamOf = std::function<Stream&(StreamId)>;
  OpTimer(Device& device, StreamOf stream_of) : device_(device), stream_of_(std::move(stream_of)) {}

  void BeginRun(const StepPlan& plan) override;
  void Before(const PlanOp& op, int64_t position, int microbatch) override;
  void After(const PlanOp& op, int64_t position, int microbatch) override;
  void EndRun() override {}
  bool looks_at_memory() const override { return false; }

  struct Sum {
    int64_t count = 0;
    double milliseconds = 0;
  };
  // Waits for the last run and returns its sums by kind of op (OpName).
  std::map<std::string, Sum> Collect();

 private:
  struct Timed {
    std::string kind;
    std::unique_ptr<Event> begin, end;
  };
  Device& device_;
  StreamOf stream_of_;
  std::vector<Timed> ops_;  // in the order of issue; events are used again by the next run
  size_t used_ = 0;
};

}  // namespace millrace
