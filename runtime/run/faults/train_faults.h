// Faults that a training run is given on purpose, for tests of what it does about them. Each
// happens once, also when its step is trained again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/step_scalars.h"
#include "runtime/record/step_observer.h"
#include "runtime/run/faults/collective_fault.h"

namespace millrace {

class Engine;

struct TrainFault {
  int64_t step = 0;  // 1-based
  int64_t rank = 0;
  std::string unit;  // of those kinds that have one
  enum class Kind {
    kNotFinite,  // NaN in the rank's gradient of the unit; without a unit, in its loss
    kSkip,       // CollectiveFault::Kind::kLeaveOut
    kSwap,       // CollectiveFault::Kind::kSwap
    kFlip,       // a bit of the rank's master weights of the unit is another before the step
    kTokens,     // the rank reads noise instead of its tokens
    kLoader,     // the rank's reading of tokens never ends
    kHold,       // the rank's process stops itself before the step (SIGSTOP), until SIGCONT
  };
  Kind kind = Kind::kNotFinite;
};

class TrainFaults final : public StepObserver {
 public:
  // `engine` outlives it. Error(kConfig): there is no such rank or unit.
  TrainFaults(const std::vector<TrainFault>& faults, Engine& engine, int64_t vocab);

  void OnTokens(int64_t step, std::span<int32_t> tokens) override;
  void OnIssue(int64_t step) override;
  void OnIssued(int64_t step) override;  // its faults have happened

 private:
  struct Placed {
    TrainFault fault;
    int64_t flat = -1;
  };
  // Every rank calls it: a shard that is written makes all gather anew.
  void FlipBit(const Placed& placed);

  Engine& engine_;
  const int rank_;
  const int64_t vocab_;
  std::vector<Placed> faults_;
  std::optional<CollectiveFault> collectives_;  // of the step that is issued
};

}  // namespace millrace
