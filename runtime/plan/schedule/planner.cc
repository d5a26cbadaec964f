#include "runtime/plan/schedule/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/plan/schedule/allocator_table.h"
#include "runtime/plan/schedule/constants.h"
#include "runtime/plan/schedule/edges.h"
#include "runtime/plan/schedule/grad_pass.h"
#include "runtime/plan/schedule/muon_pass.h"
#include "runtime/plan/schedule/param_pass.h"
#include "runtime/plan/schedule/pool_items.h"
#include "runtime/plan/schedule/step_builder.h"
#include "runtime/plan/schedule/update.h"

namespace millrace {
namespace {

void CheckOptions(const PlanOptions& o) {
  MR_REQUIRE(ErrorCode::kConfig, o.slots >= o.prefetch + 1,
             "memory.slots is {}, but memory.prefetch {} needs at least {}", o.slots, o.prefetch,
             o.prefetch + 1);
  MR_REQUIRE(
      ErrorCode::kConfig,
      !(o.grad_sync == GradSync::kEvery && o.grad_concat == GradConcat::kLast && o.accumulate > 1),
      "sharding.grad_concat=last with sharding.grad_sync=every and train.accumulate {}: every "
      "microbatch's reduction needs its gradients in the bucket; use grad_concat direct or every, "
      "or grad_sync last",
      o.accumulate);
}

// From one half of an op's inputs to the other: of its i32 operands, and of its f32 ones.
struct ParityStrides {
  int64_t ids = 0, values = 0;

  void Add(DType dtype, int64_t stride) {
    int64_t& of = dtype == DType::kI32 ? ids : values;
    MR_CHECK(of == 0 || of == stride, "halves of {} and {} elements of inputs of one op", of,
             stride);
    of = stride;
  }
};

void FillParityStrides(KernelOp& op, const ParityStrides& strides) {
  std::visit(
      [&](auto& typed) {
        if constexpr (requires { typed.parity_stride; }) typed.parity_stride = strides.ids;
        if constexpr (requires { typed.values_parity_stride; })
          typed.values_parity_stride = strides.values;
      },
      op);
}

// What one plan is made of.
struct PlanInput {
  const ShardLayout& layout;
  const StateLayout& states;
  const Program& program;
  const PlanOptions& options;
  const std::string& name;
};

// Emits the bodies of one plan.
class Planner {
 public:
  Planner(const PlanInput& in, const std::vector<Reshard>& reshard)
      : b_(in.layout, in.states, in.program, in.options, in.name),
        params_(b_, reshard, /*carry=*/b_.trains),
        grads_(b_),
        act_(in.program.buffers.size()) {}

  StepPlan Build() {
    BuildBodies();
    PlaceBuffers(b_);
    DeclareSeams(b_.plan);
    DeriveEdges(b_.plan, b_.layout.mesh, b_.options.accumulate);
    return std::move(b_.plan);
  }

  StepPlan Draft() {
    BuildBodies();
    MeasureBuffers(b_);
    return std::move(b_.plan);
  }

  AllocatorTable Compare() {
    BuildBodies();
    MeasureBuffers(b_);
    return AllocatorTableOf(b_);
  }

 private:
  void BuildBodies() {
    if (b_.trains) {
      BuildTrainStep();
    } else {
      BuildForward(b_.plan.name, Variant::kOnly);
      b_.plan.schedule.push_back({0, 0, {}});
    }
    BuildPrologue();
    int64_t begin = 0;
    for (Body& body : b_.plan.bodies) {
      body.begin = begin;
      begin = body.end();
    }
    MarkConstants(&b_.plan);
  }

  void BuildTrainStep() {
    const int n = b_.options.accumulate;
    std::vector<Variant> variants = {Variant::kOnly};
    if (n == 2) variants = {Variant::kFirst, Variant::kLast};
    if (n > 2) variants = {Variant::kFirst, Variant::kMiddle, Variant::kLast};
    for (const Variant variant : variants) {
      BuildForward(fmt::format("forward.{}", Name(variant)), variant);
      BuildBackward(fmt::format("backward.{}", Name(variant)), variant);
    }
    const int update = BuildUpdate();
    for (int m = 0; m < n; ++m) {
      const int variant = m == 0 ? 0 : m == n - 1 ? static_cast<int>(variants.size()) - 1 : 1;
      b_.plan.schedule.push_back({2 * variant, m, {}});
      b_.plan.schedule.push_back({2 * variant + 1, m, {}});
    }
    b_.plan.schedule.push_back({update, n - 1, {}});
  }

