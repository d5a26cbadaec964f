// When each unit is gathered and given back, within one microbatch: an explicit successor list
// (runtime/README.md).
//
// Positions index the microbatch's program ops, forward then backward, [0, ops). A segment is one
// stay of a unit: of each of its flat parameters in a bucket. Their gathers are issued before the
// op at `issue`; the buckets are free after the op at `last`.
//
// Rules    A gather is issued when the segment `prefetch` places before it (by first use) begins,
//          and not before a block slot is free: at most `slots` slot segments live at once. A block
//          that is given back after its forward takes a slot; one that is kept to its backward or
//          for the step has buckets of its own (all blocks are live at the turn-around), as have
//          units that are no block (embedding, head, norms).
//          The last `slots` blocks of the forward are the first of the backward: they stay gathered
//          over the turn-around.
#pragma once

#include <vector>

#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

struct UnitUse {
  UnitId unit;
  bool block = false;
  Reshard reshard = Reshard::kAfterForward;  // not kAuto
  std::vector<int> reads;                    // of any of its flats: positions, ascending
};

struct GatherSegment {
  UnitId unit;
  bool slot = false;        // occupies a slot, with all its flats
  bool whole_step = false;  // gathered in the first microbatch, kept for the step (Reshard::kNever)
  int first = 0, last = 0;  // positions of first and last read
  // Issued before this position; carried segments: issued by the previous microbatch or the update.
  int issue = 0;
  bool carried = false;
  // Carried: position before which the next microbatch's gather is issued, in [0, ops]; ops: at
  // the end.
  int carry_issue = 0;
};

struct GatherOptions {
  int prefetch = 1;
  int slots = 2;
  int forward_ops = 0, ops = 0;
  bool carry = true;  // false: nothing comes from a previous microbatch (evaluation)
};

// Segments by first use.
std::vector<GatherSegment> PlanGathers(const std::vector<UnitUse>& uses,
                                       const GatherOptions& options);

}  // namespace millrace
