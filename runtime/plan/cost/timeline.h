// A step as it would run on a machine: list simulation of the schedule over streams and edges, with
// the times of cost_model.h.
//
// Rules    An op starts when its stream is free and every edge into it has finished. A kernel
//          occupies its stream for its time plus Machine::op_gap. What is in flight at once shares:
//          - A collective that sends takes its latency, then moves bytes. Where those in flight ask
//            together for more than a kind of link (within the host, between hosts) has, each of
//            them is slowed by that: two alike take twice as long. What kernels slow asks for less.
//          - So do kernels of two streams with the device, where Machine::kernels_share. While a
//            collective moves bytes they have 1 - collective_share of it, and it moves at
//            collective_beside of its speed. One over peers' memory that began to move beside
//            what is bound by arithmetic goes on at collective_begun of its speed when nothing
//            runs.
//          - Where the power cap allows the step's work less than its time (capped_* of Machine),
//            what is bound by arithmetic takes longer, all by one factor, until it does.
//          On a machine without concurrent streams every op starts when the one issued before it
//          has ended.
// Exposed  The time in which the compute stream has nothing to run: it waits for a gather or a
//          reduction. Attributed to the stream whose op it waits for longest.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/plan/cost/cost_model.h"

namespace millrace {

struct SimulatedOp {
  int32_t entry = 0, op = 0;  // schedule[entry], op of its body
  StreamId stream = StreamId::kCompute;
  double begin = 0, end = 0;  // seconds from the step's begin
};

struct Timeline {
  std::vector<SimulatedOp> ops;  // in issue order: entries in order, ops of each body in order
  double seconds = 0;            // until the last op has ended
  std::array<double, kStreams> busy{};  // per stream, the sum of its ops' times, shared as above
  // Per stream, how long compute waits for it; 0 for compute itself.
  std::array<double, kStreams> exposed{};

  double exposed_total() const { return ExposedTotal(exposed); }

  // Of all streams but compute.
  static double ExposedTotal(const std::array<double, kStreams>& exposed) {
    return exposed[1] + exposed[2] + exposed[3];
  }
  // What reports show: the first streams always, that of exchanges where it is used.
  static int StreamsShown(const std::array<double, kStreams>& busy) {
    return busy[static_cast<size_t>(StreamId::kExchange)] > 0 ? kStreams : kStreams - 1;
  }
};

// Whether the streams join at the end of every schedule entry
// (execution.graph=microbatch: one graph per body).
enum class StreamJoin { kStepEnd, kEveryEntry };

// `entries` is plan.schedule or plan.prologue. Error(kInternal) when edges form a cycle.
Timeline Simulate(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh,
                  const Machine& machine, StreamJoin join = StreamJoin::kStepEnd);

}  // namespace millrace
