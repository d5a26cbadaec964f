// Faults that a training run is given on purpose, for tests of what it does about them. Each
// happens once, also when its step is trained again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/engine.h"

namespace millrace {

struct TrainFault {
  int64_t step = 0;  // 1-based
  int64_t rank = 0;
  std::string unit;  // of those kinds that have one
  enum class Kind {
    kNotFinite,  // NaN in the rank's gradient of the unit; without a unit, in its loss
    // The rank leaves out the step's collectives from the unit's first one on: the job hangs.
    kSkip,
    kSwap,    // the rank issues the unit's first collective after the next one: nobody hangs
    kFlip,    // a bit of the rank's master weights of the unit is another before the step
    kTokens,  // the rank reads noise instead of its tokens
    kLoader,  // the rank's reading of tokens never ends
  };
  Kind kind = Kind::kNotFinite;
};

class TrainFaults {
 public:
  // Error(kConfig): there is no such rank or unit.
  TrainFaults(const std::vector<TrainFault>& faults, Engine& engine);

  // Of `step` (1-based), on this rank.
  Injection At(int64_t step) const;
  void SpoilTokens(int64_t step, std::span<int32_t> tokens, int64_t vocab) const;
  // Every rank calls it: a shard that is written makes all gather anew.
  void FlipBits(int64_t step, Engine& engine) const;
  void Done(int64_t step);  // those of this step have happened

 private:
  struct Placed {
    TrainFault fault;
    int64_t flat = -1;
    Injection injection;
  };
  int rank_;
  std::vector<Placed> faults_;
};

}  // namespace millrace
