// How long each op of a step takes on its stream, by the device's clock: an observer of eager
// steps.
//
// Time     From a point of the op's stream just before the op to one just after it. Nothing waits
//          in between, so streams overlap as in any step; where the host issues ops more slowly
//          than the device does them (small models), the device's wait for the next op counts to
//          that op. On a host device: the call.
// Threads  As the executor's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/engine.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/observe/op_span.h"

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

  // The moment that Spans counts from: waits for everything before it on the compute
  // stream, and returns then.
  void SetOrigin();
  // Waits for the last run and returns its ops in the order of issue.
  std::vector<OpSpan> Spans();

 private:
  struct Timed {
    std::string kind, label;
    StreamId stream;
    std::unique_ptr<Event> begin, end;
  };
  Device& device_;
  StreamOf stream_of_;
  std::vector<Timed> ops_;  // in the order of issue; events are used again by the next run
  size_t used_ = 0;
  std::unique_ptr<Event> origin_;
};

// Observes an engine's training steps until its end, whatever happens to a step.
class ObserverScope {
 public:
  ObserverScope(Engine& engine, OpObserver& observer) : engine_(engine) {
    engine_.Observe(&observer);
  }
  ~ObserverScope() { engine_.Observe(nullptr); }
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  Engine& engine_;
};

}  // namespace millrace
