// The planner over its options: every plan is proved, and moves what closed forms written here say.
#include "runtime/plan/schedule/planner.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <random>
#include <set>

#include "runtime/base/error.h"
#include "runtime/plan/check/checker.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using test::PlanCase;
using test::PlanOf;

// Ops that a schedule runs.
template <class F>
void ForEachRun(const StepPlan& plan, const std::vector<Entry>& schedule, F&& f) {
  for (const Entry& entry : schedule)
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(entry.body)].ops) f(op);
}

struct Counts {
  int64_t gathers = 0, stats_gathers = 0, casts = 0, reduces = 0, wire_casts = 0, outer = 0,
          concats = 0, updates = 0, scans = 0, rounding = 0;
};

Counts CountsOf(const StepPlan& plan, const std::vector<Entry>& schedule) {
  Counts n;
  ForEachRun(plan, schedule, [&](const PlanOp& op) {
    if (const auto* gather = std::get_if<AllGatherOp<View>>(&op.op)) {
      ++(gather->axes == AxisSet(Axis::kShard) ? n.gathers : n.stats_gathers);
      n.rounding += gather->shard && gather->shard.layout.dtype != gather->full.layout.dtype;
    }
    if (std::holds_alternative<CastOp<View>>(op.op))
      ++(op.label.starts_with("downcast/") ? n.casts : n.wire_casts);
    n.reduces += std::holds_alternative<ReduceScatterOp<View>>(op.op);
    n.outer += std::holds_alternative<AllReduceOp<View>>(op.op);
    n.concats += std::holds_alternative<ConcatOp<View>>(op.op);
    n.updates += std::holds_alternative<AdamWOp<View>>(op.op);
    n.scans += std::holds_alternative<FiniteScanOp<View>>(op.op);
  });
  return n;
}

// What the flat parameters of a case are, from the model alone.
struct Flats {
  int64_t blocks = 0, others = 0,
          norms = 0;  // others: embedding, head; norms: 1 when they are gathered apart
  int64_t all() const { return blocks + others + norms; }
};

Flats FlatsOf(const PlanCase& c) {
  Flats f;
  f.blocks = (c.model.layers() + c.model.blocks_per_unit - 1) / c.model.blocks_per_unit;
  f.norms = c.precision.norm_params != c.precision.compute;
  // The head is its final norm, and the output matrix unless tied.
  f.others = 1 + (f.norms == 0 || !c.model.tied);
  return f;
}

// Times that flat parameters become readable in one step: gathers, or downcasts
// where nothing is sharded.
int64_t Stays(const PlanCase& c) {
  const Flats f = FlatsOf(c);
  if (c.kind != "train") return f.all();
  const int64_t n = c.options.accumulate;
  switch (c.options.reshard) {
    case Reshard::kNever:
      return f.all();
    case Reshard::kAfterBackward:
      return f.norms + n * (f.blocks + f.others);
    // Forward and backward each, but the last `slots` blocks stay over the turn-around.
    default:
      return f.norms + n * (f.others + f.blocks + std::max<int64_t>(0, f.blocks - c.options.slots));
  }
}

// Flat parameters with a parameter whose gradient is a sum over several ops of a microbatch: that
// of a tied table, and of an output matrix whose loss comes in chunks.
int64_t SeveralContributions(const PlanCase& c, const StepPlan& plan) {
  if (c.model.tied) return 1;
  int64_t chunks = 0, microbatches = 0;
  ForEachRun(plan, plan.schedule, [&](const PlanOp& op) {
    chunks += std::holds_alternative<MatmulOp<View>>(op.op) &&
              op.label.find("loss:d_weight") != std::string::npos;
    microbatches += std::holds_alternative<EmbedOp<View>>(op.op);
  });
  return chunks > microbatches;
}

void RequireOneStreamAlone(const PlanCase& c, const StepPlan& plan) {
  if (c.mesh.world() > 1 || c.options.overlap_weight_gradients) return;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) REQUIRE(op.stream == StreamId::kCompute);
  for (const Entry& entry : plan.schedule) REQUIRE(entry.edges.empty());
}

