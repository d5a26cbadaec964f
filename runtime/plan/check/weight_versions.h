// Which version of the master weights a cast or gathered copy holds, as the checker walks a
// schedule. Internal to the checker.
#pragma once

#include <cstdint>

#include "runtime/base/id_vector.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

class WeightVersions {
 public:
  explicit WeightVersions(size_t buffers) : master_(buffers), copied_(buffers), updates_(buffers) {}

  // States are versions of themselves, where no op makes them from others.
  void Found(BufferId state) {
    if (!master_[state]) master_[state] = state;
  }
  void Ran(const KernelOp& op);
  // The weights that the buffer was made from before their latest update. None: it is of the
  // latest, or no copy.
  BufferId StaleOf(BufferId buffer) const {
    const BufferId master = master_[buffer];
    const bool stale = master && master != buffer && copied_[buffer] != updates_[master];
    return stale ? master : BufferId();
  }

  bool operator==(const WeightVersions&) const = default;

 private:
  void Copy(const View& from, const View& to);

  IdVector<BufferId, BufferId> master_;  // that it is a copy of; absent: none
  IdVector<BufferId, int64_t> copied_;   // the version
  IdVector<BufferId, int64_t> updates_;  // so far
};

}  // namespace millrace
