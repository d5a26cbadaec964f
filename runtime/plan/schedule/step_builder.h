// Shared state of the planner's passes: the plan under construction, and what is known about each
// buffer before it has an address. Internal to runtime/plan.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/schedule/flat_encoding.h"
#include "runtime/plan/schedule/planner.h"

namespace millrace {

enum class PoolTag { kNone, kParam, kGrad };  // which bucket pool places the buffer

struct BufferPlan {
  PoolTag pool = PoolTag::kNone;
  // Buffers of one group share one address (stays of one bucket); -1: on its own.
  int32_t group = -1;
  // For slot pools: the block whose bucket it is, one of several where the block has several flats;
  // none: takes no slot.
  UnitId unit;
  DType dtype = DType::kF32;
  bool whole_step = false;  // carried for the whole step (Reshard::kNever)
};

// Where a gradient is reduced. The bytes of `buffers` stay reserved until reductions of
// `reduce_depth` other units have been issued.
struct ReducePoint {
  int body = 0, op = 0;
  UnitId unit = {};
  std::vector<BufferId> buffers;
  // With a cast to the wire's dtype on the reduce stream: that op, and the bucket that it reads.
  // The cast runs behind the reduction before this one: there is one later reduction less to wait
  // for.
  std::optional<int> cast = {};
  BufferId cast_from = {};
};

// Of one microbatch of one rank: the elements that it reads of a source.
inline int64_t MicrobatchNumel(const PlanOptions& options, const Mesh& mesh,
                               const InputSource& source) {
  const BatchShape shape = InputShape(options.shape, mesh.Size(Axis::kContext));
  return shape.batch * (shape.seq + source.extra);
}
// One rank's row of statistics in all plans with the losses of `program`.
inline StatsRow StatsRowOf(const ShardLayout& layout, const Program& program) {
  return {static_cast<int64_t>(layout.flats.size()), static_cast<int64_t>(program.losses.size())};
}

// Whether a program's rows are those of sequences that keep caches: its plan is one of an era.
bool InEra(const Program& program);
// Whether a flat parameter's weights are read where the run keeps them, with nothing to gather.
bool IsResident(const ShardLayout& layout, const PlanOptions& options, FlatId flat);

// The slots of weights that an era keeps: whole; of a flat's last parameter a rank's part. Such a
// flat's other parameters, ahead of that one, are whole.
inline constexpr std::string_view kGatheredSlot = "era", kPartSlot = "era_part";

// The elements of a flat's last parameter that a rank along `axes` has.
struct KeptPart {
  int64_t numel = 0;  // 0: all of them
  AxisSet axes;
};
// What the program reads of a flat's last parameter, where that is a rank's part of it alone: the
// rank at place i of `axes` reads its elements from i * numel on.
KeptPart KeptPartOf(const ShardLayout& layout, const Program& program, FlatId flat);

struct StepBuilder {
  // The plan's first buffers are the run's states, each with its id.
  StepBuilder(const ShardLayout& shard_layout, const StateLayout& run_states,
              const Program& microbatch, const PlanOptions& plan_options, const std::string& name);

  BufferId AddBuffer(const std::string& name, int64_t bytes, BufferClass cls, BufferScope scope,
                     BufferPlan how = {});
  // Appends to the body being built. Attaches scratch of the size the backend asks for. With
  // overlap_weight_gradients the stream of such a gradient is reduce; without, in a world of one
  // rank, every op's is compute.
  void Emit(KernelOp op, StreamId stream, std::string label, UnitId unit, bool recomputed = false);
  // Index of the new body.
  int BeginBody(const std::string& name, Phase phase, Variant variant = Variant::kOnly);
  int position() const { return static_cast<int>(plan.bodies.back().ops.size()); }

  // A state of the run, whole; absent where it has none of this name.
  View State(std::string_view name_of_state) const;
  View Slot(std::string_view slot, FlatId flat) const {
    const BufferId id = states.Slot(slot, flat);
    return id ? states.ViewOf(id) : View{};
  }
  View Master(FlatId flat) const { return Slot(kMasterSlot.name, flat); }
  View Compute(FlatId flat) const { return Slot("compute", flat); }  // absent: no such copy
  // Whole, as an era keeps it; absent where it is resident, or no plan of an era reads it.
  // Without the last parameter where the era keeps a part of that.
  View Gathered(FlatId flat) const { return Slot(kGatheredSlot, flat); }
  View Part(FlatId flat) const { return Slot(kPartSlot, flat); }  // absent: the era has it whole

  // In which a flat parameter's bucket has it.
  DType GatheredAs(FlatId flat) const {
    return encodings[flat] ? DType::kE4M3 : layout.flat(flat).key.encoding;
  }

  int Shards(FlatId flat) const { return layout.mesh.Size(layout.flat(flat).shard); }
  StatsRow stats_row() const { return StatsRowOf(layout, program); }
  const std::string& UnitLabel(FlatId flat) const { return layout.flat(flat).name; }

  const ShardLayout& layout;
  const StateLayout& states;
  const Program& program;
  const PlanOptions& options;
  const FlatEncodings encodings;  // of what the program reads in FP8
  const bool in_era;              // it has caches
  const bool trains;              // the program has gradients: the plan is a step, with an update
  StepPlan plan;
  IdVector<BufferId, BufferPlan> how;
  std::vector<ReducePoint> reduces;
  std::map<std::pair<int64_t, StreamId>, BufferId> workspaces;  // by bytes, one per stream
  // (body, op) where a carried buffer is filled.
  IdVector<BufferId, std::vector<std::pair<int, int>>> produced;
  // By the program's buffer; absent where that is none.
  IdVector<BufferId, BufferId> constants;
  IdVector<FlatId, BufferId> tables;  // of magnitudes, once formed
  IdVector<BufferId, View> tallies;
  View tallied, overflows;  // all of them; of these what may overflow. Absent: none

 private:
  void CheckEncoded(FlatId flat) const;
  void AddStates();
  void AddTallies();
  void AttachScratch(KernelOp& op, StreamId stream);
  bool WritesGradientOfWeight(const KernelOp& op) const;
};

// In the prologue of a plan of an era: its caches are cleared, and the weights that it reads
// gathered, once for all of the era's plans (era_pass.cc).
void EmitEra(StepBuilder& b);

// This rank's part of a buffer that holds a flat parameter whole.
View ShardSlice(const View& whole, const FlatParam& flat);

// A dense view of a whole buffer.
View WholeView(BufferId buffer, DType dtype, int64_t numel);

// Of PlanStates: the state of a program's constant, by its name and what makes it; absent where the
// states were made without it. What collectives on a stream stage in.
BufferId FindConstant(const StateLayout& states, const Program& program, BufferId constant);
std::string CommScratchState(StreamId stream);

// What the schedules of a finished plan read and define, from the uses of its ops.
void DeclareSeams(StepPlan& plan);

// The last pass but the edges (memory_plan.cc): lifetimes of all buffers, the persistent bytes and
// the lower bound; and that with addresses.
void MeasureBuffers(StepBuilder& builder);
void PlaceBuffers(StepBuilder& builder);

}  // namespace millrace
