// Receive buffers with room for less than the most that can come (model.moe.receive_capacity).
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/plan/check/checker.h"
#include "tests/system/axes/split_trial.h"

namespace millrace::test {
namespace {

using Family = ModelConfig::Family;

// Per rank and microbatch 96 / (shard expert accumulate) rows of 3 experts each.
Trial TrialOf(const SplitShape& shape, std::optional<double> capacity) {
  Trial trial = SplitTrial(Family::kQwen3Moe, shape, 2, 8);
  trial.config.model.moe = {.experts = 8, .top_k = 3, .ffn = 13, .receive_capacity = capacity};
  trial.steps = 2;
  return trial;
}

int64_t RowsOfPieces(const StepPlan& plan) {
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (const auto* pieces = std::get_if<ExpertPiecesOp<View>>(&op.op))
        return pieces->piece_pairs.layout.numel();
  return 0;
}

TEST_CASE("room that is enough has the bits of room for all, in smaller buffers",
          "[expert][capacity]") {
  for (const SplitShape& shape :
       {SplitShape{.expert = 2}, {.shard = 2, .tensor = 2, .expert = 2}}) {
    INFO("shard " << shape.shard << " tensor " << shape.tensor << " expert " << shape.expert);
    const double enough = 1.9;
    const Outcome all = RunTrial(TrialOf(shape, std::nullopt));
    Trial bounded = TrialOf(shape, enough);
    const Outcome some = RunTrial(bounded);
    CHECK(some.Bits() == all.Bits());
    CHECK(RowsOfPieces(some.plan()) < RowsOfPieces(all.plan()));
    CHECK(some.plan().overflows.size() == 4);
    CHECK(some.plan_hash != all.plan_hash);
    // The plan for batches without room is the one with room for all.
    CHECK(RowsOfPieces(some.run.plans.Of(kAgain)) == RowsOfPieces(all.plan()));
    CHECK(some.run.plans.Of(kAgain).overflows.empty());
    CHECK(all.run.plans.Find(kAgain) == nullptr);
    bounded.config.execution.checked = true;
    CHECK(RunTrial(bounded).Bits() == all.Bits());
    // As much room as can be needed is room for all.
    CHECK(RunTrial(TrialOf(shape, 100)).plan_hash == all.plan_hash);
  }
}

thread_local bool skewed = false;  // of this rank

// One expert after the other, or all rows of a rank for the first ones.
void Route(const RouteOp<TensorView>& op, Stream& stream) {
  CpuKernels().route(op, stream);
  const int64_t experts = skewed ? op.ids.dim(1) : op.logits.dim(1);
  for (int64_t i = 0; i < op.ids.numel(); ++i)
    op.ids.as<int32_t>()[i] = static_cast<int32_t>(i % experts);
}

std::string HashOf(Engine& engine) { return ParamHash(engine) + OptimizerHash(engine); }

StepScalars StepBy(RankContext& rank, const Config& config, int64_t batch, int64_t step,
                   std::string_view plan) {
  rank.engine.Enqueue(BatchOf(config, rank.world, rank.rank, batch), step,
                      ValidTokens(config, rank.world), 0, plan);
  return rank.engine.Collect();
}

TEST_CASE("a step without room changes nothing on any rank, and run again it is the step with room",
          "[expert][capacity]") {
  KernelTable kernels = CpuKernels();
  kernels.route = Route;
  for (const SplitShape& shape : {SplitShape{.accumulate = 3, .expert = 4},
                                  {.shard = 2, .tensor = 2, .expert = 2},
                                  {.replicate = 2, .accumulate = 2, .expert = 2}})
    for (const bool all_ranks : {true, false}) {
      Trial trial = TrialOf(shape, 1.3), roomy = TrialOf(shape, std::nullopt);
      trial.kernels = roomy.kernels = &kernels;
      INFO("shard " << shape.shard << " tensor " << shape.tensor << " expert " << shape.expert
                    << (all_ranks ? ", all ranks" : ", the last rank"));
      const auto skew = [&](const RankContext& rank) {
        skewed = all_ranks || rank.rank == rank.world - 1;
      };
      // Steps 0 and 3 as they are, the batch of step 1 in step 2.
      std::vector<std::string> wanted;
      RunEngines(roomy, [&](RankContext& rank) {
        rank.engine.InitWeights(3);
        skewed = false;
        StepBy(rank, roomy.config, 0, 0, "");
        skew(rank);
        const StepScalars late = StepBy(rank, roomy.config, 1, 2, "");
        skewed = false;
        const StepScalars last = StepBy(rank, roomy.config, 2, 3, "");
        const std::string hash = HashOf(rank.engine);
        if (rank.rank == 0)
          wanted = {fmt::format("{:a} {:a} {:a} {:a}", late.loss, late.grad_norm, last.loss,
                                last.grad_norm),
                    hash};
      });
      std::vector<std::vector<std::string>> got(static_cast<size_t>(trial.world));
      std::vector<StepScalars> skipped(got.size());
      std::vector<std::vector<float>> dropped(got.size());
      std::vector<char> untouched(got.size());
      RunEngines(trial, [&](RankContext& rank) {
        const auto r = static_cast<size_t>(rank.rank);
        rank.engine.InitWeights(3);
        skewed = false;
        StepBy(rank, trial.config, 0, 0, "");
        const std::string before = HashOf(rank.engine);
        skew(rank);
        skipped[r] = StepBy(rank, trial.config, 1, 1, "");
        const auto counts = rank.engine.tallies().last(4);
        dropped[r].assign(counts.begin(), counts.end());
        untouched[r] = HashOf(rank.engine) == before;
        const StepScalars late = StepBy(rank, trial.config, 1, 2, kAgain);
        skewed = false;
        const StepScalars last = StepBy(rank, trial.config, 2, 3, "");
        got[r] = {fmt::format("{:a} {:a} {:a} {:a}", late.loss, late.grad_norm, last.loss,
                              last.grad_norm),
                  HashOf(rank.engine)};
        skewed = false;
      });
      const int64_t rows = trial.config.train.micro_batch * 8 / shape.tensor,
                    room = static_cast<int64_t>(std::ceil(1.3 * static_cast<double>(3 * rows) /
                                                          static_cast<double>(shape.expert)));
      // With four ranks the first has two experts, the second the third.
      const int64_t over = shape.expert == 4 ? std::max<int64_t>(2 * rows - room, 0) +
                                                   std::max<int64_t>(rows - room, 0)
                                             : 3 * rows - room;
      for (size_t r = 0; r < got.size(); ++r) {
        CHECK(skipped[r].applied == 0);
        CHECK(skipped[r].skipped == 1);
        CHECK(skipped[r].adam_t == 1);
        CHECK(skipped[r].offender_unit == kOffenderOverflow);
        CHECK(untouched[r]);
        CHECK(got[r] == wanted);
        const auto of_all =
            static_cast<float>(over * shape.accumulate * (all_ranks ? trial.world : 1));
        REQUIRE(over > 0);
        CHECK(dropped[r] == std::vector<float>(4, of_all));
      }
    }
}

// --- What the checker proves of it: plans that would drop rows unnoticed.

template <class Op>
std::vector<Op*> OpsOf(StepPlan& plan) {
  std::vector<Op*> found;
  for (Body& body : plan.bodies)
    for (PlanOp& op : body.ops)
      if (auto* typed = std::get_if<Op>(&op.op)) found.push_back(typed);
  return found;
}

TEST_CASE("a plan that drops rows unnoticed is rejected, whatever it lacks", "[expert][capacity]") {
  for (const SplitShape& shape :
       {SplitShape{.expert = 2}, {.shard = 2, .accumulate = 3, .expert = 2}}) {
    const Trial trial = TrialOf(shape, 1.3);
    const AssembledRun run = PlanOf(trial);
    const Mesh& mesh = run.layout.mesh;
    int by_rule = 0;
    const auto check = [&](const char* what, const std::function<void(StepPlan&)>& change) {
      INFO(what);
      StepPlan plan = run.plans.Of("train");
      change(plan);
      const Violations found = FindViolations(plan, mesh, run.options.accumulate);
      REQUIRE_FALSE(found.empty());
      // What nobody writes is read undefined, besides.
      const ViolationKind kind = found.front().kind;
      CHECK((kind == ViolationKind::kOverflow || kind == ViolationKind::kUndefined));
      by_rule += kind == ViolationKind::kOverflow;
    };
    StepPlan plan = run.plans.Of("train");
    CHECK(FindViolations(plan, mesh, run.options.accumulate).empty());
    const size_t pieces = OpsOf<ExpertPiecesOp<View>>(plan).size();
    REQUIRE(pieces == (shape.accumulate > 1 ? 12 : 4));
    for (size_t i = 0; i < pieces; i += 3) {
      check("not counted",
            [&](StepPlan& p) { OpsOf<ExpertPiecesOp<View>>(p)[i]->dropped = View{}; });
      check("counted for another block", [&](StepPlan& p) {
        OpsOf<ExpertPiecesOp<View>>(p)[i]->dropped.offset += i % 4 == 3 ? -1 : 1;
      });
      if (shape.accumulate > 1)
        check("counted anew, or not", [&](StepPlan& p) {
          Update& update = OpsOf<ExpertPiecesOp<View>>(p)[i]->update;
          update = update == Update::kOverwrite ? Update::kAccumulate : Update::kOverwrite;
        });
    }
    check("not heard", [](StepPlan& p) { OpsOf<StepStatsOp<View>>(p)[0]->overflow = View{}; });
    check("heard in part", [](StepPlan& p) {
      View& overflow = OpsOf<StepStatsOp<View>>(p)[0]->overflow;
      overflow.layout.dims[0] -= 1;
    });
    check("others are heard",
          [](StepPlan& p) { OpsOf<StepStatsOp<View>>(p)[0]->overflow.offset -= 1; });
    check("not summed", [](StepPlan& p) {
      for (AllReduceOp<View>* sum : OpsOf<AllReduceOp<View>>(p)) sum->buffer.layout.dims[0] -= 1;
    });
    if (shape.shard > 1)
      check("summed over some", [](StepPlan& p) {
        for (AllReduceOp<View>* sum : OpsOf<AllReduceOp<View>>(p))
          if (sum->axes == AxisSet::All()) sum->axes = AxisSet(Axis::kExpert);
      });
    CHECK(by_rule >= 4);
  }
}

}  // namespace
}  // namespace millrace::test
