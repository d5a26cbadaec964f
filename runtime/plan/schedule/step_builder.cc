#include "runtime/plan/schedule/step_builder.h"

#include <fmt/core.h>

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"

namespace millrace {

View WholeView(BufferId buffer, DType dtype, int64_t numel) {
  View view;
  view.buffer = buffer;
  view.layout = DenseLayout(dtype, {numel});
  return view;
}

StepBuilder::StepBuilder(const ShardLayout& shard_layout, const Program& microbatch,
                         const PlanOptions& plan_options, PlanKind kind)
    : layout(shard_layout), program(microbatch), options(plan_options) {
  plan.kind = kind;
  plan.execution = options.execution;
  plan.notes = program.choices;
  AddState();
}

BufferId StepBuilder::AddBuffer(const std::string& name, int64_t bytes, BufferClass cls,
                                BufferScope scope, BufferPlan buffer_plan) {
  const BufferId id{static_cast<int32_t>(plan.buffers.size())};
  plan.buffers.push_back({name, bytes, cls, scope, {}, {}, -1});
  how.push_back(buffer_plan);
  produced.emplace_back();
  return id;
}

// Persistent state comes first and in an order that depends on layout and options only: every plan
// of a run finds it at the same address.
void StepBuilder::AddState() {
  StateViews& state = plan.state;
  const auto add = [&](const std::string& name, DType dtype, int64_t numel, BufferClass cls) {
    return WholeView(AddBuffer(name, numel * Bytes(dtype), cls, BufferScope::kPersistent), dtype,
                     numel);
  };
  for (const FlatParam& flat : layout.flats) {
    state.master.push_back(
        add("master/" + flat.name, DType::kF32, flat.shard_numel, BufferClass::kParameters));
    state.m.push_back(
        add("adam_m/" + flat.name, DType::kF32, flat.shard_numel, BufferClass::kOptimizer));
    state.v.push_back(
        add("adam_v/" + flat.name, DType::kF32, flat.shard_numel, BufferClass::kOptimizer));
    const bool shadow = options.downcast == Downcast::kAfterUpdate && flat.encoding != DType::kF32;
    state.compute.push_back(shadow ? add("compute/" + flat.name, flat.encoding, flat.shard_numel,
                                         BufferClass::kParameters)
                                   : View{});
  }
  const StatsRow row(static_cast<int64_t>(layout.flats.size()));
  const int64_t window = options.shape.batch * (options.shape.seq + 1);
  state.tokens = add("tokens", DType::kI32, 2 * options.accumulate * window, BufferClass::kRuntime);
  state.scalars = add("scalars", DType::kU8, sizeof(StepScalars), BufferClass::kRuntime);
  state.stats = add("stats", DType::kF64, layout.mesh.world() * row.width, BufferClass::kRuntime);
  for (const ProgramBuffer& buffer : program.buffers)
    constants.push_back(buffer.role == ProgramRole::kConstant
                            ? add("constant/" + buffer.name, buffer.layout.dtype,
                                  buffer.layout.numel(), BufferClass::kRuntime)
                                  .buffer
                            : BufferId{});
  // A communicator belongs to one stream, and a stream's calls run one after the other: they can
  // use the same bytes. Communicators of two streams have none in common, or those bytes would
  // order what shall overlap.
  if (options.comm_scratch_bytes > 0 && layout.mesh.world() > 1)
    for (const StreamId stream : {StreamId::kGather, StreamId::kReduce})
      comm_scratch[static_cast<size_t>(stream)] =
          add(fmt::format("comm/{}", Name(stream)), DType::kU8, options.comm_scratch_bytes,
              BufferClass::kRuntime)
              .buffer;
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
          const BufferId scratch = comm_scratch.at(static_cast<size_t>(stream));
          MR_CHECK(scratch, "no scratch is planned for collectives on the {} stream", Name(stream));
          typed.scratch = WholeView(scratch, DType::kU8, options.comm_scratch_bytes);
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