// Gradients of weights and biases, wherever they are kept: whole, in a pool of buckets, in parts.
void RequireWeightGradientsBeside(const PlanCase& c, const StepPlan& plan) {
  if (!c.options.overlap_weight_gradients || c.kind != "train") return;
  int64_t beside = 0;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops) {
      const bool sums = std::holds_alternative<NormSumsOp<View>>(op.op);
      if (!sums && !std::holds_alternative<MatmulOp<View>>(op.op) &&
          !std::holds_alternative<ColumnSumOp<View>>(op.op))
        continue;
      const bool gradient = sums || op.label.find(":d_weight") != std::string::npos ||
                            op.label.find(":d_bias") != std::string::npos;
      INFO(op.label);
      REQUIRE(op.stream == (gradient ? StreamId::kReduce : StreamId::kCompute));
      beside += gradient;
    }
  REQUIRE(beside > 0);
}

void RequireClosedForms(const PlanCase& c, const StepPlan& plan) {
  RequireOneStreamAlone(c, plan);
  RequireWeightGradientsBeside(c, plan);
  const Flats f = FlatsOf(c);
  const int64_t n = c.options.accumulate;
  const bool train = c.kind == "train", sharded = c.mesh.Size(Axis::kShard) > 1,
             mixed = c.precision.compute == DType::kBF16;
  const bool after_update = c.options.downcast == Downcast::kAfterUpdate;
  const Counts step = CountsOf(plan, plan.schedule), prologue = CountsOf(plan, plan.prologue);

  REQUIRE(step.gathers == (sharded ? Stays(c) : 0));
  REQUIRE(step.stats_gathers == (train && c.mesh.world() > 1));
  // Everything that is gathered in bf16 is cast first, on the way or afterwards, unless the update
  // has done it.
  // Norms gathered apart are f32.
  const bool in_gather = sharded && c.options.downcast == Downcast::kInGather;
  REQUIRE(step.casts == (mixed && !after_update && !in_gather ? Stays(c) - f.norms : 0));
  REQUIRE(step.rounding == (mixed && in_gather ? Stays(c) - f.norms : 0));
  const int64_t segments = std::min<int64_t>(c.options.prefetch, 1000);
  if (train && sharded && c.options.reshard == Reshard::kNever)
    REQUIRE(prologue.gathers == std::min(segments, f.all()));
  REQUIRE(prologue.casts >= (mixed && after_update ? f.blocks + f.others : 0));

  const bool every = c.options.grad_sync == GradSync::kEvery && sharded;
  REQUIRE(step.reduces == (train && sharded ? f.all() * (every ? n : 1) : 0));
  REQUIRE(step.scans == (train ? f.all() * (every ? n : 1) : 0));
  // To the wire once per reduction; over replicas, an f32 sum of several reductions once more.
  const bool wired =
      train && c.mesh.world() > 1 && c.precision.grad_wire != c.precision.grad_accumulate;
  const bool narrows = Bytes(c.precision.grad_wire) < Bytes(c.precision.grad_accumulate);
  const bool outer_wired = train && every && n > 1 && c.mesh.Size(Axis::kReplicate) > 1 &&
                           c.precision.grad_wire != DType::kF32;
  // But what is written once before it is sent is written in the wire's dtype.
  const bool once = narrows && (every || n == 1);
  const int64_t cast_flats = once ? SeveralContributions(c, plan) : f.all();
  REQUIRE(step.wire_casts ==
          (wired ? step.scans / f.all() * cast_flats : 0) + (outer_wired ? f.all() : 0));
  REQUIRE(step.outer == (train && c.mesh.Size(Axis::kReplicate) > 1 ? f.all() : 0));
  REQUIRE(step.updates == (train ? f.all() : 0));
  if (c.options.grad_concat == GradConcat::kDirect) REQUIRE(step.concats == 0);
  const int64_t params = static_cast<int64_t>(test::LayoutOf(c).params.size());
  if (train && c.options.grad_concat == GradConcat::kLast) REQUIRE(step.concats == params);
  if (train && c.options.grad_concat == GradConcat::kEvery) REQUIRE(step.concats >= params * n);
}

void RequireAddresses(const PlanCase& c, const StepPlan& plan) {
  REQUIRE(plan.lower_bound <= plan.arena_bytes);
  REQUIRE(plan.arena_bytes % kArenaAlignment == 0);
  std::map<int32_t, int64_t> address;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (c.options.allocator != AllocatorKind::kDynamic) REQUIRE(buffer.offsets.size() <= 1);
    if (buffer.group < 0 || buffer.offsets.empty()) continue;
    REQUIRE(address.try_emplace(buffer.group, buffer.offsets[0]).first->second ==
            buffer.offsets[0]);
  }
  if (c.options.allocator == AllocatorKind::kDynamic) REQUIRE(address.empty());
}

