// The states of a run: what its plans find in the arena, from the layout of its parameters, and
// the inputs, losses and constants of its programs.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"
#include "runtime/plan/schedule/planner.h"
#include "runtime/plan/schedule/step_builder.h"

namespace millrace {
namespace {

// What a constant is, as text: its layout, and the ops that make it with all their attributes.
std::string ContentOf(const Program& program, BufferId constant) {
  std::string text = ToString(program.buffer(constant).layout);
  for (const ProgramOp& op : program.prologue) {
    bool writes = false;
    ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
      writes |= Writes(access) && view.buffer == constant;
    });
    if (writes) text += fmt::format(" {}{}", OpName(op.op), AttributesText(op.op));
  }
  return text;
}

// `encoded`: it is kept so, not in the compute dtype.
void AddFlat(const ShardLayout& layout, FlatId id, Downcast downcast,
             const FlatEncodingRef& encoded, StateLayout* states) {
  const FlatParam& flat = layout.flat(id);
  const auto name = [&](std::string_view slot) { return fmt::format("{}/{}", slot, flat.name); };
  for (const StateSlot& slot : flat.slots())
    states->Add({.name = name(slot.name),
                 .layout = DenseLayout(slot.dtype, {flat.shard_numel}),
                 .cls = slot == kMasterSlot ? BufferClass::kParameters : BufferClass::kOptimizer,
                 .saved = true,
                 .slot = std::string(slot.name),
                 .flat = id});
  if (encoded)
    AddEncodedStates(layout, id, *encoded, states);
  else if (downcast == Downcast::kAfterUpdate && flat.key.encoding != DType::kF32)
    states->Add({.name = name("compute"),
                 .layout = DenseLayout(flat.key.encoding, {flat.shard_numel}),
                 .cls = BufferClass::kParameters,
                 .writer = StateWriter::kPrologue,
                 .slot = "compute",
                 .flat = id,
                 .source = states->Slot(kMasterSlot.name, id)});
}

// Each router of a forward tallies in the backward. States are planned before there is one.
int64_t TalliedNumel(const Program& program) {
  int64_t numel = 0;
  for (const ProgramBuffer& buffer : program.buffers)
    if (buffer.role == ProgramRole::kTally && buffer.tally == TallyKind::kPolicy)
      numel += buffer.layout.numel();
  for (const ProgramOp& op : program.forward)
    if (const auto* route = std::get_if<RouteOp<View>>(&op.op))
      numel += 2 * route->logits.layout.dims[1];
  for (const ProgramBuffer& buffer : program.buffers)
    if (buffer.role == ProgramRole::kOverflow) numel += buffer.layout.numel();
  return numel;
}

void AddConstants(const Program& program, StateLayout* states) {
  for (const BufferId id : program.buffer_ids()) {
    const ProgramBuffer& buffer = program.buffer(id);
    if (buffer.role != ProgramRole::kConstant || FindConstant(*states, program, id)) continue;
    std::string name = "constant/" + buffer.name;
    for (int n = 2; states->Find(name); ++n) name = fmt::format("constant/{}#{}", buffer.name, n);
    states->Add({.name = name,
                 .layout = buffer.layout,
                 .writer = StateWriter::kPrologue,
                 .content = ContentOf(program, id)});
  }
}

// What the host says of the rows of a graph with caches.
void AddHostStates(const Program& program, StateLayout* states) {
  for (const ProgramBuffer& buffer : program.buffers) {
    if (buffer.role != ProgramRole::kHostState) continue;
    if (const BufferId there = states->Find(buffer.name))
      MR_CHECK(states->tensor(there).layout == buffer.layout, "two states of the run are {}",
               buffer.name);
    else
      states->Add({.name = buffer.name, .layout = buffer.layout});
  }
}

