#include "runtime/plan/report/plan_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/plan/cost/communicators.h"
#include "runtime/plan/graph/model_flops.h"

namespace millrace {
namespace {

template <class E>
std::string Text(E value) {
  return std::string(Name(value));
}

ModelFigures FiguresOf(const ModelSpec& s) {
  return {s, s.padded_vocab, Parameters(s), MatmulParameters(s)};
}

// What the products of the plan's linears multiply.
LinearEncoding LinearsOf(const StepPlan& plan) {
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) {
      const auto* product = std::get_if<MatmulOp<View>>(&op.op);
      if (product == nullptr || product->scaling == Scaling::kNone) continue;
      return product->scaling == Scaling::kProduct ? LinearEncoding::kFp8Tensor
                                                   : LinearEncoding::kFp8Block;
    }
  return LinearEncoding::kCompute;
}

// What the plan's gathers of these linears' weights carry.
WeightGather GatherOf(const StepPlan& plan) {
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (std::holds_alternative<ShardQuantizeOp<View>>(op.op)) return WeightGather::kLinear;
  return WeightGather::kCompute;
}

std::map<std::string, std::string> OptionsOf(const PlanOptions& o, const PrecisionPolicy& p,
                                             LinearEncoding linear, WeightGather gather) {
  std::map<std::string, std::string> options = {
      {"memory.allocator", Text(o.allocator)},
      {"memory.budget_gib",
       o.budget_bytes > 0 ? fmt::format("{:.6g}", static_cast<double>(o.budget_bytes) / (1 << 30))
                          : "none"},
      {"memory.prefetch", fmt::format("{}", o.prefetch)},
      {"memory.reduce_depth", fmt::format("{}", o.reduce_depth)},
      {"memory.slots", fmt::format("{}", o.slots)},
      {"precision.compute", Text(p.compute)},
      {"precision.grad_accumulate", Text(p.grad_accumulate)},
      {"precision.grad_wire", Text(p.grad_wire)},
      {"precision.norms", Text(p.norm_params)},
      {"sharding.downcast", Text(o.downcast)},
      {"sharding.grad_concat", Text(o.grad_concat)},
      {"sharding.grad_sync", Text(o.grad_sync)},
      {"sharding.reshard", Text(o.reshard)},
  };
  if (p.moments != DType::kF32) options["optimizer.moments"] = Text(p.moments);
  if (linear != LinearEncoding::kCompute) options["precision.linear"] = Text(linear);
  if (gather != WeightGather::kCompute) options["precision.gather"] = Text(gather);
  return options;
}

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kArenaAlignment); }

// Bytes by class at the first position where their sum is largest, and that position.
std::pair<std::array<int64_t, kBufferClasses>, int64_t> ClassesAtPeak(const StepPlan& plan) {
  std::vector<std::array<int64_t, kBufferClasses>> change(static_cast<size_t>(plan.timeline_end()) +
                                                          1);
  for (const PlanBuffer& buffer : plan.buffers) {
    for (const Interval& live : buffer.live) {
      change[static_cast<size_t>(live.begin)][static_cast<size_t>(buffer.cls)] +=
          Aligned(buffer.bytes);
      change[static_cast<size_t>(live.end)][static_cast<size_t>(buffer.cls)] -=
          Aligned(buffer.bytes);
    }
  }
  std::array<int64_t, kBufferClasses> now{}, best{};
  int64_t most = -1, where = 0;
  for (size_t p = 0; p < change.size(); ++p) {
    int64_t sum = 0;
    for (size_t c = 0; c < now.size(); ++c) sum += now[c] += change[p][c];
    if (sum > most) {
      most = sum;
      best = now;
      where = static_cast<int64_t>(p);
    }
  }
  return {best, where};
}

MemoryFigures MemoryOf(const ReportInput& in) {
  const StepPlan& plan = in.plan;
  MemoryFigures m;
  m.by_class = plan.peak_by_class;
  std::tie(m.at_peak, m.peak_position) = ClassesAtPeak(plan);
  m.arena = plan.arena_bytes;
  m.run_arena = std::max(plan.arena_bytes, in.other_plans_arena);
  const int64_t beside =
      BesideArena(CommunicatorsOf(plan, in.layout.mesh), in.layout.mesh, in.machine, m.run_arena);
  if (in.options.backend == Backend::kCuda && beside > 0) {
    m.device = m.run_arena + beside;
    m.device_has = in.machine.device_bytes;
  }
  m.lower_bound = plan.lower_bound;
  m.persistent = plan.persistent_bytes;
  m.parameter_pool = plan.param_pool_bytes;
  m.gradient_pool = plan.grad_pool_bytes;
  for (const FlatParam& flat : in.layout.flats) {
    // All but Muon's and those that are frozen are counted as AdamW's with f32 moments.
    const int64_t slots = !flat.key.trainable ? 1 : flat.key.update == UpdateRule::kMuon ? 2 : 3;
    m.checkpoint += slots * 4 * flat.padded_numel * in.layout.mesh.Size(flat.key.split);
    m.checkpoint_per_rank += slots * 4 * flat.shard_numel;
  }
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (const auto* exchange = std::get_if<AllToAllOp<View>>(&op.op);
          exchange != nullptr && body.phase != Phase::kUpdate)
        m.received = std::max(
            m.received, exchange->received.layout.numel() * Bytes(exchange->received.layout.dtype));
  return m;
}

