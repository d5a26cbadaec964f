#include "runtime/plan/schedule/step_builder.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {

View WholeView(BufferId buffer, DType dtype, int64_t numel) {
  View view;
  view.buffer = buffer;
  view.layout = DenseLayout(dtype, {numel});
  return view;
}

View ShardSlice(const View& whole, const FlatParam& flat) {
  View slice = whole;
  slice.layout = DenseLayout(whole.layout.dtype, {flat.shard_numel});
  slice.rank_stride = flat.shard_numel;
  slice.rank_axes = flat.shard;
  return slice;
}

bool InEra(const Program& program) {
  return std::any_of(
      program.buffers.begin(), program.buffers.end(),
      [](const ProgramBuffer& buffer) { return buffer.role == ProgramRole::kCache; });
}

KeptPart KeptPartOf(const ShardLayout& layout, const Program& program, FlatId flat) {
  const ParamId last = layout.flat(flat).params.back();
  KeptPart kept;
  bool parts = true;
  for (const ProgramOp& op : program.forward)
    ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
      const ProgramBuffer& buffer = program.buffer(view.buffer);
      if (buffer.role != ProgramRole::kParam || buffer.param != last) return;
      parts &= view.rank_stride > 0 && view.rank_alike == 1 && view.offset == 0 &&
               view.layout.numel() == view.rank_stride &&
               (kept.numel == 0 || (kept.numel == view.rank_stride && kept.axes == view.rank_axes));
      kept = {view.rank_stride, view.rank_axes};
    });
  return parts ? kept : KeptPart();
}

bool IsResident(const ShardLayout& layout, const PlanOptions& options, FlatId flat) {
  const FlatParam& f = layout.flat(flat);
  return layout.mesh.Size(f.shard) == 1 &&
         (f.key.encoding == DType::kF32 || options.downcast == Downcast::kAfterUpdate);
}

StepBuilder::StepBuilder(const ShardLayout& shard_layout, const StateLayout& run_states,
                         const Program& microbatch, const PlanOptions& plan_options,
                         const std::string& name)
    : layout(shard_layout),
      states(run_states),
      program(microbatch),
      options(plan_options),
      encodings(FlatEncodingsOf(shard_layout, microbatch)),
      in_era(InEra(microbatch)),
      trains(std::any_of(
          microbatch.buffers.begin(), microbatch.buffers.end(),
          [](const ProgramBuffer& buffer) { return buffer.role == ProgramRole::kParamGrad; })),
      tables(shard_layout.flats.size()) {
  plan.name = name;
  plan.losses = program.losses;
  plan.execution = options.execution;
  plan.notes = program.choices;
  for (const FlatId flat : encodings.ids())
    if (encodings[flat]) CheckEncoded(flat);
  AddStates();
  AddTallies();
}

void StepBuilder::CheckEncoded(FlatId flat) const {
  MR_CHECK(!in_era && options.downcast == Downcast::kAfterUpdate,
           "the {} plan reads {} in FP8, which is formed once after each update, for steps and "
           "evaluation",
           plan.name, layout.flat(flat).name);
  const BufferId payload = states.Slot(kPayloadSlot, flat);
  MR_CHECK(payload && states.tensor(payload).content == ToString(*encodings[flat]),
           "the states of the run were made without what the {} plan reads of {} in FP8", plan.name,
           layout.flat(flat).name);
}

BufferId StepBuilder::AddBuffer(const std::string& name, int64_t bytes, BufferClass cls,
                                BufferScope scope, BufferPlan buffer_plan) {
  plan.buffers.push_back({name, bytes, cls, scope, {}, {}, -1, false});
  produced.push_back({});
  return how.push_back(buffer_plan);
}

void StepBuilder::AddStates() {
  for (const StateTensor& state : states.tensors) {
    AddBuffer(state.name, state.bytes(), state.cls,
              state.scope == StateScope::kRun ? BufferScope::kPersistent : BufferScope::kEra);
    plan.buffers.back().by_parity = state.by_parity;
  }
  constants.resize(program.buffers.size());
  for (const BufferId id : program.buffer_ids()) {
    if (program.buffer(id).role != ProgramRole::kConstant) continue;
    constants[id] = FindConstant(states, program, id);
    MR_CHECK(constants[id], "the states of the run were made without the {} plan's constant {}",
             plan.name, program.buffer(id).name);
  }
}