void RequireProved(const PlanCase& c) {
  INFO(ToString(c));
  const StepPlan plan = PlanOf(c);
  const Violations found = FindViolations(plan, c.mesh, c.options.accumulate, 3);
  INFO((found.empty() ? "" : found.front().message));
  REQUIRE(found.empty());
  RequireClosedForms(c, plan);
  RequireAddresses(c, plan);
}

bool Allowed(const PlanOptions& o) {
  return !(o.grad_sync == GradSync::kEvery && o.grad_concat == GradConcat::kLast &&
           o.accumulate > 1);
}

const PrecisionPolicy kMixed = test::Mixed(DType::kF32, DType::kF32, DType::kF32);
constexpr Reshard kReshards[] = {Reshard::kNever, Reshard::kAfterBackward, Reshard::kAfterForward};
constexpr Downcast kDowncasts[] = {Downcast::kAfterGather, Downcast::kPerGather,
                                   Downcast::kInGather, Downcast::kAfterUpdate};

TEST_CASE("gradient and parameter policies over worlds and accumulation", "[plan][planner]") {
  const Mesh meshes[] = {{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}};
  for (const Mesh mesh : meshes)
    for (const int accumulate : {1, 2, 3})
      for (const Reshard reshard : kReshards)
        for (const Downcast downcast : kDowncasts)
          for (const GradSync sync : {GradSync::kEvery, GradSync::kLast})
            for (const GradConcat concat :
                 {GradConcat::kEvery, GradConcat::kLast, GradConcat::kDirect}) {
              PlanCase c;
              c.mesh = mesh;
              c.precision = kMixed;
              c.options.accumulate = accumulate;
              c.options.reshard = reshard;
              c.options.downcast = downcast;
              c.options.grad_sync = sync;
              c.options.grad_concat = concat;
              if (Allowed(c.options)) RequireProved(c);
            }
}

TEST_CASE("allocators over prefetch, slots and reduce depth", "[plan][planner]") {
  for (const AllocatorKind allocator :
       {AllocatorKind::kDynamic, AllocatorKind::kPersistent, AllocatorKind::kFixed,
        AllocatorKind::kMaxPool, AllocatorKind::kColoured, AllocatorKind::kPacked})
    for (int prefetch = 0; prefetch <= 3; ++prefetch)
      for (const int more : {1, 2})
        for (int depth = 0; depth <= 2; ++depth)
          for (const Reshard reshard : kReshards) {
            PlanCase c;
            c.model = test::TinyLlama(5);
            c.mesh = {1, 2};
            c.precision = test::Mixed(DType::kBF16, DType::kF32, DType::kBF16);
            c.options.accumulate = 3;
            c.options.allocator = allocator;
            c.options.prefetch = prefetch;
            c.options.slots = prefetch + more;
            c.options.reduce_depth = depth;
            c.options.reshard = reshard;
            c.options.grad_sync = depth == 1 ? GradSync::kLast : GradSync::kEvery;
            RequireProved(c);
          }
}

TEST_CASE("random combinations of everything", "[plan][planner]") {
  std::mt19937 random(20241121);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const auto dtype = [&] { return pick(2) == 0 ? DType::kF32 : DType::kBF16; };
  int planned = 0;
  for (int i = 0; i < 500; ++i) {
    PlanCase c;
    c.model = pick(2) == 0 ? test::TinyGpt2(1 + pick(6)) : test::TinyLlama(1 + pick(6));
    c.model.tied = pick(2) == 0;
    c.model.blocks_per_unit = pick(3) == 0 ? 2 : 1;
    c.mesh =
        std::vector<Mesh>{
            {1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}, {2, 4}}[static_cast<size_t>(
            pick(8))];
    if (pick(3) != 0) c.precision = test::Mixed(dtype(), dtype(), dtype());
    c.recompute = static_cast<Recompute>(pick(3));
    c.kind = std::vector<std::string>{"train", "train", "train", "eval",
                                      "generate"}[static_cast<size_t>(pick(5))];
    PlanOptions& o = c.options;
    o.accumulate = std::vector<int>{1, 2, 3, 5}[static_cast<size_t>(pick(4))];
    o.reshard = kReshards[pick(3)];
    o.downcast = kDowncasts[pick(3)];
    o.grad_sync = static_cast<GradSync>(pick(2));
    o.grad_concat = static_cast<GradConcat>(pick(3));
    o.allocator = static_cast<AllocatorKind>(pick(6));
    o.prefetch = pick(4);
    o.slots = o.prefetch + 1 + pick(2);
    o.reduce_depth = pick(3);
    o.overlap_weight_gradients = pick(2) == 1;
    o.comm_scratch_bytes = pick(2) * 1000;
    if (!Allowed(o)) continue;
    RequireProved(c);
    ++planned;
  }
  REQUIRE(planned > 300);
}