  void BuildForward(const std::string& name, Variant variant) {
    b_.BeginBody(name, Phase::kForward, variant);
    if (b_.trains && IsFirst(variant)) {
      BeginStepOp<View> begin;
      begin.scalars = b_.State("scalars");
      begin.schedule = b_.options.learning_rate;
      begin.scaling = b_.options.scaling;
      b_.Emit(begin, StreamId::kCompute, "begin_step", {});
    }
    EmitOps(b_.program.forward, 0, variant);
  }

  void BuildBackward(const std::string& name, Variant variant) {
    b_.BeginBody(name, Phase::kBackward, variant);
    const int forward_ops = static_cast<int>(b_.program.forward.size());
    EmitOps(b_.program.backward, forward_ops, variant);
    params_.EmitGathersAt(forward_ops + static_cast<int>(b_.program.backward.size()),
                          IsFirst(variant), !IsLast(variant));
  }

  void EmitOps(const std::vector<ProgramOp>& ops, int first_position, Variant variant) {
    b_.plan.bodies.back().ops.reserve(ops.size() * 3 / 2);  // with those of sharding
    int position = first_position;
    for (const ProgramOp& op : ops) {
      params_.EmitGathersAt(position, IsFirst(variant), !IsLast(variant) && b_.trains);
      if (b_.trains) grads_.EmitBefore(position, variant);
      const bool exchanged = op.strip >= 0 || IsCollective(op.op);
      const StreamId stream = exchanged ? StreamId::kExchange : StreamId::kCompute;
      b_.Emit(Bound(op.op, position, variant), stream, op.label, op.unit, op.recomputed);
      if (b_.trains) grads_.EmitAfter(position, variant);
      ++position;
    }
  }

  // The program op on plan buffers.
  KernelOp Bound(KernelOp op, int position, Variant variant) {
    ParityStrides strides;
    bool formed_for_wire = false;
    ForEachView(op, [&](View& view, Update* update, std::string_view name) {
      const BufferId id = view.buffer;
      const ProgramBuffer& buffer = b_.program.buffer(id);
      switch (buffer.role) {
        case ProgramRole::kParam:
          view = params_.Resolve(view, buffer.param, position);
          break;
        case ProgramRole::kParamScales:
          view = params_.ResolveScales(view, buffer.param);
          break;
        case ProgramRole::kParamGrad:
          view = grads_.Resolve(view, buffer.param);
          MR_CHECK(update != nullptr, "{}: the gradient {} has no update", OpName(op), name);
          if (!IsFirst(variant) && grads_.outlives_microbatch(buffer.param))
            *update = Update::kAccumulate;
          if (grads_.one_contribution_per_part()) *update = Update::kOverwrite;
          formed_for_wire |= grads_.formed_for_wire(buffer.param);
          break;
        case ProgramRole::kLoss:
          MR_CHECK(update != nullptr, "{}: the loss {} has no update", OpName(op), name);
          view = grads_.loss_sum(buffer.loss);
          DeclareLoss(buffer.loss, view);
          if (!IsFirst(variant)) *update = Update::kAccumulate;
          break;
        case ProgramRole::kTally:
        case ProgramRole::kOverflow:
          MR_CHECK(update != nullptr, "{}: the tally {} has no update", OpName(op), name);
          view = b_.tallies[id];
          if (!IsFirst(variant)) *update = Update::kAccumulate;
          break;
        case ProgramRole::kInput: {
          const InputSource& source = b_.program.source(buffer.source);
          view.buffer = b_.State(source.name).buffer;
          view.microbatch_stride = MicrobatchNumel(b_.options, b_.layout.mesh, source);
          strides.Add(source.dtype, b_.options.accumulate * view.microbatch_stride);
          break;
        }
        case ProgramRole::kScalars:
          view.buffer = b_.State("scalars").buffer;
          break;
        case ProgramRole::kConstant:
          view.buffer = b_.constants[id];
          break;
        case ProgramRole::kHostState:
        case ProgramRole::kCache:
          view.buffer = b_.State(buffer.name).buffer;
          MR_CHECK(view, "the states of the run were made without {}", buffer.name);
          break;
        case ProgramRole::kActivation:
        case ProgramRole::kLogits:
        case ProgramRole::kOutput:
          view.buffer = Activation(id);
          break;
      }
    });
    if (auto* product = std::get_if<MatmulOp<View>>(&op); product != nullptr && formed_for_wire)
      product->rounding = Rounding::kBackend;
    FillParityStrides(op, strides);
    return op;
  }