// What an era keeps of a flat parameter.
void AddKept(const ShardLayout& layout, const KeptPart& part, FlatId id, StateLayout* states) {
  const FlatParam& flat = layout.flat(id);
  const auto add = [&](std::string_view slot, int64_t numel) {
    if (numel == 0) return;
    states->Add({.name = fmt::format("{}/{}", slot, flat.name),
                 .layout = DenseLayout(flat.key.encoding, {numel}),
                 .cls = BufferClass::kParameters,
                 .scope = StateScope::kEra,
                 .writer = StateWriter::kPrologue,
                 .slot = std::string(slot),
                 .flat = id,
                 .source = states->Slot(kMasterSlot.name, id)});
  };
  if (part.numel == 0) return add(kGatheredSlot, flat.padded_numel);
  add(kGatheredSlot, layout.param(flat.params.back()).begin);
  add(kPartSlot, part.numel);
}

// Of an era: the weights that the program reads and the run does not keep whole, and its caches.
void AddEra(const ShardLayout& layout, const PlanOptions& options, const Program& program,
            StateLayout* states) {
  for (const ProgramBuffer& buffer : program.buffers) {
    if (buffer.role != ProgramRole::kParam) continue;
    const FlatId id = layout.param(buffer.param).flat;
    // Beside f32 masters the run keeps weights that training gathers in FP8 as payloads alone.
    const bool kept =
        layout.flat(id).key.encoding == DType::kF32 || !states->Slot(kPayloadSlot, id);
    if ((kept && IsResident(layout, options, id)) || states->Slot(kGatheredSlot, id) ||
        states->Slot(kPartSlot, id))
      continue;
    AddKept(layout, KeptPartOf(layout, program, id), id, states);
  }
  for (const ProgramBuffer& buffer : program.buffers)
    if (buffer.role == ProgramRole::kCache && !states->Find(buffer.name))
      states->Add({.name = buffer.name,
                   .layout = buffer.layout,
                   .cls = BufferClass::kActivations,
                   .scope = StateScope::kEra,
                   .writer = StateWriter::kPrologue,
                   .of_weights = true,
                   .content = "zeros"});
}

// Of what any of them reads in FP8, which all that read it read alike.
FlatEncodings EncodingsOfAll(const ShardLayout& layout,
                             const std::vector<const Program*>& programs) {
  FlatEncodings all(layout.flats.size());
  for (const Program* program : programs) {
    const FlatEncodings of = FlatEncodingsOf(layout, *program);
    for (const FlatId flat : of.ids()) {
      MR_CHECK(!of[flat] || !all[flat] || *of[flat] == *all[flat],
               "programs of one run read {} in two encodings", layout.flat(flat).name);
      if (of[flat]) all[flat] = of[flat];
    }
  }
  return all;
}

// Those of parameters and gradients; that of exchanges where a program has one.
std::vector<StreamId> CommStreams(const std::vector<const Program*>& programs) {
  std::vector<StreamId> streams = {StreamId::kGather, StreamId::kReduce};
  const bool exchanges = std::any_of(programs.begin(), programs.end(), [](const Program* program) {
    return std::any_of(program->forward.begin(), program->forward.end(),
                       [](const ProgramOp& op) { return IsCollective(op.op); });
  });
  if (exchanges) streams.push_back(StreamId::kExchange);
  return streams;
}

}  // namespace

BufferId FindConstant(const StateLayout& states, const Program& program, BufferId constant) {
  const std::string base = "constant/" + program.buffer(constant).name;
  const std::string content = ContentOf(program, constant);
  std::string name = base;
  for (int n = 2; const BufferId id = states.Find(name); ++n) {
    if (states.tensor(id).content == content) return id;
    name = fmt::format("{}#{}", base, n);
  }
  return {};
}

std::string CommScratchState(StreamId stream) { return fmt::format("comm/{}", Name(stream)); }