TEST_CASE("every kind of plan finds the persistent state at the same address", "[plan][planner]") {
  for (const bool llama : {false, true})
    for (const Downcast downcast : kDowncasts)
      for (const Mesh mesh : {Mesh{1, 1}, Mesh{2, 2}}) {
        PlanCase c;
        c.model = llama ? test::TinyLlama(2) : test::TinyGpt2(2);
        c.mesh = mesh;
        c.precision = kMixed;
        c.options.accumulate = 2;
        c.options.downcast = downcast;
        c.options.comm_scratch_bytes = 512;
        INFO(ToString(c));
        const StepPlan train = PlanOf(c);
        for (const char* kind : {"eval", "generate"}) {
          c.kind = kind;
          const StepPlan other = PlanOf(c);
          REQUIRE(other.persistent_bytes == train.persistent_bytes);
          int64_t persistent = 0;
          for (size_t i = 0; i < std::min(train.buffers.size(), other.buffers.size()); ++i) {
            REQUIRE((train.buffers[i].scope == BufferScope::kPersistent) ==
                    (other.buffers[i].scope == BufferScope::kPersistent));
            if (train.buffers[i].scope != BufferScope::kPersistent) break;
            REQUIRE(train.buffers[i].name == other.buffers[i].name);
            REQUIRE(train.buffers[i].bytes == other.buffers[i].bytes);
            REQUIRE(train.buffers[i].offsets == other.buffers[i].offsets);
            ++persistent;
          }
          REQUIRE(persistent >= 3 * FlatsOf(c).all() + 3);
        }
      }
}

TEST_CASE("carried buckets are filled by prologue, update and each microbatch but the last",
          "[plan][planner]") {
  for (int prefetch = 0; prefetch <= 3; ++prefetch) {
    PlanCase c;
    c.mesh = {1, 2};
    c.options.accumulate = 3;
    c.options.prefetch = prefetch;
    c.options.slots = prefetch + 1;
    const StepPlan plan = PlanOf(c);
    for (size_t i = 0; i < plan.buffers.size(); ++i) {
      if (plan.buffers[i].scope != BufferScope::kCarried) continue;
      std::map<std::string, int> fills;
      for (const Body& body : plan.bodies)
        for (const PlanOp& op : body.ops)
          if (const auto* gather = std::get_if<AllGatherOp<View>>(&op.op);
              gather != nullptr && gather->full.buffer.value == static_cast<int32_t>(i))
            ++fills[body.name.substr(body.name.find('.') + 1)];
      INFO(plan.buffers[i].name);
      REQUIRE(fills == std::map<std::string, int>{
                           {"first", 1}, {"middle", 1}, {"update", 1}, {"prologue", 1}});
    }
    REQUIRE(std::count_if(plan.buffers.begin(), plan.buffers.end(), [](const PlanBuffer& b) {
              return b.scope == BufferScope::kCarried;
            }) == prefetch);
  }
}

// Do ops of two bodies touch a byte in common, as any rank of the mesh would?
bool TouchCommonBytes(const StepPlan& plan, const Mesh& mesh, int accumulate, const Body& a,
                      int32_t a_op, const Body& b, int32_t b_op) {
  const auto ranges = [&](const Body& body, int32_t op) {
    std::vector<ByteRange> touched;
    ForEachUse(body.ops[static_cast<size_t>(op)].op,
               [&](const View& view, Access, std::string_view) {
                 touched.push_back(BytesOf(plan, view, body.begin + op, mesh, accumulate));
               });
    return touched;
  };
  for (const ByteRange& x : ranges(a, a_op))
    for (const ByteRange& y : ranges(b, b_op))
      if (x.begin < y.end && y.begin < x.end) return true;
  return false;
}

TEST_CASE("a small flat is updated beside the chain where gradients of weights are formed there",
          "[plan][planner]") {
  for (const bool overlap : {false, true}) {
    PlanCase c;
    c.model.tied = true;  // the head is a norm
    c.model.vocab = 1000;
    c.options.overlap_weight_gradients = overlap;
    const StepPlan plan = PlanOf(c);
    std::map<std::string, StreamId> stream;
    for (const PlanOp& op : plan.bodies[static_cast<size_t>(plan.schedule.back().body)].ops)
      if (std::holds_alternative<AdamWOp<View>>(op.op)) stream[op.label] = op.stream;
    REQUIRE(stream.size() == 5);
    for (const auto& [label, on] : stream)
      CHECK(on == (overlap && label == "adamw/head" ? StreamId::kReduce : StreamId::kCompute));
  }
}

