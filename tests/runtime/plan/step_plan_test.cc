#include "runtime/plan/step_plan.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <set>

#include "runtime/base/error.h"
#include "tests/runtime/plan/hand_plan.h"
#include "tests/support/golden.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using test::HandPlan;
using test::PlanCase;
using test::PlanOf;

const std::string kGolden = "tests/runtime/plan/golden/";

PlanCase Golden() {
  PlanCase c;
  c.model = test::TinyGpt2(1);
  c.options.clip = 1;
  c.options.learning_rate = {.kind = ScheduleKind::kCosine,
                             .lr = 0.001,
                             .min_lr = 0.0001,
                             .warmup = 2,
                             .decay_steps = 8,
                             .total_steps = 10};
  c.options.execution = "graph=off";
  return c;
}

TEST_CASE("a plan prints its buffers, bodies, schedule and edges", "[plan][step_plan]") {
  PlanCase c = Golden();
  test::RequireGolden(kGolden + "plan_gpt2_world1.txt", ToString(PlanOf(c)));

  c.model = test::TinyGpt2(2);
  c.mesh = {1, 2};
  c.precision = test::Mixed(DType::kF32, DType::kF32, DType::kBF16);
  c.options.accumulate = 2;
  test::RequireGolden(kGolden + "plan_gpt2_shard2_accumulate2.txt", ToString(PlanOf(c)));

  c.model = test::TinyLlama(1);
  c.mesh = {2, 2};
  c.options.accumulate = 2;
  c.options.downcast = Downcast::kAfterUpdate;
  c.options.grad_sync = GradSync::kEvery;
  c.options.grad_concat = GradConcat::kEvery;
  c.options.allocator = AllocatorKind::kMaxPool;
  c.recompute = Recompute::kNorms;
  test::RequireGolden(kGolden + "plan_llama_hsdp2x2.txt", ToString(PlanOf(c)));
}

TEST_CASE("the hash tells plans apart by every option, and is the text's", "[plan][step_plan]") {
  PlanCase base = Golden();
  base.mesh = {1, 2};
  base.precision = test::Mixed(DType::kF32, DType::kF32, DType::kF32);
  base.model = test::TinyGpt2(4);
  base.options.accumulate = 3;
  REQUIRE(PlanHash(PlanOf(base)) == PlanHash(PlanOf(base)));
  REQUIRE(PlanHash(PlanOf(base)).size() == 16);

  std::vector<PlanCase> others(23, base);
  size_t i = 0;
  others[i++].options.accumulate = 2;
  others[i++].options.reshard = Reshard::kNever;
  others[i++].options.reshard = Reshard::kAfterBackward;
  others[i++].options.downcast = Downcast::kAfterGather;
  others[i++].options.downcast = Downcast::kAfterUpdate;
  others[i++].options.grad_sync = GradSync::kEvery;
  others[i++].options.grad_concat = GradConcat::kEvery;
  others[i++].options.grad_concat = GradConcat::kLast;
  others[i++].options.allocator = AllocatorKind::kDynamic;
  others[i++].options.allocator = AllocatorKind::kPersistent;
  others[i++].options.allocator = AllocatorKind::kMaxPool;
  others[i++].options.prefetch = 0;
  others[i++].options.slots = 3;
  others[i++].options.clip = 2;
  others[i++].options.adamw.beta2 = 0.99;
  others[i++].options.adamw.weight_decay = 0.2;
  others[i++].options.learning_rate.lr = 0.002;
  others[i++].options.execution = "graph=step";
  others[i++].recompute = Recompute::kNorms;
  others[i++].recompute = Recompute::kBlock;
  others[i++].precision.grad_wire = DType::kBF16;
  others[i++].mesh = {2, 2};
  others[i++].kind = "eval";
  REQUIRE(i == others.size());
  std::set<std::string> hashes{PlanHash(PlanOf(base))};
  for (const PlanCase& other : others) {
    INFO(ToString(other));
    REQUIRE(hashes.insert(PlanHash(PlanOf(other))).second);
  }
}

using Change = std::function<void(const std::string& attribute, KernelOp changed)>;

// The same ranges, as many and as long, one element further on; one where there is none.
RangeList Moved(const RangeList& ranges) {
  std::vector<Range> moved = *ranges;
  for (Range& range : moved) ++range.begin, ++range.end;
  if (moved.empty()) moved.push_back({0, 1});
  return std::make_shared<const std::vector<Range>>(moved);
}

