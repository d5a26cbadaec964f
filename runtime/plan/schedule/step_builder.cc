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

StepBuilder::StepBuilder(const ShardLayout& shard_layout, const StateLayout& run_states,
                         const Program& microbatch, const PlanOptions& plan_options,
                         const std::string& name)
    : layout(shard_layout),
      states(run_states),
      program(microbatch),
      options(plan_options),
      trains(std::any_of(
          microbatch.buffers.begin(), microbatch.buffers.end(),
          [](const ProgramBuffer& buffer) { return buffer.role == ProgramRole::kParamGrad; })) {
  plan.name = name;
  plan.losses = program.losses;
  plan.execution = options.execution;
  plan.notes = program.choices;
  AddStates();
}

BufferId StepBuilder::AddBuffer(const std::string& name, int64_t bytes, BufferClass cls,
                                BufferScope scope, BufferPlan buffer_plan) {
  const BufferId id{static_cast<int32_t>(plan.buffers.size())};
  plan.buffers.push_back({name, bytes, cls, scope, {}, {}, -1, false});
  how.push_back(buffer_plan);
  produced.emplace_back();
  return id;
}

void StepBuilder::AddStates() {
  for (const StateTensor& state : states.tensors) {
    AddBuffer(state.name, state.bytes(), state.cls,
              state.scope == StateScope::kRun ? BufferScope::kPersistent : BufferScope::kEra);
    plan.buffers.back().by_parity = state.by_parity;
  }
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const bool constant = program.buffers[i].role == ProgramRole::kConstant;
    constants.push_back(constant ? FindConstant(states, program, i) : BufferId{});
    MR_CHECK(!constant || constants.back(),
             "the states of the run were made without the {} plan's constant {}", plan.name,
             program.buffers[i].name);
  }
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
        } else if constexpr (requires { typed.axes; }) {
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