TEST_CASE("a gather waits for its slot and its shard, never for all compute so far",
          "[plan][planner]") {
  for (const int prefetch : {0, 1, 2, 3}) {
    PlanCase c;
    c.model = test::TinyGpt2(8);
    c.mesh = {1, 2};
    c.options.prefetch = prefetch;
    c.options.slots = prefetch + 1;
    const StepPlan plan = PlanOf(c);
    int waits = 0;
    for (const Entry& entry : plan.schedule) {
      const Body& body = plan.bodies[static_cast<size_t>(entry.body)];
      for (const Edge& edge : entry.edges) {
        const PlanOp& op = body.ops[static_cast<size_t>(edge.to_op)];
        if (op.stream != StreamId::kGather || body.name == "update") continue;
        const Body& other = plan.bodies[static_cast<size_t>(
            plan.schedule[static_cast<size_t>(edge.from_entry)].body)];
        const PlanOp& from = other.ops[static_cast<size_t>(edge.from_op)];
        INFO("prefetch " << prefetch << ": " << op.label << " waits for " << from.label);
        REQUIRE(from.stream == StreamId::kCompute);
        REQUIRE(from.unit != op.unit);
        // The slot's last reader. The newest compute op, which works in another unit's slot,
        // would do for the two lines above.
        REQUIRE(TouchCommonBytes(plan, c.mesh, c.options.accumulate, other, edge.from_op, body,
                                 edge.to_op));
        ++waits;
      }
    }
    REQUIRE(waits > 0);
  }
}

// What makes a step shorter than its compute and its collectives one after the other.
TEST_CASE(
    "with prefetch a block's gather, and its reduction, may run beside its neighbour's compute",
    "[plan][planner]") {
  constexpr int kBlocks = 5;  // units 1 to 5
  const auto beside = [](int prefetch) {
    PlanCase c;
    c.model = test::TinyGpt2(kBlocks);
    c.mesh = {1, 2};
    c.options.allocator = AllocatorKind::kFixed;  // packed finds a second place by itself
    c.options.prefetch = prefetch;
    c.options.slots = prefetch + 1;
    c.options.grad_sync = GradSync::kEvery;
    const StepPlan plan = PlanOf(c);
    std::vector<const PlanOp*> issued;
    std::vector<std::vector<bool>> before;  // [i][j]: j has finished when i begins
    std::vector<int32_t> first;             // of each entry
    std::map<StreamId, int32_t> newest;
    for (const Entry& entry : plan.schedule) {
      const Body& body = plan.bodies[static_cast<size_t>(entry.body)];
      first.push_back(static_cast<int32_t>(issued.size()));
      for (int32_t o = 0; o < static_cast<int32_t>(body.ops.size()); ++o) {
        const PlanOp& op = body.ops[static_cast<size_t>(o)];
        std::vector<bool> finished(issued.size());
        const auto wait_for = [&](int32_t j) {
          const std::vector<bool>& earlier = before[static_cast<size_t>(j)];
          for (size_t i = 0; i < earlier.size(); ++i) finished[i] = finished[i] || earlier[i];
          finished[static_cast<size_t>(j)] = true;
        };
        if (const auto it = newest.find(op.stream); it != newest.end()) wait_for(it->second);
        for (const Edge& edge : entry.edges)
          if (edge.to_op == o) wait_for(first[static_cast<size_t>(edge.from_entry)] + edge.from_op);
        newest[op.stream] = static_cast<int32_t>(issued.size());
        issued.push_back(&op);
        before.push_back(std::move(finished));
      }
    }
    // Blocks whose gather or reduction is neither before nor after some matmul of another unit.
    std::map<StreamId, std::set<int32_t>> units;
    for (size_t i = 0; i < issued.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        if (before[i][j]) continue;
        const bool i_moves = IsCollective(issued[i]->op);
        const PlanOp &moves = *issued[i_moves ? i : j], &computes = *issued[i_moves ? j : i];
        if (IsCollective(moves.op) && std::holds_alternative<MatmulOp<View>>(computes.op) &&
            moves.unit != computes.unit && moves.unit.value >= 1 && moves.unit.value <= kBlocks)
          units[moves.stream].insert(moves.unit.value);
      }
    return std::pair(units[StreamId::kGather].size(), units[StreamId::kReduce].size());
  };
  const auto [gathers_alone, reduces_alone] = beside(0);
  REQUIRE(gathers_alone == 0);
  REQUIRE(reduces_alone == kBlocks - 1);  // no matmul follows the first block's
  for (const int prefetch : {1, 2, 3}) {
    INFO("prefetch " << prefetch);
    const auto [gathers, reduces] = beside(prefetch);
    REQUIRE(gathers >= kBlocks - 1);  // at most one is carried over the step's end
    REQUIRE(reduces == kBlocks - 1);
  }
}