  void DeclareLoss(LossId loss, const View& sum) {
    const std::string name = b_.plan.losses[static_cast<size_t>(loss.value)].name + "_sum";
    if (b_.plan.FindOutput(name) == nullptr) b_.plan.outputs.push_back({name, sum});
  }

  BufferId Activation(BufferId of_program) {
    BufferId& id = act_[of_program];
    if (id) return id;
    const ProgramBuffer& buffer = b_.program.buffer(of_program);
    const int64_t bytes = buffer.layout.numel() * Bytes(buffer.layout.dtype);
    if (buffer.role == ProgramRole::kLogits || buffer.role == ProgramRole::kOutput) {
      // Read by the host after the plan has run: nothing may reuse its bytes within it.
      id = b_.AddBuffer(buffer.name, bytes, BufferClass::kActivations, BufferScope::kCarried);
      b_.plan.outputs.push_back({buffer.role == ProgramRole::kOutput ? buffer.name : "logits",
                                 WholeView(id, buffer.layout.dtype, buffer.layout.numel())});
    } else {
      id = b_.AddBuffer(buffer.name, bytes, BufferClass::kActivations, BufferScope::kMicrobatch);
    }
    return id;
  }

  int BuildUpdate() {
    const int body = b_.BeginBody("update", Phase::kUpdate);
    const View row_of_ranks = b_.State("stats"), scalars = b_.State("scalars");
    // Ahead of the statistics, which the compute stream waits for: the step ends with both.
    if (b_.tallied && b_.layout.mesh.world() > 1) {
      AllReduceOp<View> sum;
      sum.buffer = b_.tallied;
      sum.axes = AxisSet::All();
      b_.Emit(sum, StreamId::kReduce, "sum_tallies", {});
    }
    grads_.EmitNoStatistics();
    if (b_.layout.mesh.world() > 1) {
      AllGatherOp<View> rows;
      rows.full = row_of_ranks;
      rows.axes = AxisSet::All();
      b_.Emit(rows, StreamId::kReduce, "gather_stats", {});
    }
    StepStatsOp<View> stats;
    stats.rows = row_of_ranks;
    const int64_t units = static_cast<int64_t>(b_.layout.flats.size());
    stats.rows.layout = DenseLayout(DType::kF64, {b_.layout.mesh.world(), b_.stats_row().width});
    stats.losses.count = static_cast<int64_t>(b_.plan.losses.size());
    for (size_t l = 0; l < b_.plan.losses.size(); ++l)
      stats.losses.weight[l] = b_.plan.losses[l].weight;
    stats.overflow = b_.overflows;
    stats.scalars = scalars;
    stats.units = units;
    stats.shard_world = b_.layout.mesh.Size(AxisSet::All() - Axis::kReplicate);
    stats.clip = b_.options.clip;
    stats.scaling = b_.options.scaling;
    b_.Emit(stats, StreamId::kCompute, "step_stats", {});
    MuonPass(b_, grads_).Emit();
    for (FlatId flat : params_.order()) {
      EmitUpdate(b_, flat, grads_.final_grad(flat));
      if (b_.layout.flat(flat).key.trainable) EmitEncoded(b_, flat);
      params_.EmitCarriedGathers(flat);
    }
    return body;
  }

  void BuildPrologue() {
    const int body = b_.BeginBody("prologue", Phase::kPrologue);
    for (const ProgramOp& op : b_.program.prologue)
      b_.Emit(Bound(op.op, 0, Variant::kOnly), StreamId::kCompute, op.label, op.unit);
    for (const FlatId flat : b_.layout.flat_ids()) {
      CastOp<View> cast;
      cast.x = b_.Master(flat);
      cast.out = b_.Compute(flat);
      if (cast.out)
        b_.Emit(cast, StreamId::kGather, "downcast/" + b_.layout.flat(flat).name,
                b_.layout.flat(flat).key.unit);
      EmitEncoded(b_, flat);
    }
    if (b_.in_era) EmitEra(b_);
    if (b_.trains)
      for (FlatId flat : params_.order()) params_.EmitCarriedGathers(flat);
    b_.plan.prologue.push_back({body, 0, {}});
  }