void StepBuilder::AddTallies() {
  tallies.resize(program.buffers.size());
  int64_t offset = 0;
  const auto add = [&](BufferId id, ProgramRole role) {
    const ProgramBuffer& buffer = program.buffer(id);
    if (buffer.role != role) return;
    View& view = tallies[id] = State(kTallies);
    MR_CHECK(view && offset + buffer.layout.numel() <= view.layout.numel(),
             "the states of the run were made without the {} plan's tally {}", plan.name,
             buffer.name);
    view.offset = offset;
    view.layout = buffer.layout;
    offset += buffer.layout.numel();
    const std::string block = buffer.name.substr(0, buffer.name.find('/'));
    if (role == ProgramRole::kTally)
      plan.tallies.push_back({block, buffer.tally, view});
    else
      plan.overflows.push_back({block, view});
  };
  // The backward, which tallies, meets the blocks from the last to the first.
  const IdRange<BufferId> ids = program.buffer_ids();
  for (BufferId id = ids.last; id != ids.first;) --id.value, add(id, ProgramRole::kTally);
  const int64_t first = offset;
  for (const BufferId id : ids) add(id, ProgramRole::kOverflow);
  if (offset == 0) return;
  tallied = State(kTallies);
  tallied.layout = DenseLayout(DType::kF32, {offset});
  if (offset == first) return;
  overflows = State(kTallies);
  overflows.offset = first;
  overflows.layout = DenseLayout(DType::kF32, {offset - first});
}

View StepBuilder::State(std::string_view name_of_state) const {
  const BufferId id = states.Find(name_of_state);
  return id ? states.ViewOf(id) : View{};
}

int StepBuilder::BeginBody(const std::string& name, Phase phase, Variant variant) {
  plan.bodies.push_back({name, {}, 0, phase, variant});
  return static_cast<int>(plan.bodies.size()) - 1;
}

bool StepBuilder::WritesGradientOfWeight(const KernelOp& op) const {
  const View* out = nullptr;
  if (const auto* matmul = std::get_if<MatmulOp<View>>(&op))
    out = &matmul->out;
  else if (const auto* sum = std::get_if<ColumnSumOp<View>>(&op))
    out = &sum->out;
  else if (const auto* sums = std::get_if<NormSumsOp<View>>(&op))
    out = &sums->d_weight;
  if (out == nullptr) return false;
  const BufferClass cls = plan.buffer(out->buffer).cls;
  return cls == BufferClass::kGradients ||
         cls == BufferClass::kSlots;  // whole, or of a bucket in a pool
}

void StepBuilder::AttachScratch(KernelOp& op, StreamId stream) {
  std::visit(
      [&]<template <class> class Op>(Op<View>& typed) {
        const auto to_shape = [](const View& view) {
          return Shape{view.layout, static_cast<bool>(view)};
        };
        if constexpr (requires { typed.staged_bytes; })
          typed.staged_bytes =
              StagedBytes(ConvertOp<Op, View, Shape>(typed, to_shape), options.backend);
        if constexpr (requires(Op<Shape> shape) { WorkspaceBytes(shape, options.backend); }) {
          const int64_t bytes =
              WorkspaceBytes(ConvertOp<Op, View, Shape>(typed, to_shape), options.backend);
          if (bytes == 0) return;
          auto [it, fresh] = workspaces.try_emplace({bytes, stream});
          if (fresh)
            it->second = AddBuffer(
                fmt::format("workspace/{}{}", stream == StreamId::kCompute ? "" : "beside/", bytes),
                bytes, BufferClass::kWorkspaces, BufferScope::kMicrobatch);
          typed.scratch = WholeView(it->second, DType::kU8, bytes);
        } else if constexpr (requires {
                               typed.axes;
                               typed.scratch;
                             }) {
          if (options.comm_scratch_bytes == 0 || layout.mesh.world() == 1) return;
          typed.scratch = State(CommScratchState(stream));
          MR_CHECK(typed.scratch, "no scratch is planned for collectives on the {} stream",
                   Name(stream));
        }
      },
      op);
}

void StepBuilder::Emit(KernelOp op, StreamId stream, std::string label, UnitId unit,
                       bool recomputed) {
  if (options.overlap_weight_gradients)
    stream = WritesGradientOfWeight(op) ? StreamId::kReduce : stream;
  else if (layout.mesh.world() ==
           1)  // with nothing to hide, forks and joins cost more than they hide
    stream = StreamId::kCompute;
  AttachScratch(op, stream);
  plan.bodies.back().ops.push_back({std::move(op), stream, std::move(label), unit, recomputed});
}

}  // namespace millrace
