// Proves a plan before it runs. Knows the plan's text only, not how it was made: own lifetimes, own
// clocks, own overlap test.
//
// Proved, on every corner of the axes that ops name (CornerRanks):
//   every read finds each byte written, since its buffer became live, by an op that has finished
//   before (persistent state that the host writes counts as written); weights are read in their
//   latest version; two accesses to one byte, one of them a write, are ordered by streams and
//   edges; an activation is read in the microbatch that wrote it, and each microbatch is taken as
//   often as the others; buffers live at one position share no byte; accesses stay inside buffer,
//   arena and live range; stays of a bucket have one address; edges come from earlier ops of other
//   streams; a communicator is used from one stream, with sizes that match its group; shards are
//   gathered and reduced over the axes that they lie along (checker_shards.h); rows of sequences
//   that ranks share meet the rows that belong to them (checker_rows.h); ranks that generate
//   together draw one token (checker_answers.h); rows for which receive buffers have no room are
//   heard of (checker_overflow.h).
// Ranks  Bytes that all ops touch alike on all corners are walked once, for all of them; the others
//        once per corner (access_table.h).
// Repeats  Microbatches that run the same bodies with the same waits, by the schedule's text, are
//        walked until the state after one is the state after the one before, moved on by a
//        microbatch; the rest are proved by that, so that the work does not grow with accumulation.
//        An entry that is not as the one a microbatch before it is walked.
// Seams  prologue -> step -> step is walked as a run would: what a step reads from before must have
//        been left by the prologue and by a step alike. Streams are joined between two schedules,
//        bodies within one are not.
#pragma once

#include <vector>

#include "runtime/plan/check/violation.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// At most `limit`, in the order of the schedule; empty: the plan is proved.
Violations FindViolations(const StepPlan& plan, const Mesh& mesh, int accumulate,
                          size_t limit = 20);

// Ranks that stand for all, where offsets are linear in each coordinate of `axes`: every corner
// (first or last coordinate in each axis), and the middle of all. All ranks of a group of at most
// 4. The coordinates in other axes are 0.
std::vector<int> CornerRanks(const Mesh& mesh, AxisSet axes);

// Error(kInternal) with the first violations.
void CheckPlan(const StepPlan& plan, const Mesh& mesh, int accumulate);

}  // namespace millrace
