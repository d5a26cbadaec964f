// What an op of a plan costs on a machine: arithmetic, memory traffic, bytes on the wire, and the
// least time these allow. Pure arithmetic on shapes.
//
//   kernel:      seconds = kernel_start + its own start + max(flops / machine.vector,
//                (read + written bytes) / (memory * its efficiency))
//   matmul:      ProductSeconds (kernel_rates.h) in place of the first, and behind it, where it has
//                one, GELU or its gradient: two, three times the result's bytes, f32 or bf16; or
//                what takes an f32 product that was staged to its place, which starts, too
//   grouped:     GroupedSeconds of all slots spread evenly over the experts, over the kernel's
//                efficiency, in place of the first
//   scan:        the FLOPs of its chunks' products / machine.vector, about what kernels reach: f32
//                states, and a chunk is one tile (tools/bench/README.md, Kernels of hybrids)
//   attention:   flops / AttentionFlops in place of the first, + attention_start; of sequences
//                split over ranks, of a chunk's length
//   collective:  seconds = latency + max(link, network, (read + written bytes) / memory), the first
//                three of collective.h; in a group of one rank only the copy
// Rates are the machine's sustained ones (machine.h), not its data sheet's.
//
// Heat, the seconds that an op takes at the power cap where nothing else limits it, without starts:
//   products:    flops / capped_gemm, of FP8 as much faster as FP8 is,
//                + bytes behind / capped_memory
//   attention:   seconds * (rate of kernel_rates.h's capped shape / capped_attention)
//   others:      seconds * memory / capped_memory; a collective's memory traffic / capped_memory
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "runtime/plan/cost/collective.h"
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
  double start = 0;  // of `seconds`, those before bytes move or the device is busy
  // Of a collective that sends: seconds for which it would keep each kind of link busy if it had
  // them to itself. At most `seconds` - `start`.
  double link = 0, network = 0;
  bool peers = false;  // of a collective that sends: over peers' memory
  // Of another op: seconds of the whole device's work, at most `seconds` - `start`. Less where it
  // has not enough tiles for all units.
  double device = 0;
  double heat = 0;             // seconds that it takes at the power cap, were that the only limit
  Bound bound = Bound::kNone;  // the largest term
};

// Of many ops of one mesh on one machine.
class CostModel {
 public:
  CostModel(const Mesh& mesh, const Machine& machine)
      : mesh_(mesh), machine_(machine), places_(mesh, machine.ranks_per_host) {}
  OpEstimate Of(const KernelOp& op);

 private:
  Mesh mesh_;
  const Machine& machine_;
  Places places_;
};

// What one rank counts when it runs `entries` of the plan's schedule or prologue, by the
// definitions of CommCounters (comm/communicator.h) and KernelCounters (runtime/exec/bound_op.h): a
// run's counters after k steps are k times these.
struct PlanCounters {
  int64_t ops = 0;
  int64_t all_gathers = 0, reduce_scatters = 0, all_reduces = 0, all_to_alls = 0;
  int64_t gathered_bytes = 0, reduced_bytes = 0, all_reduced_bytes = 0,
          exchanged_bytes = 0;  // wire bytes that this rank sends
  int64_t concatenated_bytes = 0, cast_bytes = 0,
          copied_bytes =
              0;  // read by concat (also within matmul), cast (and gathers that round), accumulate
  int64_t wire_bytes() const {
    return gathered_bytes + reduced_bytes + all_reduced_bytes + exchanged_bytes;
  }
  bool operator==(const PlanCounters&) const = default;
};
PlanCounters CountersOf(const StepPlan& plan, const std::vector<Entry>& entries, const Mesh& mesh);

// Wire bytes by what they are for.
struct WirePurposes {
  int64_t parameters = 0;                  // all-gather of weights
  std::map<DType, int64_t> parameters_as;  // these, by what an element travels as
  int64_t gradients = 0;                   // reduce-scatter within the shard group
  int64_t gradient_replicas = 0;           // all-reduce between replicas
  int64_t statistics = 0;                  // loss and norm, over the world
  int64_t exchanges = 0;                   // rows of the model's values
  bool operator==(const WirePurposes&) const = default;
};
WirePurposes WireByPurpose(const StepPlan& plan, const std::vector<Entry>& entries,
                           const Mesh& mesh);

}  // namespace millrace
