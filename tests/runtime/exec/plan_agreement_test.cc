// Plans of which one rank's is another: every rank says which, on which communicator, and the first
// call that differs, before anything runs.
#include "runtime/exec/agreement/plan_agreement.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "comm/local/local_world.h"
#include "comm/local/run_ranks.h"
#include "runtime/base/error.h"
#include "runtime/exec/agreement/plan_comms.h"
#include "tests/support/plan_case.h"

namespace millrace {
namespace {

using Catch::Matchers::Contains;

test::PlanCase FourRanks(const std::string& kind, const Mesh& mesh = {2, 2}) {
  test::PlanCase c;
  c.mesh = mesh;
  if (mesh.Size(kDataAxes) < 4) {
    c.model = test::Divisible(test::TinyGpt2(2));
    c.strips = 2;
  }
  c.options.comm_scratch_bytes = 1 << 21;
  c.options.accumulate = 2;
  c.kind = kind;
  return c;
}

// What each rank is told, where `change` has been made to `odd`'s plans (train, eval).
std::vector<std::string> Told(int odd, const std::function<void(std::vector<StepPlan>&)>& change,
                              CommSharing sharing = CommSharing::kSeparate,
                              const Mesh& mesh = {2, 2}) {
  const test::PlanCase c = FourRanks("train", mesh);
  const std::vector<StepPlan> right = {test::PlanOf(c), test::PlanOf(FourRanks("eval", mesh))};
  std::vector<StepPlan> wrong = right;
  if (change) change(wrong);
  const ShardLayout layout = test::LayoutOf(c);
  std::vector<std::string> told(4);
  LocalWorld world(4);
  RunRanks(world, [&](CommFactory& factory) {
    const CommSet comms(factory, mesh, sharing, CommSpecsOf({&right[0], &right[1]}));
    const std::vector<StepPlan>& plans = factory.rank() == odd ? wrong : right;
    try {
      RequireSamePlans(comms, layout, {&plans[0], &plans[1]});
    } catch (const Error& error) {
      MR_CHECK(error.code() == ErrorCode::kConfig, "{}", error.what());
      told[static_cast<size_t>(factory.rank())] = error.what();
    }
  });
  return told;
}

// Indices of ops for which `wanted` holds, in the first body that has at least two.
template <class Wanted>
std::pair<Body*, std::vector<size_t>> Find(StepPlan& plan, Wanted wanted) {
  for (Body& body : plan.bodies) {
    std::vector<size_t> found;
    for (size_t i = 0; i < body.ops.size(); ++i)
      if (wanted(body.ops[i])) found.push_back(i);
    if (found.size() >= 2) return {&body, found};
  }
  MR_CHECK(false, "no body has two of them");
  return {};
}

bool IsGatherOfUnit(const PlanOp& op) {
  const auto* gather = std::get_if<AllGatherOp<View>>(&op.op);
  return gather != nullptr && gather->axes == AxisSet(Axis::kShard) && op.unit;
}

void CheckAll(const std::vector<std::string>& told, const std::vector<std::string>& words) {
  for (size_t r = 0; r < told.size(); ++r)
    for (const std::string& word : words) {
      CAPTURE(r);
      CHECK_THAT(told[r], Contains(word));
    }
}

TEST_CASE("ranks that plan the same are told nothing", "[exec][order]") {
  for (const CommSharing sharing : {CommSharing::kSeparate, CommSharing::kShared})
    for (const std::string& said : Told(-1, {}, sharing)) CHECK(said == "");
}

TEST_CASE("two gathers of one rank's step in the other order", "[exec][order]") {
  CheckAll(Told(3,
                [](std::vector<StepPlan>& plans) {
                  auto [body, gathers] =
                      Find(plans[0], [](const PlanOp& op) { return IsGatherOfUnit(op); });
                  std::swap(body->ops[gathers[0]], body->ops[gathers[1]]);
                }),
           {"rank 3 would issue other collectives than rank 2 on the communicator 'shard gather'",
            "is all_gather of unit h.", "and all_gather of unit h.", "bytes of f32, train",
            "on rank 2: the ranks have different configurations or builds"});
}

TEST_CASE("the first call that differs is counted over all plans and their prologues",
          "[exec][order]") {
  const auto last_gather = [](std::vector<StepPlan>& plans) -> PlanOp& {
    PlanOp* last = nullptr;
    for (const Entry& entry : plans[1].schedule)
      for (PlanOp& op : plans[1].bodies[static_cast<size_t>(entry.body)].ops)
        if (IsGatherOfUnit(op)) last = &op;
    MR_CHECK(last != nullptr, "evaluation gathers");
    return *last;
  };
  CheckAll(Told(0,
                [&](std::vector<StepPlan>& plans) {
                  std::get<AllGatherOp<View>>(last_gather(plans).op).full.layout =
                      DenseLayout(DType::kF32, {64});
                }),
           {"rank 1 would issue other collectives than rank 0", "'shard gather'",
            "is all_gather of unit head (", "(256 bytes of f32, eval step)"});
}

TEST_CASE("a prologue that gathers in another order", "[exec][order]") {
  CheckAll(Told(1,
                [](std::vector<StepPlan>& plans) {
                  Body& body = plans[0].bodies[static_cast<size_t>(plans[0].prologue.front().body)];
                  std::vector<size_t> gathers;
                  for (size_t i = 0; i < body.ops.size(); ++i)
                    if (std::holds_alternative<AllGatherOp<View>>(body.ops[i].op))
                      gathers.push_back(i);
                  MR_CHECK(!gathers.empty(), "a prologue gathers");
                  body.ops.erase(body.ops.begin() + static_cast<std::ptrdiff_t>(gathers[0]));
                }),
           {"rank 1 would issue other collectives than rank 0", "train prologue)"});
}

TEST_CASE("a reduction that one rank leaves out, of the outer axis and of the inner",
          "[exec][order]") {
  for (const bool outer : {true, false}) {
    const auto is_wanted = [outer](const PlanOp& op) {
      return outer ? std::holds_alternative<AllReduceOp<View>>(op.op)
                   : std::holds_alternative<ReduceScatterOp<View>>(op.op);
    };
    const std::vector<std::string> told = Told(2, [&](std::vector<StepPlan>& plans) {
      for (Body& body : plans[0].bodies)
        for (auto op = body.ops.begin(); op != body.ops.end(); ++op)
          if (is_wanted(*op)) {
            body.ops.erase(op);
            return;
          }
    });
    CheckAll(told, {outer ? "on the communicator 'replicate reduce'"
                          : "on the communicator 'shard reduce'",
                    outer ? "all_reduce of unit" : "reduce_scatter of unit"});
    // Ranks of the group that differs: 0 and 2 hold the same shard, 2 and 3 are one replica.
    CheckAll(told, {outer ? "rank 2 would issue" : "rank 3 would issue"});
  }
}

TEST_CASE("a communicator that serves gathers and reductions has one order of both",
          "[exec][order]") {
  const std::vector<std::string> told = Told(
      1,
      [](std::vector<StepPlan>& plans) {
        for (Body& body : plans[0].bodies) {
          size_t gather = body.ops.size(), reduce = body.ops.size();
          for (size_t i = 0; i < body.ops.size(); ++i) {
            if (IsGatherOfUnit(body.ops[i])) gather = i;
            if (std::holds_alternative<ReduceScatterOp<View>>(body.ops[i].op)) reduce = i;
          }
          if (gather == body.ops.size() || reduce == body.ops.size()) continue;
          std::swap(body.ops[gather], body.ops[reduce]);
          return;
        }
        MR_CHECK(false, "a body that gathers and reduces");
      },
      CommSharing::kShared);
  CheckAll(told, {"rank 1 would issue other collectives than rank 0"});
}

// Two gathers of a unit have one size, two strips of one gather even one name.
TEST_CASE("exchanges of one rank's step in another order, each with the next of its communicator",
          "[exec][order]") {
  const Mesh mesh = Mesh().With(Axis::kContext, 2).With(Axis::kTensor, 2);
  const StepPlan plan = test::PlanOf(FourRanks("train", mesh));
  for (const Axis axis : {Axis::kContext, Axis::kTensor}) {
    int swapped = 0;
    for (size_t b = 0; b < plan.bodies.size(); ++b) {
      std::vector<size_t> calls;
      for (size_t i = 0; i < plan.bodies[b].ops.size(); ++i) {
        const PlanOp& op = plan.bodies[b].ops[i];
        if (op.stream == StreamId::kExchange && IsCollective(op.op) &&
            CallOf(op.op)->axes == AxisSet(axis))
          calls.push_back(i);
      }
      for (size_t i = 1; i < calls.size(); ++i, ++swapped) {
        CAPTURE(plan.bodies[b].name, Describe(plan.bodies[b].ops[calls[i]], plan));
        const std::string name = axis == Axis::kContext ? "context" : "tensor";
        CheckAll(Told(
                     3,
                     [&](std::vector<StepPlan>& plans) {
                       std::vector<PlanOp>& ops = plans[0].bodies[b].ops;
                       std::swap(ops[calls[i - 1]], ops[calls[i]]);
                     },
                     CommSharing::kSeparate, mesh),
                 {"would issue other collectives than rank",
                  "on the communicator '" + name + " exchange'"});
      }
    }
    CHECK(swapped > 3);
  }
}

TEST_CASE("plans whose collectives are the same and that differ elsewhere", "[exec][order]") {
  for (const std::string& said :
       Told(1, [](std::vector<StepPlan>& plans) { plans[0].execution = "graph=off"; }))
    CHECK_THAT(said, Contains("plans ") && Contains("have different configurations or builds"));
}

}  // namespace
}  // namespace millrace