void Add(OpEstimate& sum, const OpEstimate& each, int64_t runs) {
  sum.flops += each.flops * static_cast<double>(runs);
  sum.read_bytes += each.read_bytes * runs;
  sum.write_bytes += each.write_bytes * runs;
  sum.wire_bytes += each.wire_bytes * runs;
  sum.seconds += each.seconds * static_cast<double>(runs);
}

void FillOps(const ReportInput& in, PlanReport& r) {
  std::vector<int64_t> runs(in.plan.bodies.size(), 0);
  for (const Entry& entry : in.plan.schedule) ++runs[static_cast<size_t>(entry.body)];
  CostModel model(r.mesh, r.machine);
  std::map<std::string, std::pair<KindFigures, double>> kinds;  // and the time of its longest op
  for (size_t b = 0; b < in.plan.bodies.size(); ++b) {
    const Body& body = in.plan.bodies[b];
    for (const PlanOp& op : body.ops) {
      OpFigures figures{body.name,      std::string(OpName(op.op)), op.label, op.stream, runs[b],
                        model.Of(op.op)};
      if (runs[b] > 0) {
        auto& [kind, longest] = kinds[figures.kind];
        kind.kind = figures.kind;
        kind.count += runs[b];
        if (figures.each.seconds > longest) {
          longest = figures.each.seconds;
          kind.sum.bound = figures.each.bound;
        }
        Add(kind.sum, figures.each, runs[b]);
      }
      if (op.recomputed) {
        r.recompute.ops += runs[b];
        r.recompute.seconds +=
            (figures.each.seconds + r.machine.op_gap) * static_cast<double>(runs[b]);
      }
      r.ops.push_back(std::move(figures));
    }
  }
  for (auto& [name, kind] : kinds) {
    r.op_flops += kind.first.sum.flops;
    r.time.roofline += kind.first.sum.seconds;
    r.kinds.push_back(std::move(kind.first));
  }
  std::stable_sort(r.kinds.begin(), r.kinds.end(), [](const KindFigures& a, const KindFigures& b) {
    return a.sum.seconds > b.sum.seconds;
  });
}

void FillTime(const ReportInput& in, PlanReport& r) {
  const Timeline line = Simulate(in.plan, in.plan.schedule, r.mesh, r.machine, in.join);
  r.time.step = line.seconds;
  r.time.busy = line.busy;
  r.time.exposed = line.exposed;
  r.time.peak_flops = r.machine.peak(in.layout.precision.compute);
  if (line.seconds <= 0) return;
  r.time.tokens_per_second = static_cast<double>(r.tokens_per_step) / line.seconds;
  const double per_rank = r.time.tokens_per_second / r.world;
  r.time.mfu_causal = r.flops_per_token_causal * per_rank / r.time.peak_flops;
  r.time.mfu_full = r.flops_per_token_full * per_rank / r.time.peak_flops;
}

}  // namespace

PlanReport MakePlanReport(const ReportInput& in) {
  PlanReport r;
  r.kind = in.plan.name;
  r.execution = in.plan.execution;
  r.hash = PlanHash(in.plan);
  r.model = FiguresOf(in.spec);
  r.mesh = in.layout.mesh;
  r.world = in.layout.mesh.world();
  r.shape = in.options.shape;
  r.accumulate = in.options.accumulate;
  r.tokens_per_step = int64_t{r.mesh.data_ranks()} * r.accumulate * r.shape.rows();
  r.options = OptionsOf(in.options, in.layout.precision, LinearsOf(in.plan), GatherOf(in.plan));
  r.memory = MemoryOf(in);
  r.step = CountersOf(in.plan, in.plan.schedule, r.mesh);
  r.prologue = CountersOf(in.plan, in.plan.prologue, r.mesh);
  r.wire = WireByPurpose(in.plan, in.plan.schedule, r.mesh);
  r.flops_per_token_causal = in.flops.causal;
  r.flops_per_token_full = in.flops.full;
  r.machine = ShareOf(in.machine, r.world);
  r.recompute.counts = in.recompute.counts;
  r.recompute.searched = in.recompute.searched;
  r.recompute.saved_bytes = in.recompute.saved_bytes;
  r.recompute.exchanges = in.recompute.exchanges;
  FillOps(in, r);
  FillTime(in, r);
  r.choices = in.plan.notes;
  return r;
}

std::map<std::string, double> PredictedFigures(const PlanReport& r) {
  const auto number = [](int64_t count) { return static_cast<double>(count); };
  return {
      {"arena_bytes", number(r.memory.run_arena)},
      {"bytes_concatenated_per_step", number(r.step.concatenated_bytes)},
      {"bytes_cast_per_step", number(r.step.cast_bytes)},
      {"bytes_copied_per_step", number(r.step.copied_bytes)},
      {"bytes_gathered_per_step", number(r.step.gathered_bytes)},
      {"bytes_reduced_per_step", number(r.step.reduced_bytes)},
      {"bytes_all_reduced_per_step", number(r.step.all_reduced_bytes)},
      {"bytes_exchanged_per_step", number(r.step.exchanged_bytes)},
      {"gathers_per_step", number(r.step.all_gathers)},
      {"reduces_per_step", number(r.step.reduce_scatters)},
      {"all_reduces_per_step", number(r.step.all_reduces)},
      {"all_to_alls_per_step", number(r.step.all_to_alls)},
      {"ops_per_step", number(r.step.ops)},
      {"median_step_ms", r.time.step * 1e3},
      {"tokens_per_s", r.time.tokens_per_second},
      {"mfu", r.time.mfu_causal},
      {"exposed_communication_ms", Timeline::ExposedTotal(r.time.exposed) * 1e3},
  };
}

}  // namespace millrace
