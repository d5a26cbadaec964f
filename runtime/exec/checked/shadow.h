// Who owns each byte of the arena while a plan runs: a second opinion on the plan, at run time, on
// the bytes themselves.
//
// Owner     A byte belongs to one stay of one buffer from the first access of the stay that
//           touches it until the last one has run, in whatever order the ops run. Within the
//           plan's edges that order never gives a byte two owners; where it does, the op that
//           comes too early fails. Stays that outlast a schedule (gathered for the next step, read
//           by the host) keep their bytes.
// Poison    Free bytes hold 0xFF: NaN as f32, bf16 and f64. A claim finds them so, else somebody
//           wrote where nothing lives.
// Arena     Memory of any device, seen through an ArenaView. The prologue, evaluation and
//           generation begin with everything but the persistent state free.
// Errors    kInternal naming the op, the buffer and the actual owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/exec/arena/arena_view.h"
#include "runtime/plan/check/access_table.h"
#include "runtime/plan/check/stay_tracker.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

class Shadow {
 public:
  // `plan` and the arena outlive the shadow.
  Shadow(const StepPlan& plan, const Mesh& mesh, int rank, const ArenaView& arena);

  // Another plan has used the arena: everything but the persistent state is free.
  void Reset();

  // One run of plan.schedule or plan.prologue: Begin, then Before and After around each
  // op, in any order, then End.
  void Begin(const std::vector<Entry>& schedule);
  void Before(int entry, int op);
  void After(int entry, int op);
  void End();

 private:
  struct Cell {
    StayId stay;  // owner; absent: free
    bool defined = false;
  };
  // Accesses of (cell, stay) that are still to run.
  using Outstanding = std::unordered_map<uint64_t, int32_t>;
  static uint64_t Key(CellId cell, StayId stay) {
    return static_cast<uint64_t>(static_cast<uint32_t>(cell.value)) << 32 |
           static_cast<uint32_t>(stay.value);
  }

  template <class F>
  void ForEachAccess(int entry, int op,
                     F&& f) const;  // f(access, stay), persistent buffers left out
  void Claim(const CellAccess& access, CellId cell, StayId stay, int entry, int op);
  void Free(CellId cell);
  void Set(CellId cell, bool defined);
  std::string Where(int entry, int op) const;
  const std::string& NameOf(StayId stay) const;

  const StepPlan& plan_;
  ArenaView arena_;
  AccessTable table_;
  StayTracker stays_;
  IdVector<CellId, Cell> cells_;
  PartCover parts_;
  IdVector<StayId, BufferId> buffer_of_stay_;

  // Of the schedule being run.
  const std::vector<Entry>* schedule_ = nullptr;
  std::vector<std::vector<StayId>> stay_of_;        // by entry: stays of its accesses, op after op
  std::vector<std::vector<int32_t>> first_access_;  // by body: index of an op's first access
  IdVector<StayId, char> outlasts_;
  Outstanding outstanding_;
  int64_t ops_left_ = 0;
};

}  // namespace millrace
