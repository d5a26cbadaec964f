// What a plan takes from units: their roles and numbers, never the text of their names.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>

#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/plan/graph/gradients.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/plan/nodes/activation.h"
#include "runtime/plan/nodes/add.h"
#include "runtime/plan/nodes/embedding.h"
#include "runtime/plan/nodes/head.h"
#include "runtime/plan/nodes/linear.h"
#include "runtime/plan/nodes/norm.h"
#include "runtime/plan/report/plan_report.h"
#include "runtime/plan/schedule/planner.h"
#include "runtime/plan/schedule/recompute.h"

namespace millrace {
namespace {

using Names = std::vector<std::string>;  // of the units: first, blocks, last

constexpr int64_t kWidth = 8, kHidden = 32, kVocab = 40;

ParamSpec Matrix(const std::string& name, int64_t rows, int64_t columns) {
  return {.name = name, .dims = {rows, columns}, .padded_rows = rows};
}

ParamSpec NormWeight(const std::string& name) {
  return {.name = name,
          .dims = {kWidth},
          .padded_rows = kWidth,
          .init = InitKind::kOnes,
          .kind = ParamKind::kNorm};
}

// x + down(gelu(up(norm(x)))) in each block.
ModelSpec SpecOf(const Names& names) {
  ModelSpec spec;
  spec.family = "stack";
  spec.vocab = spec.padded_vocab = kVocab;
  spec.d_model = kWidth;
  spec.units.push_back({names.front(), {Matrix("table", kVocab, kWidth)}, UnitRole::kEmbedding});
  for (size_t u = 1; u + 1 < names.size(); ++u)
    spec.units.push_back(
        {names[u],
         {NormWeight(fmt::format("norm{}", u)), Matrix(fmt::format("up{}", u), kHidden, kWidth),
          Matrix(fmt::format("down{}", u), kWidth, kHidden)},
         UnitRole::kBlock});
  spec.units.push_back(
      {names.back(), {NormWeight("norm"), Matrix("out", kVocab, kWidth)}, UnitRole::kHead});
  return spec;
}

SemanticGraph ForwardOf(const Names& names, const PrecisionPolicy& precision) {
  ForwardBuilder b(SpecOf(names), {.batch = 2, .seq = 6}, precision.compute, precision.norm_params);
  b.BeginUnit(names.front());
  ValueId x = Embedding(b, "table", "", "in");
  for (size_t u = 1; u + 1 < names.size(); ++u) {
    b.BeginUnit(names[u]);
    const auto of = [&](const char* what) { return fmt::format("{}{}", what, u); };
    const ValueId normed = Norm(b, x, of("norm"), "", NormKind::kRms, 1e-5f, of("norm"));
    const ValueId up = Linear(b, normed, of("up"), "", of("up"));
    const ValueId gelu = Activation(b, up, ActivationKind::kGelu, of("gelu"));
    x = Add(b, Linear(b, gelu, of("down"), "", of("down")), x, of("add"));
  }
  b.BeginUnit(names.back());
  Head(b, Norm(b, x, "norm", "", NormKind::kRms, 1e-5f, "norm"), "out", HeadMode::kTrainLoss);
  return std::move(b).Finish();
}

Program ProgramOf(const Names& names, const PrecisionPolicy& precision, Recompute recompute) {
  return Lower(AddGradients(ForwardOf(names, precision), recompute), LowerOptions{});
}

PlanOptions OptionsOf(AllocatorKind allocator, Reshard reshard, int accumulate) {
  PlanOptions options;
  options.shape = {.batch = 2, .seq = 6};
  options.allocator = allocator;
  options.reshard = reshard;
  options.accumulate = accumulate;
  return options;
}

const Names kUsual = {"embed", "h.0", "h.1", "h.2", "h.3", "h.4", "head"};
// The first and the last have what blocks are called elsewhere, and one block has "norms".
const Names kOther = {"h.in", "layer 0", "norms", "backward", "layer 3:again", "update", "h.9"};

StepPlan PlannedAlone(const ShardLayout& layout, const Program& program,
                      const PlanOptions& options) {
  return PlanStep(layout, PlanStates(layout, options, {&program}), program, options, "train");
}

TEST_CASE("units of other names have the same slots, lifetimes and addresses", "[plan][planner]") {
  const AllocatorKind allocator =
      GENERATE(AllocatorKind::kPacked, AllocatorKind::kColoured, AllocatorKind::kMaxPool,
               AllocatorKind::kFixed, AllocatorKind::kPersistent, AllocatorKind::kDynamic);
  const Reshard reshard =
      GENERATE(Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward, Reshard::kAuto);
  const int accumulate = GENERATE(1, 3);
  const PrecisionPolicy precision{DType::kBF16, DType::kF32, DType::kF32, DType::kBF16};
  CAPTURE(Name(allocator), Name(reshard), accumulate);
  PlanOptions options = OptionsOf(allocator, reshard, accumulate);
  const auto plan = [&](const Names& names) {
    const ShardLayout layout = PlanShards(SpecOf(names), {1, 3}, precision);
    const StepPlan plan =
        PlannedAlone(layout, ProgramOf(names, precision, Recompute::kBlock), options);
    CheckPlan(plan, layout.mesh, accumulate);
    return plan;
  };
  if (reshard == Reshard::kAuto) {  // some blocks stay gathered, not all
    options.reshard = Reshard::kAfterForward;
    const int64_t least = plan(kUsual).arena_bytes;
    options.reshard = Reshard::kNever;
    const int64_t most = plan(kUsual).arena_bytes;
    options.reshard = Reshard::kAuto;
    options.budget_bytes = std::max(least, (least + most) / 2);
  }
  const StepPlan usual = plan(kUsual), other = plan(kOther);
  REQUIRE(other.arena_bytes == usual.arena_bytes);
  REQUIRE(other.reshard == usual.reshard);
  REQUIRE(other.buffers.size() == usual.buffers.size());
  for (size_t i = 0; i < usual.buffers.size(); ++i) {
    CAPTURE(usual.buffers[i].name, other.buffers[i].name);
    CHECK(other.buffers[i].offsets == usual.buffers[i].offsets);
    CHECK(other.buffers[i].live == usual.buffers[i].live);
    CHECK(other.buffers[i].group == usual.buffers[i].group);
  }
  REQUIRE(other.schedule.size() == usual.schedule.size());
  for (size_t e = 0; e < usual.schedule.size(); ++e)
    CHECK(other.schedule[e].edges == usual.schedule[e].edges);
}

TEST_CASE("units of other names are counted and computed again as blocks", "[plan][recompute]") {
  CHECK(MatmulParameters(SpecOf(kOther)) == MatmulParameters(SpecOf(kUsual)));
  const RecomputeCounts counts = GivenRecompute(ForwardOf(kOther, {}), Recompute::kBlock).counts;
  CHECK(counts == RecomputeCounts{5, {{"activation", 5}, {"norm", 5}}, 5});
}

TEST_CASE("what is computed again is counted whatever its label", "[plan][report]") {
  const ModelSpec spec = SpecOf(kUsual);
  const ShardLayout layout = PlanShards(spec, {}, {});
  Program program = ProgramOf(kUsual, {}, Recompute::kNorms);
  for (std::vector<ProgramOp>* ops : {&program.forward, &program.backward})
    for (ProgramOp& op : *ops) op.label = "op:again";
  const PlanOptions options = OptionsOf(AllocatorKind::kPacked, Reshard::kNever, 3);
  const StepPlan plan = PlannedAlone(layout, program, options);
  const PlanReport report = MakePlanReport({spec, layout, options, plan, {}, FindMachine("cpu")});
  CHECK(report.recompute.ops == 3 * 5 * 2);  // a norm and an activation of each block
}

// The flats of `spec` with two for each block: the norm and `up`, and `down`. A layout that no
// policy makes yet.
ShardLayout TwoFlatsPerBlock(const ModelSpec& spec, Mesh mesh) {
  ModelSpec cut = spec;
  cut.units.clear();
  std::vector<UnitId> unit_of;  // by unit of `cut`
  for (size_t u = 0; u < spec.units.size(); ++u) {
    const UnitSpec& unit = spec.units[u];
    const size_t first = unit.role == UnitRole::kBlock ? 2 : unit.params.size();
    const auto middle = unit.params.begin() + static_cast<std::ptrdiff_t>(first);
    cut.units.push_back({unit.name + "/a", {unit.params.begin(), middle}, unit.role});
    unit_of.push_back({static_cast<int32_t>(u)});
    if (middle == unit.params.end()) continue;
    cut.units.push_back({unit.name + "/b", {middle, unit.params.end()}, unit.role});
    unit_of.push_back({static_cast<int32_t>(u)});
  }
  ShardLayout layout = PlanShards(cut, mesh, {});
  layout.units = PlanShards(spec, mesh, {}).units;
  for (FlatParam& flat : layout.flats)
    flat.key.unit = unit_of[static_cast<size_t>(flat.key.unit.value)];
  for (ParamPlacement& param : layout.params)
    param.unit = unit_of[static_cast<size_t>(param.unit.value)];
  return layout;
}

// slot j holds the j-th largest bucket of any unit: `slots` copies of the larger flat's bytes, and
// as many of the smaller one's. Were each flat a unit, two copies of the larger would have to do.
TEST_CASE("two flat parameters of one unit are two buckets of one unit to max_pool",
          "[plan][planner]") {
  const Mesh mesh(1, 2);
  const ShardLayout layout = TwoFlatsPerBlock(SpecOf(kUsual), mesh);
  REQUIRE(layout.flats.size() == 2 + 2 * 5);
  PlanOptions options = OptionsOf(AllocatorKind::kMaxPool, Reshard::kAfterForward, 2);
  options.grad_sync = GradSync::kEvery;
  options.slots = 2;
  const StepPlan plan = PlannedAlone(layout, ProgramOf(kUsual, {}, Recompute::kNone), options);
  CheckPlan(plan, mesh, options.accumulate);
  for (const char* pool : {"bucket", "grad"}) {
    std::set<int64_t> of[2];  // addresses of the larger flats' buckets, and of the smaller ones'
    int64_t bytes[2] = {};
    for (const PlanBuffer& buffer : plan.buffers)
      for (size_t u = 1; u <= 5; ++u)
        for (const int which : {0, 1}) {
          const std::string name = fmt::format("{}/h.{}/{}", pool, u - 1, which == 0 ? "a" : "b");
          if (buffer.name.substr(0, name.size()) != name) continue;
          of[which].insert(buffer.offsets.front());
          bytes[which] = buffer.bytes;
        }
    CAPTURE(pool);
    REQUIRE(bytes[0] > bytes[1]);
    for (const int which : {0, 1}) {
      REQUIRE(of[which].size() == 2);
      CHECK(*of[which].rbegin() - *of[which].begin() == bytes[which]);
    }
    CHECK(*of[1].begin() - *of[0].begin() == 2 * bytes[0]);
  }
}

// Of the forward and backward bodies: before which op of the program each gather is issued, and of
// which unit; several in a row of one unit once.
std::vector<std::string> GathersByUnit(const StepPlan& plan, const Program& program) {
  std::set<std::string> labels;
  for (const std::vector<ProgramOp>* ops : {&program.forward, &program.backward})
    for (const ProgramOp& op : *ops) labels.insert(op.label);
  std::vector<std::string> gathers;
  for (const Body& body : plan.bodies) {
    if (body.phase != Phase::kForward && body.phase != Phase::kBackward) continue;
    int before = 0;
    for (const PlanOp& op : body.ops) {
      before += static_cast<int>(labels.count(op.label));
      if (!std::holds_alternative<AllGatherOp<View>>(op.op)) continue;
      std::string gather = fmt::format("{} op {} unit {}", body.name, before, op.unit.value);
      if (gathers.empty() || gathers.back() != gather) gathers.push_back(std::move(gather));
    }
  }
  return gathers;
}

TEST_CASE("gathers, prefetch and slots count units, whatever their flats", "[plan][planner]") {
  const Mesh mesh(1, 2);
  const int prefetch = GENERATE(0, 1, 2);
  PlanOptions options =
      OptionsOf(GENERATE(AllocatorKind::kPacked, AllocatorKind::kColoured, AllocatorKind::kMaxPool,
                         AllocatorKind::kFixed),
                GENERATE(Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward), 3);
  options.prefetch = prefetch;
  options.slots = prefetch + 1;
  const Program program = ProgramOf(kUsual, {}, Recompute::kNone);
  const ModelSpec spec = SpecOf(kUsual);
  const ShardLayout one = PlanShards(spec, mesh, {}), two = TwoFlatsPerBlock(spec, mesh);
  const StepPlan usual = PlannedAlone(one, program, options),
                 plan = PlannedAlone(two, program, options);
  CheckPlan(plan, mesh, options.accumulate);
  CHECK(GathersByUnit(plan, program) == GathersByUnit(usual, program));
  CHECK(plan.reshard == usual.reshard);
  int flats = 0;  // both are gathered
  for (const PlanBuffer& buffer : plan.buffers) flats += buffer.name == "bucket/h.1/b";
  CHECK(flats == 1);
}

TEST_CASE("a gradient bucket waits for the reductions of other units", "[plan][planner]") {
  const Mesh mesh(1, 2);
  PlanOptions options = OptionsOf(AllocatorKind::kPacked, Reshard::kAfterBackward, 1);
  options.reduce_depth = GENERATE(1, 2);
  const StepPlan plan = PlannedAlone(TwoFlatsPerBlock(SpecOf(kUsual), mesh),
                                     ProgramOf(kUsual, {}, Recompute::kNone), options);
  struct Reduction {
    UnitId unit;
    int64_t at;
    BufferId bucket;
  };
  std::vector<Reduction> reductions;
  for (const Body& body : plan.bodies)
    for (size_t i = 0; i < body.ops.size(); ++i)
      if (const auto* op = std::get_if<ReduceScatterOp<View>>(&body.ops[i].op);
          op != nullptr && body.phase == Phase::kBackward)
        reductions.push_back(
            {body.ops[i].unit, body.begin + static_cast<int64_t>(i), op->full.buffer});
  REQUIRE(reductions.size() >= 2 * 5);
  for (size_t r = 0; r < reductions.size(); ++r) {
    std::set<UnitId> others;
    size_t later = r;
    while (++later < reductions.size()) {
      if (reductions[later].unit != reductions[r].unit) others.insert(reductions[later].unit);
      if (static_cast<int>(others.size()) == options.reduce_depth) break;
    }
    if (later == reductions.size()) continue;  // until the end of the body
    const std::vector<Interval>& live = plan.buffer(reductions[r].bucket).live;
    CAPTURE(plan.buffer(reductions[r].bucket).name, reductions[r].at, reductions[later].at);
    CHECK(live.back().end == reductions[later].at);
  }
}

// What carries data is one axis or another: a model that nothing splits is planned over the shard
// and tensor axes as over as many ranks of the shard axis alone.
TEST_CASE("axes that split nothing shard as the shard axis does", "[plan][planner]") {
  const int replicate = GENERATE(1, 2);
  PlanOptions options = OptionsOf(AllocatorKind::kPacked, Reshard::kAfterForward, 3);
  options.grad_sync = GENERATE(GradSync::kLast, GradSync::kEvery);
  options.downcast = GENERATE(Downcast::kPerGather, Downcast::kAfterGather, Downcast::kAfterUpdate);
  const PrecisionPolicy precision{DType::kBF16, DType::kF32, DType::kF32, DType::kBF16};
  const Program program = ProgramOf(kUsual, precision, Recompute::kNone);
  const auto planned = [&](const Mesh& mesh) {
    const ShardLayout layout = PlanShards(SpecOf(kUsual), mesh, precision);
    StepPlan plan = PlannedAlone(layout, program, options);
    CheckPlan(plan, mesh, options.accumulate);
    return plan;
  };
  const StepPlan plan = planned(Mesh(replicate, 2).With(Axis::kTensor, 2)),
                 usual = planned(Mesh(replicate, 4));
  CHECK(MemoryText(plan) == MemoryText(usual));
  std::string text = ScheduleText(plan);
  const std::string both = "shard+tensor", alone = "shard";
  int times = 0;
  for (size_t at = 0; (at = text.find(both, at)) != text.npos; ++times)
    text.replace(at, both.size(), alone);
  CHECK(times > 20);
  CHECK(text == ScheduleText(usual));
  for (const Body& body : plan.bodies)  // the text lacks this
    for (const PlanOp& op : body.ops)
      if (const auto* adamw = std::get_if<AdamWOp<View>>(&op.op))
        CHECK(adamw->flat_begin.axes == AxisSet({Axis::kShard, Axis::kTensor}));
}

}  // namespace
}  // namespace millrace