StateLayout PlanStates(const ShardLayout& layout, const PlanOptions& options,
                       const std::vector<const Program*>& programs) {
  StateLayout states;
  MR_CHECK(!programs.empty(), "states of a run without programs");
  const FlatEncodings encodings = EncodingsOfAll(layout, programs);
  for (const FlatId flat : layout.flat_ids())
    AddFlat(layout, flat, options.downcast, encodings[flat], &states);
  const Program& any = *programs.front();
  for (const Program* program : programs)
    MR_CHECK(program->sources == any.sources && program->losses == any.losses,
             "programs of one run have other inputs or losses");
  for (const InputSource& source : any.sources)
    states.Add({.name = source.name,
                .layout = DenseLayout(
                    source.dtype,
                    {2 * options.accumulate * MicrobatchNumel(options, layout.mesh, source)}),
                .by_parity = true,
                .window = {options.shape.seq, source.extra, source.filled},
                .weighs = source.weighs});
  states.Add({.name = "scalars", .layout = DenseLayout(DType::kU8, {sizeof(StepScalars)})});
  states.Add(
      {.name = "stats",
       .layout = DenseLayout(DType::kF64, {layout.mesh.world() * StatsRowOf(layout, any).width}),
       .writer = StateWriter::kPlans});
  int64_t tallied = 0;
  for (const Program* program : programs) tallied = std::max(tallied, TalliedNumel(*program));
  if (tallied > 0)
    states.Add({.name = std::string(kTallies),
                .layout = DenseLayout(DType::kF32, {tallied}),
                .writer = StateWriter::kPlans});
  for (const Program* program : programs) {
    AddConstants(*program, &states);
    AddHostStates(*program, &states);
  }
  // A communicator belongs to one stream, and a stream's calls run one after the other: they can
  // use the same bytes. Communicators of two streams have none in common, or those bytes would
  // order what shall overlap.
  if (options.comm_scratch_bytes > 0 && layout.mesh.world() > 1)
    for (const StreamId stream : CommStreams(programs))
      states.Add({.name = CommScratchState(stream),
                  .layout = DenseLayout(DType::kU8, {options.comm_scratch_bytes}),
                  .writer = StateWriter::kPlans});
  for (const Program* program : programs)
    if (InEra(*program)) AddEra(layout, options, *program, &states);
  return states;
}

namespace {

// A state or a carried buffer: what outlasts a schedule.
bool Outlasts(const PlanBuffer& buffer) {
  return IsState(buffer.scope) || buffer.scope == BufferScope::kCarried;
}

bool IsWhole(const View& view, const PlanBuffer& buffer) {
  return view.offset == 0 && view.rank_stride == 0 && view.microbatch_stride == 0 &&
         view.layout.span_bytes() == buffer.bytes;
}

Seam SeamOf(const StepPlan& plan, const std::vector<Entry>& schedule) {
  struct Use {
    bool touched = false, read_first = false, defined = false;
  };
  IdVector<BufferId, Use> uses(plan.buffers.size());
  std::vector<char> walked(plan.bodies.size(), false);
  for (const Entry& entry : schedule) {
    // What a body reads first in a later microbatch, it or another has touched before.
    if (std::exchange(walked[static_cast<size_t>(entry.body)], true)) continue;
    for (const PlanOp& op : plan.body(entry).ops) {
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
        Use& use = uses[view.buffer];
        if (Reads(access) && !use.touched) use.touched = use.read_first = true;
      });
      ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
        Use& use = uses[view.buffer];
        use.touched = true;
        if (!Writes(access) || access == Access::kScratch) return;
        use.defined |= use.read_first || IsWhole(view, plan.buffer(view.buffer));
      });
    }
  }
  Seam seam;
  for (const BufferId id : uses.ids()) {
    if (!Outlasts(plan.buffer(id))) continue;
    if (uses[id].read_first) seam.reads.push_back(id);
    if (uses[id].defined) seam.defines.push_back(id);
  }
  return seam;
}

}  // namespace

void DeclareSeams(StepPlan& plan) {
  plan.seam = SeamOf(plan, plan.schedule);
  plan.prologue_seam = SeamOf(plan, plan.prologue);
}

}  // namespace millrace