  StepBuilder b_;
  ParamPass params_;
  GradPass grads_;
  IdVector<BufferId, BufferId> act_;  // by program buffer: activations, once used
};

// Block units that have parameters of their own.
std::vector<UnitId> BlockUnits(const ShardLayout& layout) {
  std::vector<UnitId> blocks;
  for (const FlatId flat : layout.flat_ids()) {
    const UnitId unit = layout.flat(flat).key.unit;
    if (layout.IsBlock(flat) && (blocks.empty() || blocks.back() != unit)) blocks.push_back(unit);
  }
  return blocks;
}

// Reshard per unit: the last `kept` blocks stay gathered for the whole step, the others follow
// `rest`. What units share is small and stays.
std::vector<Reshard> ReshardPerUnit(const ShardLayout& layout, Reshard rest, size_t kept) {
  std::vector<Reshard> reshard(layout.units.size(), rest);
  for (size_t u = 0; u < reshard.size(); ++u)
    if (layout.units[u].role == UnitRole::kShared) reshard[u] = Reshard::kNever;
  const std::vector<UnitId> blocks = BlockUnits(layout);
  for (size_t i = blocks.size() - std::min(kept, blocks.size()); i < blocks.size(); ++i)
    reshard[static_cast<size_t>(blocks[i].value)] = Reshard::kNever;
  return reshard;
}

StepPlan PlanWith(const PlanInput& in, Reshard rest, size_t kept) {
  std::vector<Reshard> reshard = ReshardPerUnit(in.layout, rest, kept);
  StepPlan plan = Planner(in, reshard).Build();
  plan.reshard = std::move(reshard);
  return plan;
}

StepPlan DraftWith(const PlanInput& in, Reshard rest, size_t kept) {
  return Planner(in, ReshardPerUnit(in.layout, rest, kept)).Draft();
}

StepPlan PlanAuto(const PlanInput& in) {
  const ShardLayout& layout = in.layout;
  const PlanOptions& options = in.options;
  MR_REQUIRE(ErrorCode::kConfig, options.budget_bytes > 0,
             "sharding.reshard=auto needs memory.budget_gib: the bytes it may fill");
  const size_t blocks = BlockUnits(layout).size();
  // The most blocks kept, up to `most`, that fit.
  const auto largest = [](size_t most, auto&& fits) {
    size_t low = 0, high = most;
    while (low < high) {
      const size_t middle = (low + high + 1) / 2;
      if (fits(middle))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  };
  const auto planned = [&](size_t kept) { return PlanWith(in, Reshard::kAfterForward, kept); };
  // With more than this even the lower bound is above the budget. Most arenas meet their bound.
  size_t low = largest(blocks, [&](size_t kept) {
    return DraftWith(in, Reshard::kAfterForward, kept).lower_bound <= options.budget_bytes;
  });
  StepPlan plan = planned(low);
  if (low > 0 && plan.arena_bytes > options.budget_bytes) {
    low = largest(low - 1,
                  [&](size_t kept) { return planned(kept).arena_bytes <= options.budget_bytes; });
    plan = planned(low);
  }
  plan.notes.push_back("reshard auto: " + std::to_string(low) + " of " + std::to_string(blocks) +
                       " block units stay gathered");
  return plan;
}

}  // namespace

StepPlan DraftStep(const ShardLayout& layout, const StateLayout& states, const Program& program,
                   const PlanOptions& options, const std::string& name) {
  CheckOptions(options);
  // The search for kAuto begins where nothing is kept.
  const Reshard reshard =
      options.reshard == Reshard::kAuto ? Reshard::kAfterForward : options.reshard;
  return DraftWith({layout, states, program, options, name}, reshard, 0);
}

AllocatorTable CompareAllocators(const ShardLayout& layout, const StateLayout& states,
                                 const Program& program, const PlanOptions& options,
                                 const std::vector<Reshard>& reshard) {
  CheckOptions(options);
  return Planner({layout, states, program, options, "train"}, reshard).Compare();
}

StepPlan PlanStep(const ShardLayout& layout, const StateLayout& states, const Program& program,
                  const PlanOptions& options, const std::string& name) {
  CheckOptions(options);
  const PlanInput in{layout, states, program, options, name};
  const bool chooses = options.reshard == Reshard::kAuto && !InEra(program);  // gathers nothing
  StepPlan plan = chooses ? PlanAuto(in) : PlanWith(in, options.reshard, 0);
  MR_REQUIRE(ErrorCode::kDoesNotFit,
             options.budget_bytes <= 0 || plan.arena_bytes <= options.budget_bytes,
             "the plan needs {} bytes per rank, memory.budget_gib allows {}; "
             "memory.recompute=auto, a smaller train.micro_batch or more ranks need less",
             plan.arena_bytes, options.budget_bytes);
  return plan;
}

}  // namespace millrace