// f(attribute, the op with another value of it), for each attribute that the op has.
void ForEachChange(const KernelOp& op, const Change& f) {
  std::visit(
      [&](const auto& typed) {
        const auto with = [&](const char* attribute, auto&& change) {
          auto changed = typed;
          change(changed);
          f(attribute, KernelOp(changed));
        };
        // Of the enums that ops have, each has a 0 and a 1.
        const auto other = [](auto value) {
          return static_cast<decltype(value)>(value == decltype(value){} ? 1 : 0);
        };
#define NUMBER(name) \
  if constexpr (requires { typed.name; }) with(#name, [](auto& o) { o.name += 1; })
#define CHOICE(name) \
  if constexpr (requires { typed.name; }) with(#name, [&](auto& o) { o.name = other(o.name); })
        NUMBER(parity_stride);
        NUMBER(eps);
        NUMBER(staged_bytes);
        NUMBER(like_rows);
        NUMBER(like_columns);
        NUMBER(theta);
        NUMBER(scaling.factor);
        NUMBER(scaling.low_freq_factor);
        NUMBER(scaling.high_freq_factor);
        NUMBER(scaling.original_max_position_embeddings);
        NUMBER(scale);
        NUMBER(loss_weight);
        NUMBER(losses.weight[0]);
        if constexpr (requires {
                        typed.row_begin;
                        typed.vocab;
                      })
          with("row_begin", [](auto& o) { o.row_begin.base += 1; });
        if constexpr (requires { typed.row_begin; })
          with("row_begin by rank", [](auto& o) { o.row_begin.stride += 1; });
        NUMBER(vocab);
        NUMBER(unit);
        NUMBER(inject_index);
        NUMBER(schedule.lr);
        NUMBER(schedule.min_lr);
        NUMBER(schedule.warmup);
        NUMBER(schedule.decay_steps);
        NUMBER(schedule.total_steps);
        NUMBER(units);
        NUMBER(shard_world);
        NUMBER(clip);
        NUMBER(beta1);
        NUMBER(beta2);
        NUMBER(weight_decay);
        CHOICE(kind);
        CHOICE(epilogue);
        CHOICE(rounding);
        CHOICE(direction);
        CHOICE(deterministic);
        CHOICE(output);
        CHOICE(schedule.kind);
        CHOICE(update);
        CHOICE(table_update);
        CHOICE(loss_update);
        if constexpr (requires { typed.ranges; })
          with("ranges", [](auto& o) { o.ranges = Moved(o.ranges); });
        if constexpr (requires { typed.decay; })
          with("decay", [](auto& o) { o.decay = Moved(o.decay); });
#undef NUMBER
#undef CHOICE
      },
      op);
}

TEST_CASE("the hash sees every attribute of every op, the contents of lists, too",
          "[plan][step_plan]") {
  PlanCase c = Golden();
  c.mesh = {1, 2};
  c.precision = test::Mixed(DType::kF32, DType::kBF16, DType::kBF16);
  std::set<std::string> seen;
  for (const ModelOptions& model : {test::TinyGpt2(1), test::TinyLlama(1)}) {
    c.model = model;
    StepPlan plan = PlanOf(c);
    const std::string hash = PlanHash(plan);
    for (Body& body : plan.bodies)
      for (PlanOp& op : body.ops) {
        const KernelOp original = op.op;
        ForEachChange(original, [&](const std::string& attribute, KernelOp changed) {
          if (!seen.insert(fmt::format("{}.{}", OpName(original), attribute)).second) return;
          op.op = std::move(changed);
          INFO(Describe(op, plan));
          CAPTURE(OpName(original), attribute);
          CHECK(PlanHash(plan) != hash);
          op.op = original;
        });
      }
  }
  // It did look at those that are lists, or that only some backend or test reads.
  for (const char* attribute :
       {"zero_ranges.ranges", "adamw.decay", "finite_scan.unit", "finite_scan.inject_index",
        "step_stats.units", "step_stats.shard_world", "attention_grad.deterministic",
        "matmul.staged_bytes", "rope_table.theta", "embed_grad.table_update"})
    CHECK(seen.contains(attribute));
}

TEST_CASE("an address is asked for where the buffer lives", "[plan][step_plan]") {
  PlanBuffer buffer{"b",   256, BufferClass::kSlots, BufferScope::kMicrobatch, {{2, 4}, {6, 9}},
                    {512}, -1};
  REQUIRE(buffer.OffsetAt(3) == 512);  // sticky
  buffer.offsets = {512, 1024};
  REQUIRE(buffer.OffsetAt(2) == 512);
  REQUIRE(buffer.OffsetAt(3) == 512);
  REQUIRE(buffer.OffsetAt(6) == 1024);
  REQUIRE(buffer.OffsetAt(8) == 1024);
  for (const int64_t position : {1, 4, 5, 9})
    REQUIRE_THROWS_WITH(buffer.OffsetAt(position),
                        Catch::Matchers::Contains("b is used at position"));
  buffer.offsets.clear();
  REQUIRE_THROWS_WITH(buffer.OffsetAt(3), Catch::Matchers::Contains("b has no address"));
}

TEST_CASE("bytes of a view cover every rank of its axis and every microbatch",
          "[plan][step_plan]") {
  HandPlan p;
  const BufferId w = p.Master("w"), b = p.Buffer("b", 3, {{0, 10}});
  p.plan.buffers[static_cast<size_t>(w.value)].by_parity = true;
  const auto range = [&](const View& view, Mesh mesh, int accumulate) {
    const ByteRange r = BytesOf(p.plan, view, 0, mesh, accumulate);
    return std::pair{r.begin, r.end};
  };
  View view = p.Part(b, 4, 8);
  REQUIRE(range(view, {1, 1}, 1) == std::pair<int64_t, int64_t>{768 + 16, 768 + 48});
  view.rank_stride = 8;
  REQUIRE(range(view, {1, 2}, 1) == std::pair<int64_t, int64_t>{768 + 16, 768 + 80});
  REQUIRE(
      range(view, {4, 2}, 1) ==
      std::pair<int64_t, int64_t>{768 + 16, 768 + 80});  // the shard axis, whatever the replicas
  view.rank_axes = AxisSet::All();
  REQUIRE(range(view, {2, 2}, 1) == std::pair<int64_t, int64_t>{768 + 16, 768 + 144});
  view.rank_axes = Axis::kReplicate;
  REQUIRE(range(view, {3, 2}, 1) == std::pair<int64_t, int64_t>{768 + 16, 768 + 112});
  view.rank_stride = 0;
  view.microbatch_stride = 16;
  REQUIRE(range(view, {1, 1}, 3) == std::pair<int64_t, int64_t>{768 + 16, 768 + 48 + 128});
  REQUIRE(range(p.Part(w, 8, 8), {1, 1}, 1) ==
          std::pair<int64_t, int64_t>{0, 256});  // tokens: either parity
}

TEST_CASE("a chain is computations and exchanges that wait each for the one before",
          "[plan][step_plan]") {
  constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;
  const auto chain = [](std::initializer_list<StreamId> streams,
                        std::initializer_list<std::pair<int, int>> edges) {
    HandPlan p;
    const BufferId b = p.Buffer("b", 0, {{0, 10}});
    for (const StreamId stream : streams) p.Copy(stream, p.Whole(b), p.Whole(b));
    const StepPlan plan = p.Done(edges);
    return IsChain(plan, plan.schedule);
  };
  CHECK(chain({}, {}));
  CHECK(chain({kCompute, kCompute}, {}));
  CHECK(chain({kCompute, kExchange, kCompute}, {{1, 0}, {2, 1}}));
  CHECK(chain({kCompute, kExchange, kExchange, kCompute}, {{1, 0}, {2, 0}, {3, 2}}));
  // The exchange, or what is behind it, may come sooner.
  CHECK_FALSE(chain({kCompute, kExchange, kCompute}, {{2, 1}}));
  CHECK_FALSE(chain({kCompute, kExchange, kCompute}, {{1, 0}}));
  CHECK_FALSE(chain({kCompute, kCompute, kExchange}, {{2, 0}}));
  CHECK_FALSE(chain({kCompute, StreamId::kGather}, {{1, 0}}));
  CHECK_FALSE(chain({StreamId::kReduce}, {}));

  // From one entry to the next, too, and the edge counts where it is.
  HandPlan p;
  const BufferId b = p.Buffer("b", 0, {{0, 10}});
  p.Copy(kCompute, p.Whole(b), p.Whole(b));
  p.Copy(kExchange, p.Whole(b), p.Whole(b));
  StepPlan plan = p.Done({{1, 0}});
  plan.schedule.push_back(plan.schedule.front());
  plan.schedule[1].edges = {{1, 0, 1}};
  CHECK_FALSE(IsChain(plan, plan.schedule));
  plan.schedule[1].edges = {{0, 1, 0}, {1, 0, 1}};
  CHECK(IsChain(plan, plan.schedule));
  plan.schedule[1].edges = {{0, 0, 0}, {1, 0, 1}};
  CHECK_FALSE(IsChain(plan, plan.schedule));
}

}  // namespace
}  // namespace millrace
