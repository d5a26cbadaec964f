// What an op of a plan costs on a machine: arithmetic, memory traffic, bytes on the wire, and the
// least time these allow. Pure arithmetic on shapes.
//
//   kernel:      seconds = max(flops / rate of its kind, (read + written bytes) / memory)
//   collective:  seconds = max(wire bytes / GroupLink, (read + written bytes) / memory) + latency;
//                in a group of one rank only the copy
// Rates are the machine's sustained ones (machine.h), not its data sheet's.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/plan/cost/machine.h"
#include "runtime/plan/layout/shard_layout.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

enum class Bound { kNone, kArithmetic, kMemory, kWire, kLatency };
std::string_view Name(Bound bound);

struct OpEstimate {
  double flops = 0;
  int64_t read_bytes = 0, write_bytes = 0;  // memory of this rank; scratch is not counted
  int64_t wire_bytes = 0;                   // sent by this rank
  double seconds = 0;
  Bound bound = Bound::kNone;  // the largest term
};

OpEstimate Estimate(const KernelOp& op, const Mesh& mesh, const Machine& machine);

// Bytes/s of what each rank of a group over these axes sends. Hosts hold neighbouring ranks,
// machine.ranks_per_host each, the last one what is left. Within one host: machine.link. Else
// LinkBetweenHosts for the fewest members that any group has on any of its hosts.
double GroupLink(AxisSet axes, const Mesh& mesh, const Machine& machine);

// What one rank counts when it runs `entries` of the plan's schedule or prologue, by the
// definitions of CommCounters (comm/communicator.h) and KernelCounters (runtime/exec/bound_op.h): a
// run's counters after k steps are k times these.
struct PlanCounters {
  int64_t ops = 0;
  int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0;
  int64_t gathered_bytes = 0, reduced_bytes = 0,
          all_reduced_bytes = 0;  // wire bytes that this rank sends
  int64_t concatenated_bytes = 0, cast_bytes = 0,
          copied_bytes =
              0;  // read by concat (also within matmul), cast (and gathers that round), accumulate
  int64_t wire_bytes() const { return gathered_bytes + reduced_bytes + all_reduced_bytes; }
  bool operator==(const PlanCounters&) const = default;
};
PlanCounters CountersOf(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh);

// Wire bytes by what they are for.
struct WirePurposes {
  int64_t parameters = 0;         // all-gather of weights
  int64_t gradients = 0;          // reduce-scatter within the shard group
  int64_t gradient_replicas = 0;  // all-reduce between replicas
  int64_t statistics = 0;         // loss and norm, over the world
  int64_t exchanges = 0;          // rows of the model's values
  bool operator==(const WirePurposes&) const = default;
};
WirePurposes WireByPurpose(const StepPlan& plan, const std::vector<Entry>& entries,
                           const Mesh& mesh);

}  // namespace millrace