TEST_CASE("a budget is kept or refused, and auto fills it", "[plan][planner]") {
  PlanCase c;
  c.model = test::TinyGpt2(6);
  c.mesh = {1, 2};
  const auto bytes = [&](Reshard reshard) {
    PlanCase d = c;
    d.options.reshard = reshard;
    return PlanOf(d).arena_bytes;
  };
  const int64_t least = bytes(Reshard::kAfterForward), most = bytes(Reshard::kNever);
  REQUIRE(least < most);
  c.options.reshard = Reshard::kAuto;
  int64_t gathers = 1000000;
  bool between = false;
  for (int64_t budget = least; budget <= most + kArenaAlignment;
       budget += std::max<int64_t>(kArenaAlignment, (most - least) / 7)) {
    c.options.budget_bytes = budget;
    const StepPlan plan = PlanOf(c);
    REQUIRE(plan.arena_bytes <= budget);
    REQUIRE(FindViolations(plan, c.mesh, 1).empty());
    const int64_t now = CountsOf(plan, plan.schedule).gathers;
    REQUIRE(now <= gathers);
    between = between || (now < gathers && gathers < 1000000);
    gathers = now;
  }
  REQUIRE(between);
  c.options.budget_bytes = least - 1;
  try {
    PlanOf(c);
    FAIL("fits below the least");
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kDoesNotFit);
    REQUIRE_THAT(error.what(), Catch::Matchers::Contains("memory.budget_gib"));
  }
  c.options.budget_bytes = 0;
  REQUIRE_THROWS_WITH(PlanOf(c),
                      Catch::Matchers::Contains("sharding.reshard=auto needs memory.budget_gib"));
}

TEST_CASE("combinations that cannot be planned are refused by key", "[plan][planner]") {
  PlanCase c;
  c.options.prefetch = 2;
  c.options.slots = 2;
  REQUIRE_THROWS_WITH(PlanOf(c), Catch::Matchers::Contains(
                                     "memory.slots is 2, but memory.prefetch 2 needs at least 3"));
  c.options.slots = 3;
  c.options.accumulate = 2;
  c.options.grad_sync = GradSync::kEvery;
  c.options.grad_concat = GradConcat::kLast;
  REQUIRE_THROWS_WITH(PlanOf(c), Catch::Matchers::Contains(
                                     "sharding.grad_concat=last with sharding.grad_sync=every"));
}

// How long it takes is printed, not asserted.
TEST_CASE("32 layers by 16 microbatches are planned and proved", "[plan][planner]") {
  PlanCase c;
  c.model = test::TinyGpt2(32);
  c.mesh = {1, 4};
  c.precision = kMixed;
  c.options.accumulate = 16;
  c.options.shape = {.batch = 2, .seq = c.model.seq_len};
  c.options.grad_sync = GradSync::kEvery;
  const ShardLayout layout = test::LayoutOf(c);
  const Program program = test::ProgramOf(c);
  const auto begin = std::chrono::steady_clock::now();
  const StepPlan plan =
      PlanStep(layout, PlanStates(layout, c.options, {&program}), program, c.options, c.kind);
  const auto planned = std::chrono::steady_clock::now();
  CheckPlan(plan, c.mesh, c.options.accumulate);
  const auto checked = std::chrono::steady_clock::now();
  size_t ops = 0;
  for (const Entry& entry : plan.schedule)
    ops += plan.bodies[static_cast<size_t>(entry.body)].ops.size();
  const auto ms = [](auto d) { return std::chrono::duration<double, std::milli>(d).count(); };
  WARN(ops << " ops: planned in " << ms(planned - begin) << " ms, proved in "
           << ms(checked - planned) << " ms");
  REQUIRE(ops > 14000);
}

}  // namespace
}  // namespace millrace
